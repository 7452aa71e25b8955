//! Micro-kernels: the innermost loop of a matmul on register tiles, for each instruction set.
#![allow(unsafe_code)] // Reads and writes through pointers; the callers guarantee the bounds.

use super::packed_element::{F32Element, PackedElement};

/// Rows of the left operand: element (r, k) is at `start + r * row_stride + k * inner_stride`.
#[derive(Clone, Copy)]
pub(crate) struct LeftRows {
    pub(crate) start: *const f32,
    pub(crate) row_stride: usize,
    pub(crate) inner_stride: usize,
}

/// The destination of a tile: `c = product + addend + bias`.
#[derive(Clone, Copy)]
pub(crate) struct Sink {
    pub(crate) c: *mut f32,
    pub(crate) row_stride: usize,
    /// Another matrix, c itself, or null.
    pub(crate) addend: *const f32,
    pub(crate) addend_row_stride: usize,
    /// One element per column, or null.
    pub(crate) bias: *const f32,
}

impl Sink {
    /// Accumulates into `c`, or overwrites it.
    pub(crate) fn plain(c: *mut f32, row_stride: usize, accumulate: bool) -> Sink {
        let addend = if accumulate { c.cast_const() } else { std::ptr::null() };
        Sink { c, row_stride, addend, addend_row_stride: row_stride, bias: std::ptr::null() }
    }

    /// # Safety
    ///
    /// The columns before `columns` exist.
    pub(crate) unsafe fn columns_from(mut self, columns: usize) -> Sink {
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.c = self.c.add(columns);
            if !self.addend.is_null() {
                self.addend = self.addend.add(columns);
            }
            if !self.bias.is_null() {
                self.bias = self.bias.add(columns);
            }
        }
        self
    }

    /// # Safety
    ///
    /// The rows before `rows` exist.
    pub(crate) unsafe fn rows_from(mut self, rows: usize) -> Sink {
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.c = self.c.add(rows * self.row_stride);
            if !self.addend.is_null() {
                self.addend = self.addend.add(rows * self.addend_row_stride);
            }
        }
        self
    }

    /// Writes `rows` x `columns` elements of a tile with rows of `width` elements.
    ///
    /// # Safety
    ///
    /// `c` and the addend have `rows` x `columns` elements, and the bias has `columns`.
    pub(super) unsafe fn write(&self, tile: &[f32], width: usize, rows: usize, columns: usize) {
        for r in 0..rows {
            for column in 0..columns {
                let mut value = tile[r * width + column];
                // SAFETY: in bounds, guaranteed by the caller.
                unsafe {
                    if !self.addend.is_null() {
                        value += *self.addend.add(r * self.addend_row_stride + column);
                    }
                    if !self.bias.is_null() {
                        value += *self.bias.add(column);
                    }
                    *self.c.add(r * self.row_stride + column) = value;
                }
            }
        }
    }
}

/// A micro-kernel for a tile of `ROWS` x `COLUMNS` sums in registers.
pub(crate) trait MicroKernel {
    /// The elements that it multiplies; k counts these.
    type Element: PackedElement;
    const ROWS: usize;
    const COLUMNS: usize;
    /// Side of the square that is transposed in registers.
    const TRANSPOSE_SIZE: usize;

    /// `to[d, c] = from[c, d]` for a whole square, with row strides `from_row` and `to_row`.
    ///
    /// # Safety
    ///
    /// The machine supports the instruction set, and both squares are in bounds.
    unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize);

    /// Multiplies `rows <= ROWS` rows of the left operand by a packed panel of `k` rows of `COLUMNS` elements and
    /// writes the first `columns` columns. Each element is summed over k in order, for any `rows` and `columns`.
    ///
    /// # Safety
    ///
    /// The machine supports the instruction set, and all operands are in bounds.
    unsafe fn tile(rows: usize, columns: usize, k: usize, left: LeftRows, panel: *const f32, sink: Sink);
}

