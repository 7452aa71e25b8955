//! The sums that a head's gradients are.

use std::ops::Range;

use crate::cpu::kernels::float::Float;
use crate::cpu::kernels::product::{Left, Micro, Sink, panels};
use crate::cpu::kernels::simd::Level;
use crate::cpu::kernels::workers::Parts;
use ops::DType;

use super::{Head, QUERIES, Sizes};

/// Where a head's gradients are summed in f32: where they are stored, or in scratch memory, which holds one tile of
/// dq and all of dk and dv.
pub(super) struct Sums {
    /// Of the gradients of queries, keys and values.
    start: [*mut f32; 3],
    /// Elements between positions.
    pub(super) row: usize,
    /// Queries that there is room for.
    queries: usize,
    place: Head,
    sizes: Sizes,
}

impl Sums {
    pub(super) fn new<T: Float>(dqkv: &Parts<T>, wide: &mut [f32], place: Head, sizes: Sizes) -> Sums {
        let (first, part) = (QUERIES * sizes.head, sizes.sequence * sizes.head);
        if T::DTYPE == DType::F32 {
            let start = place.qkv.map(|start| dqkv.as_ptr().wrapping_add(start));
            let queries = sizes.sequence;
            return Sums { start: start.map(|start| start.cast()), row: sizes.row(), queries, place, sizes };
        }
        assert_eq!(wide.len(), first + 2 * part, "room for a tile of dq, and for dk and dv");
        let start = [0, first, first + part].map(|offset| wide.as_mut_ptr().wrapping_add(offset));
        Sums { start, row: sizes.head, queries: QUERIES, place, sizes }
    }

    /// Where a position's elements are. Tiles begin at whole numbers of tiles.
    pub(super) fn at(&self, part: usize, position: usize) -> *mut f32 {
        let row = if part == 0 { position % self.queries } else { position };
        self.start[part].wrapping_add(row * self.row)
    }

    /// Makes dk and dv zero.
    pub(super) fn clear(&self) {
        for (part, position) in
            [1, 2].into_iter().flat_map(|part| (0..self.sizes.sequence).map(move |p| (part, p)))
        {
            // SAFETY: the sums hold all positions, and nobody else writes this head's gradients.
            #[allow(unsafe_code)]
            unsafe { std::slice::from_raw_parts_mut(self.at(part, position), self.sizes.head) }.fill(0.0);
        }
    }

    /// `dk += dscores^T q`, `dv += weights^T dout`: of each, the scores of some queries and keys, in rows of `score_row`, and
    /// all queries or their outputs' gradients in panels.
    pub(super) fn add_key_gradients<M: Micro>(
        &self,
        queries: Range<usize>,
        keys: Range<usize>,
        score_row: usize,
        operands: [(&[f32], &[f32]); 2],
    ) {
        let panel = self.sizes.sequence * M::COLUMNS;
        for key in keys.clone().step_by(M::ROWS) {
            let count = M::ROWS.min(keys.end - key);
            // Earlier queries may not see these keys.
            let query = if self.sizes.attending.causal { queries.start.max(key) } else { queries.start };
            let corner = (query - queries.start) * score_row + key - keys.start;
            for (part, (left, right)) in operands.into_iter().enumerate() {
                let sink = Sink::plain(self.at(1 + part, key), self.row, true);
                let left = Left { start: left[corner..].as_ptr(), row: 1, step: score_row };
                let right = right[query * M::COLUMNS..].as_ptr();
                // SAFETY: nobody else writes this head's gradients.
                #[allow(unsafe_code)]
                unsafe {
                    panels::<M>(count, self.sizes.head, queries.end - query, left, right, panel, sink);
                }
            }
        }
    }

    /// Stores the sums of some positions where they belong, unless that is where they are.
    pub(super) fn store<T: Float>(
        &self,
        level: Level,
        part: usize,
        positions: Range<usize>,
        dqkv: &Parts<T>,
    ) {
        if T::DTYPE == DType::F32 {
            return;
        }
        for position in positions {
            let start = self.place.qkv[part] + position * self.sizes.row();
            // SAFETY: as above.
            #[allow(unsafe_code)]
            let (sums, stored) = unsafe {
                let sums = std::slice::from_raw_parts(self.at(part, position), self.sizes.head);
                (sums, dqkv.part(start..start + self.sizes.head))
            };
            T::narrow(level, sums, stored);
        }
    }
}
