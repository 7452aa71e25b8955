//! Operands laid out in the order in which a register tile reads them.

use std::ops::Range;

use super::{Left, Matrix, Micro};
use crate::device::cpu::kernels::elementwise::add_to;
use crate::device::cpu::kernels::simd::Level;

/// A block of the left operand in groups of a tile's rows.
#[derive(Clone, Copy)]
pub(crate) struct PackedLeft {
    start: *const f32,
    /// Elements of one row of the block.
    k: usize,
    row: usize,
    step: usize,
}

impl PackedLeft {
    /// The rows from this one on, which begins a group.
    pub(crate) fn rows_from(&self, row: usize) -> Left {
        Left { start: self.start.wrapping_add(row * self.k), row: self.row, step: self.step }
    }
}

/// Copies a block of the left operand, keeping the order that it has in memory: only its strides become short.
/// What is copied is also added to `sums`, one for each row, if they are wanted.
pub(crate) fn pack_left<M: Micro>(
    matrix: &Matrix,
    rows: Range<usize>,
    inner: Range<usize>,
    packed: &mut [f32],
    mut sums: Option<(Level, &mut [f32])>,
) -> PackedLeft {
    let k = inner.len();
    let start = packed.as_ptr();
    if matrix.step == 1 {
        for (row, packed) in rows.zip(packed.chunks_exact_mut(k)) {
            let place = row * matrix.row;
            packed.copy_from_slice(&matrix.data[place + inner.start..place + inner.end]);
        }
        assert!(sums.is_none(), "only rows that lie side by side are summed");
        return PackedLeft { start, k, row: k, step: 1 };
    }
    for (depth, p) in inner.enumerate() {
        if let Some((level, sums)) = &mut sums {
            debug_assert_eq!(matrix.row, 1);
            let place = p * matrix.step;
            add_to(*level, sums, &matrix.data[place + rows.start..place + rows.end]);
        }
        for (group, first) in rows.clone().step_by(M::ROWS).enumerate() {
            let (from, to) = (first * matrix.row + p * matrix.step, (group * k + depth) * M::ROWS);
            let count = M::ROWS.min(rows.end - first);
            if matrix.row == 1 && count == M::ROWS {
                // The length is a constant here, so that this is a few moves, not a call.
                packed[to..to + M::ROWS].copy_from_slice(&matrix.data[from..from + M::ROWS]);
            } else {
                for index in 0..count {
                    packed[to + index] = matrix.data[from + index * matrix.row];
                }
            }
        }
    }
    PackedLeft { start, k, row: 1, step: M::ROWS }
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
