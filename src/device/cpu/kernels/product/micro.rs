//! Register tiles: the innermost loop of a product, for each instruction set.
#![allow(unsafe_code)] // Reads and writes through pointers that the callers keep in bounds.

/// Rows of the left operand: element (r, k) is at `start + r * row + k * step`.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    pub(crate) start: *const f32,
    pub(crate) row: usize,
    pub(crate) step: usize,
}

/// Where a tile goes: `c = product + from + bias`.
#[derive(Clone, Copy)]
pub(crate) struct Sink {
    pub(crate) c: *mut f32,
    /// Elements between rows of c.
    pub(crate) row: usize,
    /// What the product is added to: elsewhere, c itself or null.
    pub(crate) from: *const f32,
    pub(crate) from_row: usize,
    /// One element for each column, or null.
    pub(crate) bias: *const f32,
}

impl Sink {
    /// # Safety
    ///
    /// The columns before `columns` exist.
    pub(crate) unsafe fn columns_from(mut self, columns: usize) -> Sink {
        // SAFETY: by the caller's promise.
        unsafe {
            self.c = self.c.add(columns);
            if !self.from.is_null() {
                self.from = self.from.add(columns);
            }
            if !self.bias.is_null() {
                self.bias = self.bias.add(columns);
            }
        }
        self
    }

    /// Puts a tile that is narrower than the registers.
    ///
    /// # Safety
    ///
    /// `rows` times `columns` elements of the operands exist, and as many rows of `tile`, `width` apart.
    unsafe fn put(&self, tile: &[f32], width: usize, rows: usize, columns: usize) {
        for r in 0..rows {
            for column in 0..columns {
                let mut value = tile[r * width + column];
                // SAFETY: in bounds by the caller's promise.
                unsafe {
                    if !self.from.is_null() {
                        value += *self.from.add(r * self.from_row + column);
                    }
                    if !self.bias.is_null() {
                        value += *self.bias.add(column);
                    }
                    *self.c.add(r * self.row + column) = value;
                }
            }
        }
    }
}

/// A tile of `ROWS` x `COLUMNS` sums in registers.
pub(crate) trait Micro {
    const ROWS: usize;
    const COLUMNS: usize;

    /// Multiplies `rows <= ROWS` rows of the left operand by a packed panel of `k` rows of `COLUMNS` elements and
    /// puts the first `columns` of them. Each element is a sum over k in order, whatever `rows` and `columns`.
    ///
    /// # Safety
    ///
    /// The machine has the instruction set, and all operands are in bounds.
    unsafe fn tile(rows: usize, columns: usize, k: usize, left: Left, panel: *const f32, sink: Sink);
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

impl Micro for Portable {
    const ROWS: usize = 6;
    const COLUMNS: usize = 8;

