//! Operands laid out in the order in which a register tile reads them.

use std::ops::Range;

use super::{Left, Matrix, Micro};
use crate::device::cpu::kernels::elementwise::add_to;
use crate::device::cpu::kernels::simd::Level;

/// A block of the left operand, to be read in groups of a tile's rows.
#[derive(Clone, Copy)]
pub(crate) struct LeftBlock {
    start: *const f32,
    /// Elements from where one row begins to where the next one does, at the beginnings of groups.
    pitch: usize,
    row: usize,
    step: usize,
}

impl LeftBlock {
    /// Rows that lie along memory: tiles read them where they are.
    pub(crate) fn in_place(matrix: &Matrix, rows: &Range<usize>, inner: &Range<usize>) -> LeftBlock {
        assert_eq!(matrix.step, 1, "rows lie along memory");
        let start = matrix.data[rows.start * matrix.row + inner.start..].as_ptr();
        LeftBlock { start, pitch: matrix.row, row: matrix.row, step: 1 }
    }

    /// Rows that lie side by side in memory are copied: a tile would touch a page for every few elements. What is
    /// copied is also added to `sums`, one for each row, if they are wanted.
    pub(crate) fn packed<M: Micro>(
        matrix: &Matrix,
        rows: &Range<usize>,
        inner: &Range<usize>,
        packed: &mut [f32],
        mut sums: Option<(Level, &mut [f32])>,
    ) -> LeftBlock {
        assert_eq!(matrix.row, 1, "rows lie side by side");
        let start = packed.as_ptr();
        for (depth, p) in inner.clone().enumerate() {
            let column = &matrix.data[p * matrix.step + rows.start..p * matrix.step + rows.end];
            if let Some((level, sums)) = &mut sums {
                add_to(*level, sums, column);
            }
            for (group, rows) in column.chunks(M::ROWS).enumerate() {
                let packed = &mut packed[(group * inner.len() + depth) * M::ROWS..];
                if rows.len() == M::ROWS {
                    // The length is a constant here, so that this is a few moves, not a call.
                    packed[..M::ROWS].copy_from_slice(&rows[..M::ROWS]);
                } else {
                    packed[..rows.len()].copy_from_slice(rows);
                }
            }
        }
        LeftBlock { start, pitch: inner.len(), row: 1, step: M::ROWS }
    }

    /// The rows from this one on, which begins a group.
    pub(crate) fn rows_from(&self, row: usize) -> Left {
        Left { start: self.start.wrapping_add(row * self.pitch), row: self.row, step: self.step }
    }
}

/// Copies a block of the right operand into panels of `M::COLUMNS` columns, the last one filled up with zeros.
pub(crate) fn pack_right<M: Micro>(
    matrix: &Matrix,
    inner: Range<usize>,
    columns: Range<usize>,
    packed: &mut [f32],
) {
    let panel_len = inner.len() * M::COLUMNS;
    for (panel, first) in columns.clone().step_by(M::COLUMNS).enumerate() {
        let count = M::COLUMNS.min(columns.end - first);
        let panel = &mut packed[panel * panel_len..(panel + 1) * panel_len];
        if count < M::COLUMNS {
            panel.fill(0.0);
        }
        if matrix.step != 1 {
            transpose::<M>(matrix, inner.clone(), first..first + count, panel);
        }
    }
    if matrix.step != 1 {
        return;
    }
    for (depth, p) in inner.enumerate() {
        for (panel, first) in columns.clone().step_by(M::COLUMNS).enumerate() {
            let (from, to) = (first + p * matrix.row, panel * panel_len + depth * M::COLUMNS);
            let count = M::COLUMNS.min(columns.end - first);
            if count == M::COLUMNS {
                packed[to..to + M::COLUMNS].copy_from_slice(&matrix.data[from..from + M::COLUMNS]);
            } else {
                packed[to..to + count].copy_from_slice(&matrix.data[from..from + count]);
            }
        }
    }
}

/// Packs columns that lie along memory: whole squares in registers, what is left over one by one.
fn transpose<M: Micro>(matrix: &Matrix, inner: Range<usize>, columns: Range<usize>, panel: &mut [f32]) {
    let across = columns.len() / M::SQUARE * M::SQUARE;
    let along = if matrix.row == 1 { inner.len() / M::SQUARE * M::SQUARE } else { 0 };
    for d in (0..along).step_by(M::SQUARE) {
        for c in (0..across).step_by(M::SQUARE) {
            let place = (columns.start + c) * matrix.step + inner.start + d;
            let from = &matrix.data[place..place + (M::SQUARE - 1) * matrix.step + M::SQUARE];
            let to = &mut panel[d * M::COLUMNS + c..];
            assert!(to.len() >= (M::SQUARE - 1) * M::COLUMNS + M::SQUARE, "a panel holds whole squares");
            // SAFETY: both squares are in bounds, and a product is computed with the machine's instructions.
            #[allow(unsafe_code)]
            unsafe {
                M::transpose(from.as_ptr(), matrix.step, to.as_mut_ptr(), M::COLUMNS);
            }
        }
    }
    for c in 0..columns.len() {
        let place = (columns.start + c) * matrix.step + inner.start * matrix.row;
        for d in if c < across { along } else { 0 }..inner.len() {
            panel[d * M::COLUMNS + c] = matrix.data[place + d * matrix.row];
        }
    }
}
