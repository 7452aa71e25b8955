//! Packing and multiplication of blocks, for each kind of instruction set.

use super::micro_kernel::panels;
use super::pack::{LeftBlock, pack_right};
use super::{Block, Matrix, MicroKernel, PackedElement, Sink};
use crate::cpu::kernels::float::Float;
use crate::cpu::kernels::simd::Level;

use std::ops::Range;

/// Packs and multiplies blocks of operands. Lengths are numbers of f32 elements of scratch memory.
pub(super) trait Kernel {
    /// Rows and columns of a tile.
    const ROWS: usize;
    const COLUMNS: usize;
    /// Longest inner dimension that is not split, and longest block of one that is.
    const MAX_INNER: usize;
    const INNER_BLOCK: usize;
    /// Blocks of the inner dimension are multiples of this, except for the last one.
    const INNER_UNIT: usize;

    /// Whether the tiles read a row-major left operand, `inner` numbers of each row, in place.
    fn reads_in_place<T: Float>(matrix: &Matrix<T>, inner: usize) -> bool;

    /// Length of a packed block of the left operand.
    fn left_len(rows: usize, inner: usize) -> usize;

    /// Length of a packed panel: `COLUMNS` columns of the right operand.
    fn panel_len(inner: usize) -> usize;

    fn pack_right<T: Float>(
        level: Level,
        matrix: &Matrix<T>,
        inner: Range<usize>,
        columns: Range<usize>,
        packed: &mut [f32],
    );

    /// Packs a block of a row-major left operand, unless tiles read it in place.
    fn pack_row_major<T: Float>(
        level: Level,
        matrix: &Matrix<T>,
        block: &Block,
        packed: &mut [f32],
    ) -> LeftBlock;

    /// Packs a block of a column-major left operand: reading it in place, a tile would touch a page for every few
    /// elements. Adds each row's elements to its sum in `sums`, if given.
    fn pack_column_major<T: Float>(
        level: Level,
        matrix: &Matrix<T>,
        block: &Block,
        packed: &mut [f32],
        sums: Option<&mut [f32]>,
    ) -> LeftBlock;

    /// # Safety
    ///
    /// `left` and `right` hold the packed block, no other thread writes to the sink, and the machine supports the
    /// instruction set.
    #[allow(unsafe_code)]
    unsafe fn multiply(block: &Block, left: LeftBlock, right: &[f32], sink: Sink);

    /// Calls `work`, which multiplies, with the processor's matrix units configured.
    fn with_configured_units(work: impl FnOnce()) {
        work();
    }
}

impl<M: MicroKernel> Kernel for M {
    const ROWS: usize = M::ROWS;
    const COLUMNS: usize = M::COLUMNS;
    const MAX_INNER: usize = 384 * M::Element::DEPTH;
    const INNER_BLOCK: usize = 256 * M::Element::DEPTH;
    const INNER_UNIT: usize = M::Element::DEPTH;

    fn reads_in_place<T: Float>(matrix: &Matrix<T>, inner: usize) -> bool {
        M::Element::in_place(matrix, &(0..inner)).is_some()
    }

    fn left_len(rows: usize, inner: usize) -> usize {
        rows * inner.div_ceil(M::Element::DEPTH)
    }

    fn panel_len(inner: usize) -> usize {
        M::COLUMNS * inner.div_ceil(M::Element::DEPTH)
    }

    fn pack_right<T: Float>(
        level: Level,
        matrix: &Matrix<T>,
        inner: Range<usize>,
        columns: Range<usize>,
        packed: &mut [f32],
    ) {
        pack_right::<M, T>(level, matrix, inner, columns, packed);
    }

    fn pack_row_major<T: Float>(
        level: Level,
        matrix: &Matrix<T>,
        block: &Block,
        packed: &mut [f32],
    ) -> LeftBlock {
        match M::Element::in_place(matrix, &block.inner) {
            Some(matrix) => LeftBlock::in_place::<M::Element>(&matrix, block),
            None => LeftBlock::pack_row_major::<M::Element, T>(matrix, block, level, packed),
        }
    }

    fn pack_column_major<T: Float>(
        level: Level,
        matrix: &Matrix<T>,
        block: &Block,
        packed: &mut [f32],
        sums: Option<&mut [f32]>,
    ) -> LeftBlock {
        LeftBlock::pack_column_major::<M, T>(matrix, block, level, packed, sums)
    }

    #[allow(unsafe_code)]
    unsafe fn multiply(block: &Block, left: LeftBlock, right: &[f32], sink: Sink) {
        let (rows, depth) = (block.rows.len(), block.inner.len().div_ceil(M::Element::DEPTH));
        for row in (0..rows).step_by(M::ROWS) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                panels::<M>(
                    M::ROWS.min(rows - row),
                    block.columns.len(),
                    depth,
                    left.rows_from(row),
                    right.as_ptr(),
                    depth * M::COLUMNS,
                    sink.rows_from(row),
                );
            }
        }
    }
}