    unsafe fn tile(rows: usize, columns: usize, k: usize, left: Left, panel: *const f32, sink: Sink) {
        // SAFETY: the caller's promise is handed on.
        unsafe { for_rows!(rows, portable(columns, k, left, panel, sink), [1 2 3 4 5 6]) }
    }
}

unsafe fn portable<const R: usize>(columns: usize, k: usize, left: Left, panel: *const f32, sink: Sink) {
    const WIDTH: usize = Portable::COLUMNS;
    let mut sums = [[0.0f32; WIDTH]; R];
    for p in 0..k {
        // SAFETY: a panel has k rows of WIDTH elements.
        let b = unsafe { &*panel.add(p * WIDTH).cast::<[f32; WIDTH]>() };
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the left operand has R rows of k elements.
            let a = unsafe { *left.start.add(r * left.row + p * left.step) };
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    // SAFETY: the caller's promise is handed on.
    unsafe { sink.put(sums.as_flattened(), WIDTH, R, columns) }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Left, Micro, Sink};

    /// Rows that share a base address: their distances from it are one and two times the row stride, which an
    /// address can hold, so that a tile needs few registers for its left operand.
    const GROUP: usize = 3;

    /// Defines the tile of one instruction set.
    macro_rules! tile {
        ($name:ident, $feature:literal, $vector:ty, $lanes:literal, $vectors:literal, $max_rows:literal,
         $zero:ident, $broadcast:ident, $load:ident, $store:ident, $add:ident, $fma:ident) => {
            #[target_feature(enable = $feature)]
            unsafe fn $name<const R: usize>(
                columns: usize,
                k: usize,
                left: Left,
                panel: *const f32,
                sink: Sink,
            ) {
                const WIDTH: usize = $lanes * $vectors;
                let mut sums: [[$vector; $vectors]; R] = [[$zero(); $vectors]; R];
                let mut bases: [*const f32; R] =
                    std::array::from_fn(|group| left.start.wrapping_add(group * GROUP * left.row));
                for r in 0..R {
                    for v in 0..$vectors {
                        // The result is often far away, and is wanted when the sums are done.
                        let c = sink.c.wrapping_add(r * sink.row + v * $lanes);
                        _mm_prefetch::<_MM_HINT_T0>(c.cast_const().cast());
                    }
                }
                let mut panel = panel;
                for _ in 0..k {
                    // SAFETY: a panel has k rows of WIDTH elements, the left operand R rows of k elements.
                    unsafe {
                        let b: [$vector; $vectors] = std::array::from_fn(|v| $load(panel.add(v * $lanes)));
                        for r in 0..R {
                            let a = $broadcast(*bases[r / GROUP].add(r % GROUP * left.row));
                            for v in 0..$vectors {
                                sums[r][v] = $fma(a, b[v], sums[r][v]);
                            }
                        }
                    }
                    panel = panel.wrapping_add(WIDTH);
                    for base in &mut bases[..R.div_ceil(GROUP)] {
                        *base = base.wrapping_add(left.step);
                    }
                }
                if columns < WIDTH {
                    let mut tile = [0.0f32; $max_rows * WIDTH];
                    for r in 0..R {
                        for v in 0..$vectors {
                            // SAFETY: R is at most the number of rows that the buffer has.
                            unsafe { $store(tile.as_mut_ptr().add(r * WIDTH + v * $lanes), sums[r][v]) };
                        }
                    }
                    // SAFETY: the caller's promise is handed on.
                    return unsafe { sink.put(&tile, WIDTH, R, columns) };
                }
                for r in 0..R {
                    for v in 0..$vectors {
                        // SAFETY: all WIDTH columns of R rows exist.
                        unsafe {
                            let mut value = sums[r][v];
                            if !sink.from.is_null() {
                                value = $add(value, $load(sink.from.add(r * sink.from_row + v * $lanes)));
                            }
                            if !sink.bias.is_null() {
                                value = $add(value, $load(sink.bias.add(v * $lanes)));
                            }
                            $store(sink.c.add(r * sink.row + v * $lanes), value);
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

    pub(crate) struct Avx512;

    impl Micro for Avx512 {
        const ROWS: usize = 12;
        const COLUMNS: usize = 32;

        unsafe fn tile(rows: usize, columns: usize, k: usize, left: Left, panel: *const f32, sink: Sink) {
            // SAFETY: the caller's promise is handed on.
            unsafe { for_rows!(rows, avx512(columns, k, left, panel, sink), [1 2 3 4 5 6 7 8 9 10 11 12]) }
        }
    }

    pub(crate) struct Avx2;

    impl Micro for Avx2 {
        const ROWS: usize = 6;
        const COLUMNS: usize = 16;

        unsafe fn tile(rows: usize, columns: usize, k: usize, left: Left, panel: *const f32, sink: Sink) {
            // SAFETY: the caller's promise is handed on.
            unsafe { for_rows!(rows, avx2(columns, k, left, panel, sink), [1 2 3 4 5 6]) }
        }
    }
}
