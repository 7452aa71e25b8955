//! Packing of operands into the order in which a register tile reads them.

use std::ops::Range;

use super::{Block, LeftRows, Matrix, MicroKernel, PackedElement, ROW_BLOCK, blocks};
use crate::cpu::kernels::float::Float;
use crate::cpu::kernels::simd::Level;
use ops::DType;

/// Elements per buffer of converted elements: a multiple of every tile's columns.
const BUFFER: usize = 2048;
/// Elements per column in such a buffer, if columns are converted one by one.
const DEPTH: usize = 128;

/// Prefetch distance along the inner dimension, in elements.
const PREFETCH_DISTANCE: usize = 8;

/// Prefetches memory that is read soon, often from another core's cache.
fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is valid.
    #[allow(unsafe_code)]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// A block of the left operand, read in groups of a tile's rows.
#[derive(Clone, Copy)]
pub(super) struct LeftBlock {
    start: *const f32,
    /// Elements per row between the starts of groups.
    pitch: usize,
    /// Strides within a group.
    row_stride: usize,
    inner_stride: usize,
}

impl LeftBlock {
    /// A row-major matrix of elements that tiles read in place, without packing.
    pub(super) fn in_place<E: PackedElement>(matrix: &Matrix, block: &Block) -> LeftBlock {
        assert_eq!(matrix.column_stride, 1, "the matrix is row-major");
        let start =
            matrix.data[block.rows.start * matrix.row_stride + block.inner.start / E::DEPTH..].as_ptr();
        LeftBlock { start, pitch: matrix.row_stride, row_stride: matrix.row_stride, inner_stride: 1 }
    }

    /// Packs a block of a row-major matrix.
    pub(super) fn pack_row_major<E: PackedElement, T: Float>(
        matrix: &Matrix<T>,
        block: &Block,
        level: Level,
        packed: &mut [f32],
    ) -> LeftBlock {
        let (start, len) = (packed.as_ptr(), block.inner.len().div_ceil(E::DEPTH));
        for (row, packed) in block.rows.clone().zip(packed.chunks_exact_mut(len)) {
            E::pack_row(level, matrix.row_range(row, block.inner.clone()), packed);
        }
        LeftBlock { start, pitch: len, row_stride: len, inner_stride: 1 }
    }

    /// Packs a block of a column-major matrix: reading it in place, a tile would touch a page for every few elements.
    /// Adds each row's elements to its sum in `sums`, if given.
    pub(super) fn pack_column_major<M: MicroKernel, T: Float>(
        matrix: &Matrix<T>,
        block: &Block,
        level: Level,
        packed: &mut [f32],
        mut sums: Option<&mut [f32]>,
    ) -> LeftBlock {
        let Block { rows, inner, .. } = block;
        let (start, len) = (packed.as_ptr(), inner.len().div_ceil(M::Element::DEPTH));
        let matrix = matrix.transposed();
        let mut buffer = [0.0; ROW_BLOCK];
        for (depth, p) in blocks(inner.clone(), M::Element::DEPTH).enumerate() {
            for p in p.clone().map(|p| p + PREFETCH_DISTANCE * M::Element::DEPTH) {
                for line in (0..rows.len()).step_by(64 / size_of::<T>()) {
                    prefetch(matrix.data.as_ptr().wrapping_add(p * matrix.row_stride + rows.start + line));
                }
            }
            let column = M::Element::pack_columns(level, &matrix, p, rows.clone(), &mut buffer);
            if let Some(sums) = &mut sums {
                M::Element::add_to(level, sums, column);
            }
            for (group, rows) in column.chunks(M::ROWS).enumerate() {
                let packed = &mut packed[(group * len + depth) * M::ROWS..];
                if rows.len() == M::ROWS {
                    // A constant length compiles to a few moves instead of a call.
                    packed[..M::ROWS].copy_from_slice(&rows[..M::ROWS]);
                } else {
                    packed[..rows.len()].copy_from_slice(rows);
                }
            }
        }
        LeftBlock { start, pitch: len, row_stride: 1, inner_stride: M::ROWS }
    }

    /// Groups in the layout of matrix units, with `pitch` elements per row.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn from_tiles(start: *const f32, pitch: usize) -> LeftBlock {
        LeftBlock { start, pitch, row_stride: 0, inner_stride: 0 }
    }

    /// The rows from `row` on, which is the first one of a group.
    pub(super) fn rows_from(&self, row: usize) -> LeftRows {
        LeftRows {
            start: self.start.wrapping_add(row * self.pitch),
            row_stride: self.row_stride,
            inner_stride: self.inner_stride,
        }
    }
}

