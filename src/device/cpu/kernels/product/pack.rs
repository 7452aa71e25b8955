//! Operands laid out in the order in which a register tile reads them.

use std::ops::Range;

use super::{Block, Element, Left, Matrix, Micro, ROW_BLOCK, blocks};
use crate::cpu::kernels::float::Float;
use crate::cpu::kernels::simd::Level;
use ops::DType;

/// Elements that are made at a time where memory does not hold them: a multiple of all tiles' columns.
const MADE: usize = 2048;
/// Of each column where elements of columns are made side by side.
const DEPTH: usize = 128;

/// How many elements ahead of their use an operand is asked for.
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
    /// Rows of elements that lie along memory: tiles read them where they are.
    pub(super) fn in_place<E: Element>(matrix: &Matrix, block: &Block) -> LeftBlock {
        assert_eq!(matrix.step, 1, "rows lie along memory");
        let start = matrix.data[block.rows.start * matrix.row + block.inner.start / E::DEPTH..].as_ptr();
        LeftBlock { start, pitch: matrix.row, row: matrix.row, step: 1 }
    }

    /// Rows that lie along memory, as elements.
    pub(super) fn along<E: Element, T: Float>(
        matrix: &Matrix<T>,
        block: &Block,
        level: Level,
        packed: &mut [f32],
    ) -> LeftBlock {
        let (start, len) = (packed.as_ptr(), block.inner.len().div_ceil(E::DEPTH));
        for (row, packed) in block.rows.clone().zip(packed.chunks_exact_mut(len)) {
            E::along(level, matrix.along(row, block.inner.clone()), packed);
        }
        LeftBlock { start, pitch: len, row: len, step: 1 }
    }

    /// Rows that lie side by side in memory are copied: a tile would touch a page for every few elements. What is
    /// copied is also added to `sums`, one for each row, if they are wanted.
    pub(super) fn packed<M: Micro, T: Float>(
        matrix: &Matrix<T>,
        block: &Block,
        level: Level,
        packed: &mut [f32],
        mut sums: Option<&mut [f32]>,
    ) -> LeftBlock {
        let Block { rows, inner, .. } = block;
        let (start, len) = (packed.as_ptr(), inner.len().div_ceil(M::Element::DEPTH));
        let matrix = matrix.transposed();
        let mut made = [0.0; ROW_BLOCK];
        for (depth, p) in blocks(inner.clone(), M::Element::DEPTH).enumerate() {
            for p in p.clone().map(|p| p + AHEAD * M::Element::DEPTH) {
                for line in (0..rows.len()).step_by(64 / size_of::<T>()) {
                    prefetch(matrix.data.as_ptr().wrapping_add(p * matrix.row + rows.start + line));
                }
            }
            let column = M::Element::beside(level, &matrix, p, rows.clone(), &mut made);
            if let Some(sums) = &mut sums {
                M::Element::add_to(level, sums, column);
            }
            for (group, rows) in column.chunks(M::ROWS).enumerate() {
                let packed = &mut packed[(group * len + depth) * M::ROWS..];
                if rows.len() == M::ROWS {
                    // The length is a constant here, so that this is a few moves, not a call.
                    packed[..M::ROWS].copy_from_slice(&rows[..M::ROWS]);
                } else {
                    packed[..rows.len()].copy_from_slice(rows);
                }
            }
        }
        LeftBlock { start, pitch: len, row: 1, step: M::ROWS }
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
pub(crate) fn pack_right<M: Micro, T: Float>(
    level: Level,
    matrix: &Matrix<T>,
    inner: Range<usize>,
    columns: Range<usize>,
    packed: &mut [f32],
) {
    let panel_len = inner.len().div_ceil(M::Element::DEPTH) * M::COLUMNS;
    for (panel, first) in columns.clone().step_by(M::COLUMNS).enumerate() {
        let columns = first..columns.end.min(first + M::COLUMNS);
        let panel = &mut packed[panel * panel_len..(panel + 1) * panel_len];
        if columns.len() < M::COLUMNS {
            panel.fill(0.0);
        }
        if matrix.step != 1 {
            let matrix = matrix.transposed();
            match M::Element::in_place(&matrix, &inner) {
                Some(matrix) => {
                    let start = inner.start / M::Element::DEPTH;
                    let inner = start..start + panel_len / M::COLUMNS;
                    transpose::<M>(&matrix.transposed(), inner, columns, panel);
                }
                None => transpose_made::<M, T>(level, &matrix, inner.clone(), columns, panel),
            }
        }
    }
    if matrix.step != 1 {
        return;
    }
    let mut made = [0.0; MADE];
    let longest = if T::DTYPE == DType::F32 { columns.len().max(1) } else { MADE };
    for (depth, p) in blocks(inner, M::Element::DEPTH).enumerate() {
        for strip in blocks(columns.clone(), longest) {
            let to = (strip.start - columns.start) / M::COLUMNS * panel_len + depth * M::COLUMNS;
            let row = M::Element::beside(level, matrix, p.clone(), strip, &mut made);
            for (panel, row) in row.chunks(M::COLUMNS).enumerate() {
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

/// Packs columns that lie along memory, as the rows of `matrix`: elements of a few of them are made at a time.
fn transpose_made<M: Micro, T: Float>(
    level: Level,
    matrix: &Matrix<T>,
    inner: Range<usize>,
    columns: Range<usize>,
    panel: &mut [f32],
) {
    const { assert!(M::SQUARE * DEPTH <= MADE) };
    let mut made = [0.0; MADE];
    for square in blocks(columns.clone(), M::SQUARE) {
        for (strip, inner) in blocks(inner.clone(), DEPTH * M::Element::DEPTH).enumerate() {
            let depth = inner.len().div_ceil(M::Element::DEPTH);
            for (column, made) in square.clone().zip(made.chunks_exact_mut(DEPTH)) {
                M::Element::along(level, matrix.along(column, inner.clone()), &mut made[..depth]);
            }
            let corner = strip * DEPTH * M::COLUMNS + square.start - columns.start;
            let strip = Matrix { data: &made, row: 1, step: DEPTH };
            transpose::<M>(&strip, 0..depth, 0..square.len(), &mut panel[corner..]);
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