/// Multiplies at most `M::ROWS` rows by panels of the right operand, `panel_len` elements apart.
///
/// # Safety
///
/// All operands are in bounds, no other thread writes these elements of the result, and the machine supports the
/// instruction set.
pub(crate) unsafe fn panels<M: MicroKernel>(
    rows: usize,
    columns: usize,
    k: usize,
    left: LeftRows,
    right: *const f32,
    panel_len: usize,
    sink: Sink,
) {
    for (index, column) in (0..columns).step_by(M::COLUMNS).enumerate() {
        // SAFETY: guaranteed by the caller.
        unsafe {
            M::tile(
                rows,
                M::COLUMNS.min(columns - column),
                k,
                left,
                right.add(index * panel_len),
                sink.columns_from(column),
            );
        }
    }
}

/// Calls `$tile::<R>` for the constant R that equals `$rows`.
macro_rules! for_rows {
    ($rows:expr, $tile:ident $args:tt, [$($r:literal)*]) => {
        match $rows {
            $($r => $tile::<$r> $args,)*
            _ => unreachable!("a tile has no more rows than registers"),
        }
    };
}

pub(crate) struct Portable;

impl MicroKernel for Portable {
    type Element = F32Element;
    const ROWS: usize = 6;
    const COLUMNS: usize = 8;
    const TRANSPOSE_SIZE: usize = 4;

    unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        for column in 0..Portable::TRANSPOSE_SIZE {
            for depth in 0..Portable::TRANSPOSE_SIZE {
                // SAFETY: guaranteed by the caller.
                unsafe { *to.add(depth * to_row + column) = *from.add(column * from_row + depth) };
            }
        }
    }

    unsafe fn tile(rows: usize, columns: usize, k: usize, left: LeftRows, panel: *const f32, sink: Sink) {
        // SAFETY: guaranteed by the caller.
        unsafe { for_rows!(rows, portable(columns, k, left, panel, sink), [1 2 3 4 5 6]) }
    }
}

