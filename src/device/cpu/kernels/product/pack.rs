//! Operands laid out in the order in which a register tile reads them.

use std::ops::Range;

use super::{Block, Left, Matrix, Micro, ROW_BLOCK};
use crate::device::cpu::kernels::elementwise::add_to;
use crate::device::cpu::kernels::number::Number;
use crate::device::cpu::kernels::simd::Level;
use crate::ops::DType;

/// Numbers that are widened at a time: a multiple of all tiles' columns.
const WIDENED: usize = 2048;
/// Of each column where columns are widened side by side.
const DEPTH: usize = 128;

/// How many columns ahead of their use an operand is asked for.
const AHEAD: usize = 8;

/// Asks for memory that is read soon: often another core wrote it.
fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, whatever the address.
    #[allow(unsafe_code)]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// A block of the left operand, to be read in groups of a tile's rows.
#[derive(Clone, Copy)]
pub(super) struct LeftBlock {
    start: *const f32,
    /// Elements from where one row begins to where the next one does, at the beginnings of groups.
    pitch: usize,
    row: usize,
    step: usize,
}

impl LeftBlock {
    /// Rows that lie along memory: tiles read them where they are.
    pub(super) fn in_place(matrix: &Matrix, block: &Block) -> LeftBlock {
        assert_eq!(matrix.step, 1, "rows lie along memory");
        let start = matrix.data[block.rows.start * matrix.row + block.inner.start..].as_ptr();
        LeftBlock { start, pitch: matrix.row, row: matrix.row, step: 1 }
    }

    /// Rows that lie along memory, in f32.
    pub(super) fn widened<T: Number>(
        matrix: &Matrix<T>,
        block: &Block,
        level: Level,
        wide: &mut [f32],
    ) -> LeftBlock {
        assert_eq!(matrix.step, 1, "rows lie along memory");
        let (start, len) = (wide.as_ptr(), block.inner.len());
        for (row, wide) in block.rows.clone().zip(wide.chunks_exact_mut(len)) {
            let place = row * matrix.row + block.inner.start;
            T::widen(level, &matrix.data[place..place + len], wide);
        }
        LeftBlock { start, pitch: len, row: len, step: 1 }
    }

    /// Rows that lie side by side in memory are copied: a tile would touch a page for every few elements. What is
    /// copied is also added to `sums`, one for each row, if they are wanted.
    pub(super) fn packed<M: Micro, T: Number>(
        matrix: &Matrix<T>,
        block: &Block,
        level: Level,
        packed: &mut [f32],
        mut sums: Option<&mut [f32]>,
    ) -> LeftBlock {
        assert_eq!(matrix.row, 1, "rows lie side by side");
        let start = packed.as_ptr();
        let Block { rows, inner, .. } = block;
        let mut wide = [0.0; ROW_BLOCK];
        for (depth, p) in inner.clone().enumerate() {
            let column = &matrix.data[p * matrix.step + rows.start..p * matrix.step + rows.end];
            for line in (0..rows.len()).step_by(64 / size_of::<T>()) {
                prefetch(matrix.data.as_ptr().wrapping_add((p + AHEAD) * matrix.step + rows.start + line));
            }
            let column = T::widened(level, column, &mut wide);
            if let Some(sums) = &mut sums {
                add_to(level, sums, column);
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

    /// Rows in groups that are laid out in a way of their own, this many elements for each row.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn of_tiles(start: *const f32, pitch: usize) -> LeftBlock {
        LeftBlock { start, pitch, row: 0, step: 0 }
    }

    /// The rows from this one on, which begins a group.
    pub(super) fn rows_from(&self, row: usize) -> Left {
        Left { start: self.start.wrapping_add(row * self.pitch), row: self.row, step: self.step }
    }
}

/// Copies a block of the right operand into panels of `M::COLUMNS` columns, the last one filled up with zeros.
pub(crate) fn pack_right<M: Micro, T: Number>(
    level: Level,
    matrix: &Matrix<T>,
    inner: Range<usize>,
    columns: Range<usize>,
    packed: &mut [f32],
) {
    let panel_len = inner.len() * M::COLUMNS;
    for (panel, first) in columns.clone().step_by(M::COLUMNS).enumerate() {
        let columns = first..columns.end.min(first + M::COLUMNS);
        let panel = &mut packed[panel * panel_len..(panel + 1) * panel_len];
        if columns.len() < M::COLUMNS {
            panel.fill(0.0);
        }
        if matrix.step != 1 {
            match matrix.as_f32() {
                Some(matrix) => transpose::<M>(&matrix, inner.clone(), columns, panel),
                None => transpose_widened::<M, T>(level, matrix, inner.clone(), columns, panel),
            }
        }
    }
    if matrix.step != 1 {
        return;
    }
    let mut wide = [0.0; WIDENED];
    let longest = if T::DTYPE == DType::F32 { columns.len().max(1) } else { WIDENED };
    for (depth, p) in inner.enumerate() {
        for strip in columns.clone().step_by(longest) {
            let strip = strip..columns.end.min(strip + longest);
            let row = &matrix.data[strip.start + p * matrix.row..strip.end + p * matrix.row];
            let to = (strip.start - columns.start) / M::COLUMNS * panel_len + depth * M::COLUMNS;
            for (panel, row) in T::widened(level, row, &mut wide).chunks(M::COLUMNS).enumerate() {
                let packed = &mut packed[to + panel * panel_len..];
                if row.len() == M::COLUMNS {
                    // The length is a constant here, as above.
                    packed[..M::COLUMNS].copy_from_slice(&row[..M::COLUMNS]);
                } else {
                    packed[..row.len()].copy_from_slice(row);
                }
            }
        }
    }
}

/// Packs columns of 16-bit numbers that lie along memory: a few of them in f32 at a time.
fn transpose_widened<M: Micro, T: Number>(
    level: Level,
    matrix: &Matrix<T>,
    inner: Range<usize>,
    columns: Range<usize>,
    panel: &mut [f32],
) {
    assert_eq!(matrix.row, 1, "columns lie along memory");
    const { assert!(M::SQUARE * DEPTH <= WIDENED) };
    let mut wide = [0.0; WIDENED];
    for first in columns.clone().step_by(M::SQUARE) {
        let count = M::SQUARE.min(columns.end - first);
        for start in inner.clone().step_by(DEPTH) {
            let depth = DEPTH.min(inner.end - start);
            for (column, wide) in (first..first + count).zip(wide.chunks_exact_mut(DEPTH)) {
                let place = column * matrix.step + start;
                T::widen(level, &matrix.data[place..place + depth], &mut wide[..depth]);
            }
            let corner = (start - inner.start) * M::COLUMNS + first - columns.start;
            let strip = Matrix { data: &wide, row: 1, step: DEPTH };
            transpose::<M>(&strip, 0..depth, 0..count, &mut panel[corner..]);
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