/// Packs a block of the right operand into panels of `M::COLUMNS` columns, the last one padded with zeros.
pub(crate) fn pack_right<M: MicroKernel, T: Float>(
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
        if matrix.column_stride != 1 {
            let matrix = matrix.transposed();
            match M::Element::in_place(&matrix, &inner) {
                Some(matrix) => {
                    let start = inner.start / M::Element::DEPTH;
                    let inner = start..start + panel_len / M::COLUMNS;
                    transpose::<M>(&matrix.transposed(), inner, columns, panel);
                }
                None => convert_and_transpose::<M, T>(level, &matrix, inner.clone(), columns, panel),
            }
        }
    }
    if matrix.column_stride != 1 {
        return;
    }
    let mut buffer = [0.0; BUFFER];
    let longest = if T::DTYPE == DType::F32 { columns.len().max(1) } else { BUFFER };
    for (depth, p) in blocks(inner, M::Element::DEPTH).enumerate() {
        for strip in blocks(columns.clone(), longest) {
            let to = (strip.start - columns.start) / M::COLUMNS * panel_len + depth * M::COLUMNS;
            let row = M::Element::pack_columns(level, matrix, p.clone(), strip, &mut buffer);
            for (panel, row) in row.chunks(M::COLUMNS).enumerate() {
                let packed = &mut packed[to + panel * panel_len..];
                if row.len() == M::COLUMNS {
                    // A constant length, as above.
                    packed[..M::COLUMNS].copy_from_slice(&row[..M::COLUMNS]);
                } else {
                    packed[..row.len()].copy_from_slice(row);
                }
            }
        }
    }
}

/// Packs a column-major right operand, given as its transpose `matrix`: converts some columns at a time to elements,
/// then transposes them.
fn convert_and_transpose<M: MicroKernel, T: Float>(
    level: Level,
    matrix: &Matrix<T>,
    inner: Range<usize>,
    columns: Range<usize>,
    panel: &mut [f32],
) {
    const { assert!(M::TRANSPOSE_SIZE * DEPTH <= BUFFER) };
    let mut buffer = [0.0; BUFFER];
    for square in blocks(columns.clone(), M::TRANSPOSE_SIZE) {
        for (strip, inner) in blocks(inner.clone(), DEPTH * M::Element::DEPTH).enumerate() {
            let depth = inner.len().div_ceil(M::Element::DEPTH);
            for (column, buffer) in square.clone().zip(buffer.chunks_exact_mut(DEPTH)) {
                M::Element::pack_row(level, matrix.row_range(column, inner.clone()), &mut buffer[..depth]);
            }
            let corner = strip * DEPTH * M::COLUMNS + square.start - columns.start;
            let strip = Matrix { data: &buffer, row_stride: 1, column_stride: DEPTH };
            transpose::<M>(&strip, 0..depth, 0..square.len(), &mut panel[corner..]);
        }
    }
}

/// Packs a column-major matrix of elements: whole squares in registers, the remainder element by element.
fn transpose<M: MicroKernel>(matrix: &Matrix, inner: Range<usize>, columns: Range<usize>, panel: &mut [f32]) {
    let across = columns.len() / M::TRANSPOSE_SIZE * M::TRANSPOSE_SIZE;
    let along = if matrix.row_stride == 1 { inner.len() / M::TRANSPOSE_SIZE * M::TRANSPOSE_SIZE } else { 0 };
    for d in (0..along).step_by(M::TRANSPOSE_SIZE) {
        for c in (0..across).step_by(M::TRANSPOSE_SIZE) {
            let offset = (columns.start + c) * matrix.column_stride + inner.start + d;
            let from = &matrix.data
                [offset..offset + (M::TRANSPOSE_SIZE - 1) * matrix.column_stride + M::TRANSPOSE_SIZE];
            let to = &mut panel[d * M::COLUMNS + c..];
            assert!(
                to.len() >= (M::TRANSPOSE_SIZE - 1) * M::COLUMNS + M::TRANSPOSE_SIZE,
                "a panel holds whole squares"
            );
            // SAFETY: both squares are in bounds, and M is an instruction set that the machine supports.
            #[allow(unsafe_code)]
            unsafe {
                M::transpose(from.as_ptr(), matrix.column_stride, to.as_mut_ptr(), M::COLUMNS);
            }
        }
    }
    for c in 0..columns.len() {
        let offset = (columns.start + c) * matrix.column_stride + inner.start * matrix.row_stride;
        for d in if c < across { along } else { 0 }..inner.len() {
            panel[d * M::COLUMNS + c] = matrix.data[offset + d * matrix.row_stride];
        }
    }
}