unsafe fn portable<const R: usize>(columns: usize, k: usize, left: LeftRows, panel: *const f32, sink: Sink) {
    const WIDTH: usize = Portable::COLUMNS;
    let mut sums = [[0.0f32; WIDTH]; R];
    for p in 0..k {
        // SAFETY: a panel has k rows of WIDTH elements.
        let b = unsafe { &*panel.add(p * WIDTH).cast::<[f32; WIDTH]>() };
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the left operand has R rows of k elements.
            let a = unsafe { *left.start.add(r * left.row_stride + p * left.inner_stride) };
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    // SAFETY: guaranteed by the caller.
    unsafe { sink.write(sums.as_flattened(), WIDTH, R, columns) }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::transpose_16;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512, Avx512Bf16};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::packed_element::Bf16Pair;
    use super::{F32Element, LeftRows, MicroKernel, Sink};

    /// Rows that share a base address: their offsets from it are 0, 1 and 2 row strides, which an addressing mode can
    /// encode, so that a tile needs few registers for the addresses of its left operand.
    const GROUP: usize = 3;

    /// Defines the micro-kernel of one instruction set.
    macro_rules! tile {
        ($name:ident, $feature:literal, $vector:ty, $lanes:literal, $vectors:literal, $max_rows:literal,
         $zero:ident, $broadcast:ident, $load:ident, $store:ident, $add:ident, $fma:ident) => {
            #[target_feature(enable = $feature)]
            unsafe fn $name<const R: usize>(
                columns: usize,
                k: usize,
                left: LeftRows,
                panel: *const f32,
                sink: Sink,
            ) {
                const WIDTH: usize = $lanes * $vectors;
                let mut sums: [[$vector; $vectors]; R] = [[$zero(); $vectors]; R];
                let mut bases: [*const f32; R] =
                    std::array::from_fn(|group| left.start.wrapping_add(group * GROUP * left.row_stride));
                for r in 0..R {
                    for v in 0..$vectors {
                        // Prefetch the result, which is often not in the cache, for the end of the loop.
                        let c = sink.c.wrapping_add(r * sink.row_stride + v * $lanes);
                        _mm_prefetch::<_MM_HINT_T0>(c.cast_const().cast());
                    }
                }
                let mut panel = panel;
                for _ in 0..k {
                    // SAFETY: a panel has k rows of WIDTH elements, and the left operand has R rows of k elements.
                    unsafe {
                        let b: [$vector; $vectors] = std::array::from_fn(|v| $load(panel.add(v * $lanes)));
                        for r in 0..R {
                            let a = $broadcast(*bases[r / GROUP].add(r % GROUP * left.row_stride));
                            for v in 0..$vectors {
                                sums[r][v] = $fma(a, b[v], sums[r][v]);
                            }
                        }
                    }
                    panel = panel.wrapping_add(WIDTH);
                    for base in &mut bases[..R.div_ceil(GROUP)] {
                        *base = base.wrapping_add(left.inner_stride);
                    }
                }
                if columns < WIDTH {
                    let mut tile = [0.0f32; $max_rows * WIDTH];
                    for r in 0..R {
                        for v in 0..$vectors {
                            // SAFETY: the buffer has at least R rows.
                            unsafe { $store(tile.as_mut_ptr().add(r * WIDTH + v * $lanes), sums[r][v]) };
                        }
                    }
                    // SAFETY: guaranteed by the caller.
                    return unsafe { sink.write(&tile, WIDTH, R, columns) };
                }
                for r in 0..R {
                    for v in 0..$vectors {
                        // SAFETY: all WIDTH columns of R rows exist.
                        unsafe {
                            let mut value = sums[r][v];
                            if !sink.addend.is_null() {
                                let addend = sink.addend.add(r * sink.addend_row_stride + v * $lanes);
                                value = $add(value, $load(addend));
                            }
                            if !sink.bias.is_null() {
                                value = $add(value, $load(sink.bias.add(v * $lanes)));
                            }
                            $store(sink.c.add(r * sink.row_stride + v * $lanes), value);
                        }
                    }
                }
            }
        };
    }

    tile!(
        avx512,
        "avx512f",
        __m512,
        16,
        2,
        12,
        _mm512_setzero_ps,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_add_ps,
        _mm512_fmadd_ps
    );
    tile!(
        avx512_bf16,
        "avx512f,avx512bf16",
        __m512,
        16,
        2,
        12,
        _mm512_setzero_ps,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_add_ps,
        add_product_of_pairs
    );
    tile!(
        avx2,
        "avx2,fma",
        __m256,
        8,
        2,
        6,
        _mm256_setzero_ps,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_add_ps,
        _mm256_fmadd_ps
    );

    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn add_product_of_pairs(a: __m512, b: __m512, sums: __m512) -> __m512 {
        // SAFETY: any bits are valid pairs.
        let [a, b] = [a, b].map(|pairs| unsafe { std::mem::transmute::<__m512, __m512bh>(pairs) });
        _mm512_dpbf16_ps(sums, a, b)
    }

    /// Interleaves pairs, then quads of elements within quarters of 128 bits, then permutes the quarters.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn transpose_16(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        // SAFETY: guaranteed by the caller.
        let rows: [__m512; 16] = std::array::from_fn(|r| unsafe { _mm512_loadu_ps(from.add(r * from_row)) });
        let pairs: [__m512; 16] = std::array::from_fn(|r| {
            let (a, b) = (rows[r / 4 * 4 + r % 2 * 2], rows[r / 4 * 4 + r % 2 * 2 + 1]);
            if r % 4 < 2 { _mm512_unpacklo_ps(a, b) } else { _mm512_unpackhi_ps(a, b) }
        });
        // quads[4 g + d]: in each quarter q, element 4 q + d of rows 4 g to 4 g + 3.
        let quads: [__m512; 16] = std::array::from_fn(|r| {
            let (group, depth) = (r / 4 * 4, r % 4);
            let (a, b) = (pairs[group + depth / 2 * 2], pairs[group + depth / 2 * 2 + 1]);
            if depth % 2 == 0 {
                _mm512_shuffle_ps::<0b01_00_01_00>(a, b)
            } else {
                _mm512_shuffle_ps::<0b11_10_11_10>(a, b)
            }
        });
        for depth in 0..4 {
            let [a, b, c, d] = [quads[depth], quads[4 + depth], quads[8 + depth], quads[12 + depth]];
            let low =
                [_mm512_shuffle_f32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_f32x4::<0b01_00_01_00>(c, d)];
            let high =
                [_mm512_shuffle_f32x4::<0b11_10_11_10>(a, b), _mm512_shuffle_f32x4::<0b11_10_11_10>(c, d)];
            let quarters = [
                _mm512_shuffle_f32x4::<0b10_00_10_00>(low[0], low[1]),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(low[0], low[1]),
                _mm512_shuffle_f32x4::<0b10_00_10_00>(high[0], high[1]),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(high[0], high[1]),
            ];
            for (quarter, column) in quarters.into_iter().enumerate() {
                // SAFETY: guaranteed by the caller.
                unsafe { _mm512_storeu_ps(to.add((4 * quarter + depth) * to_row), column) };
            }
        }
    }

    /// As `transpose_16`, with halves instead of quarters.
    #[target_feature(enable = "avx")]
    unsafe fn transpose_8(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        // SAFETY: guaranteed by the caller.
        let rows: [__m256; 8] = std::array::from_fn(|r| unsafe { _mm256_loadu_ps(from.add(r * from_row)) });
        let pairs: [__m256; 8] = std::array::from_fn(|r| {
            let (a, b) = (rows[r / 4 * 4 + r % 2 * 2], rows[r / 4 * 4 + r % 2 * 2 + 1]);
            if r % 4 < 2 { _mm256_unpacklo_ps(a, b) } else { _mm256_unpackhi_ps(a, b) }
        });
        let quads: [__m256; 8] = std::array::from_fn(|r| {
            let (group, depth) = (r / 4 * 4, r % 4);
            let (a, b) = (pairs[group + depth / 2 * 2], pairs[group + depth / 2 * 2 + 1]);
            if depth % 2 == 0 {
                _mm256_shuffle_ps::<0b01_00_01_00>(a, b)
            } else {
                _mm256_shuffle_ps::<0b11_10_11_10>(a, b)
            }
        });
        for depth in 0..4 {
            let (a, b) = (quads[depth], quads[4 + depth]);
            // SAFETY: guaranteed by the caller.
            unsafe {
                _mm256_storeu_ps(to.add(depth * to_row), _mm256_permute2f128_ps::<0x20>(a, b));
                _mm256_storeu_ps(to.add((4 + depth) * to_row), _mm256_permute2f128_ps::<0x31>(a, b));
            }
        }
    }

    pub(crate) struct Avx512;

    impl MicroKernel for Avx512 {
        type Element = F32Element;
        const ROWS: usize = 12;
        const COLUMNS: usize = 32;
        const TRANSPOSE_SIZE: usize = 16;

        unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
            // SAFETY: guaranteed by the caller.
            unsafe { transpose_16(from, from_row, to, to_row) }
        }

        unsafe fn tile(rows: usize, columns: usize, k: usize, left: LeftRows, panel: *const f32, sink: Sink) {
            // SAFETY: guaranteed by the caller.
            unsafe { for_rows!(rows, avx512(columns, k, left, panel, sink), [1 2 3 4 5 6 7 8 9 10 11 12]) }
        }
    }

    /// Multiplies pairs of bf16 exactly and accumulates in f32: the second product, then the first. Subnormal numbers
    /// of either type count as zero.
    pub(crate) struct Avx512Bf16;

    impl MicroKernel for Avx512Bf16 {
        type Element = Bf16Pair;
        const ROWS: usize = Avx512::ROWS;
        const COLUMNS: usize = Avx512::COLUMNS;
        const TRANSPOSE_SIZE: usize = Avx512::TRANSPOSE_SIZE;

        unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
            // SAFETY: guaranteed by the caller.
            unsafe { transpose_16(from, from_row, to, to_row) }
        }

        unsafe fn tile(rows: usize, columns: usize, k: usize, left: LeftRows, panel: *const f32, sink: Sink) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                for_rows!(rows, avx512_bf16(columns, k, left, panel, sink), [1 2 3 4 5 6 7 8 9 10 11 12]);
            }
        }
    }

    pub(crate) struct Avx2;

    impl MicroKernel for Avx2 {
        type Element = F32Element;
        const ROWS: usize = 6;
        const COLUMNS: usize = 16;
        const TRANSPOSE_SIZE: usize = 8;

        unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
            // SAFETY: guaranteed by the caller.
            unsafe { transpose_8(from, from_row, to, to_row) }
        }

        unsafe fn tile(rows: usize, columns: usize, k: usize, left: LeftRows, panel: *const f32, sink: Sink) {
            // SAFETY: guaranteed by the caller.
            unsafe { for_rows!(rows, avx2(columns, k, left, panel, sink), [1 2 3 4 5 6]) }
        }
    }
}
