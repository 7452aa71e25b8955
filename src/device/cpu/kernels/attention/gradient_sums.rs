//! Accumulation of the gradients of one head in f32.

use std::ops::Range;

use crate::cpu::kernels::float::Float;
use crate::cpu::kernels::matmul::{LeftRows, MicroKernel, Sink, panels};
use crate::cpu::kernels::simd::Level;
use crate::cpu::kernels::workers::SharedSlice;
use ops::DType;

use super::{HeadOffsets, QUERIES, Sizes};

/// f32 sums of a head's gradients: dqkv itself if it is f32; otherwise scratch memory with one tile of dq and all of dk
/// and dv.
pub(super) struct GradientSums {
    /// Of dq, dk and dv.
    start: [*mut f32; 3],
    /// Elements between positions.
    pub(super) stride: usize,
    /// Number of queries that the sums hold.
    queries: usize,
    offsets: HeadOffsets,
    sizes: Sizes,
}

impl GradientSums {
    pub(super) fn new<T: Float>(
        dqkv: &SharedSlice<T>,
        wide: &mut [f32],
        offsets: HeadOffsets,
        sizes: Sizes,
    ) -> GradientSums {
        let (first, part) = (QUERIES * sizes.head, sizes.sequence * sizes.head);
        if T::DTYPE == DType::F32 {
            let start = offsets.qkv.map(|start| dqkv.as_ptr().wrapping_add(start).cast());
            let queries = sizes.sequence;
            return GradientSums { start, stride: sizes.qkv_stride(), queries, offsets, sizes };
        }
        assert_eq!(wide.len(), first + 2 * part, "the scratch memory holds a tile of dq, dk and dv");
        let start = [0, first, first + part].map(|offset| wide.as_mut_ptr().wrapping_add(offset));
        GradientSums { start, stride: sizes.head, queries: QUERIES, offsets, sizes }
    }

    /// The elements of a position in dq, dk or dv (`part` 0, 1 or 2). If the sums hold one tile of dq, the position is
    /// taken modulo the tile.
    pub(super) fn row_ptr(&self, part: usize, position: usize) -> *mut f32 {
        let row = if part == 0 { position % self.queries } else { position };
        self.start[part].wrapping_add(row * self.stride)
    }

    /// Sets dk and dv to zero.
    pub(super) fn clear(&self) {
        for (part, position) in
            [1, 2].into_iter().flat_map(|part| (0..self.sizes.sequence).map(move |p| (part, p)))
        {
            // SAFETY: the sums hold all positions, and no other thread writes this head's gradients.
            #[allow(unsafe_code)]
            unsafe { std::slice::from_raw_parts_mut(self.row_ptr(part, position), self.sizes.head) }
                .fill(0.0);
        }
    }

    /// `dk += dscores^T q`, `dv += weights^T dout`. The operands of each product: dscores or weights of some queries
    /// and keys, in rows of `score_row` elements; q or dout of all queries, in panels.
    pub(super) fn add_key_gradients<M: MicroKernel>(
        &self,
        queries: Range<usize>,
        keys: Range<usize>,
        score_row: usize,
        operands: [(&[f32], &[f32]); 2],
    ) {
        let panel = self.sizes.sequence * M::COLUMNS;
        for key in keys.clone().step_by(M::ROWS) {
            let count = M::ROWS.min(keys.end - key);
            // Under a causal mask, earlier queries do not see these keys.
            let query = if self.sizes.attending.causal { queries.start.max(key) } else { queries.start };
            let corner = (query - queries.start) * score_row + key - keys.start;
            for (part, (left, right)) in operands.into_iter().enumerate() {
                let sink = Sink::plain(self.row_ptr(1 + part, key), self.stride, true);
                let left =
                    LeftRows { start: left[corner..].as_ptr(), row_stride: 1, inner_stride: score_row };
                let right = right[query * M::COLUMNS..].as_ptr();
                // SAFETY: no other thread writes this head's gradients.
                #[allow(unsafe_code)]
                unsafe {
                    panels::<M>(count, self.sizes.head, queries.end - query, left, right, panel, sink);
                }
            }
        }
    }

    /// Rounds the sums of some positions to dqkv, unless they are dqkv itself.
    pub(super) fn store<T: Float>(
        &self,
        level: Level,
        part: usize,
        positions: Range<usize>,
        dqkv: &SharedSlice<T>,
    ) {
        if T::DTYPE == DType::F32 {
            return;
        }
        for position in positions {
            let start = self.offsets.qkv[part] + position * self.sizes.qkv_stride();
            // SAFETY: as above.
            #[allow(unsafe_code)]
            let (sums, stored) = unsafe {
                let sums = std::slice::from_raw_parts(self.row_ptr(part, position), self.sizes.head);
                (sums, dqkv.range_mut(start..start + self.sizes.head))
            };
            T::narrow(level, sums, stored);
        }
    }
}
