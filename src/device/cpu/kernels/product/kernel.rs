//! How operands are packed and multiplied: what differs between instruction sets.

use super::micro::panels;
use super::pack::{LeftBlock, pack_right};
use super::{Block, Element, Matrix, Micro, Sink};
use crate::cpu::kernels::float::Float;
use crate::cpu::kernels::simd::Level;

use std::ops::Range;

/// Packs blocks of operands and multiplies them. Lengths are of scratch memory, in f32 elements.
pub(super) trait Kernel {
    /// Of a tile.
    const ROWS: usize;
    const COLUMNS: usize;
    /// Longest inner dimension that is not cut, and longest block of one that is.
    const LONGEST: usize;
    const CUT: usize;
    /// What blocks of it are multiples of, except for the last one.
    const UNIT: usize;

    /// Whether a left operand whose rows lie along memory, so many numbers of each, is read where it lies.
    fn is_in_place<T: Float>(matrix: &Matrix<T>, inner: usize) -> bool;

    /// Room for rows of the left operand.
    fn left_len(rows: usize, inner: usize) -> usize;

    /// Room for `COLUMNS` columns of the right operand.
    fn panel_len(inner: usize) -> usize;

    fn pack_right<T: Float>(
        level: Level,
        matrix: &Matrix<T>,
        inner: Range<usize>,
        columns: Range<usize>,
        packed: &mut [f32],
    );

    /// Packs rows that lie along memory, or reads them where they lie.
    fn rows_along<T: Float>(level: Level, matrix: &Matrix<T>, block: &Block, packed: &mut [f32])
    -> LeftBlock;

    /// Packs rows that lie side by side in memory: a tile would touch a page for every few elements. What is packed
    /// is also added to `sums`, one for each row, if they are wanted.
    fn rows_beside<T: Float>(
        level: Level,
        matrix: &Matrix<T>,
        block: &Block,
        packed: &mut [f32],
        sums: Option<&mut [f32]>,
    ) -> LeftBlock;

    /// # Safety
    ///
    /// `left` and `right` hold the packed block, nobody else writes to the sink, and the machine has the
    /// instruction set.
    #[allow(unsafe_code)]
    unsafe fn multiply(block: &Block, left: LeftBlock, right: &[f32], sink: Sink);

    /// Calls `work`, which multiplies, with the processor prepared for it.
    fn prepared(work: impl FnOnce()) {
        work();
    }
}

impl<M: Micro> Kernel for M {
    const ROWS: usize = M::ROWS;
    const COLUMNS: usize = M::COLUMNS;
    const LONGEST: usize = 384 * M::Element::DEPTH;
    const CUT: usize = 256 * M::Element::DEPTH;
    const UNIT: usize = M::Element::DEPTH;

    fn is_in_place<T: Float>(matrix: &Matrix<T>, inner: usize) -> bool {
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

    fn rows_along<T: Float>(
        level: Level,
        matrix: &Matrix<T>,
        block: &Block,
        packed: &mut [f32],
    ) -> LeftBlock {
        match M::Element::in_place(matrix, &block.inner) {
            Some(matrix) => LeftBlock::in_place::<M::Element>(&matrix, block),
            None => LeftBlock::along::<M::Element, T>(matrix, block, level, packed),
        }
    }

    fn rows_beside<T: Float>(
        level: Level,
        matrix: &Matrix<T>,
        block: &Block,
        packed: &mut [f32],
        sums: Option<&mut [f32]>,
    ) -> LeftBlock {
        LeftBlock::packed::<M, T>(matrix, block, level, packed, sums)
    }

    #[allow(unsafe_code)]
    unsafe fn multiply(block: &Block, left: LeftBlock, right: &[f32], sink: Sink) {
        let (rows, depth) = (block.rows.len(), block.inner.len().div_ceil(M::Element::DEPTH));
        for row in (0..rows).step_by(M::ROWS) {
            // SAFETY: by the caller's promise.
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
