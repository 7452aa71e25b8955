//! Matmul of bf16 with Intel's Advanced Matrix Extensions (AMX).
//!
//! A tile register holds 16 rows of 64 bytes. One instruction multiplies 16 rows of 32 numbers by 16 columns of 32
//! numbers, exactly, and accumulates in f32. The right operand's tiles hold pairs of numbers that are consecutive along
//! the inner dimension. Subnormal numbers count as zero.
#![allow(unsafe_code)] // Tiles are loaded through pointers; stable Rust has no intrinsics for them yet.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::kernel::Kernel;
use super::micro_kernel::{Sink, transpose_16};
use super::pack::LeftBlock;
use super::packed_element::as_bf16_matrix;
use super::{Block, Matrix, ROW_BLOCK};
use crate::cpu::kernels::elementwise::add_to;
use crate::cpu::kernels::float::{Bf16, Float};
use crate::cpu::kernels::simd::Level;

/// Rows and columns of sums in one tile register.
const TILE: usize = 16;
/// Numbers along the inner dimension per instruction.
const DEPTH: usize = 32;
/// Size of a tile register in f32 elements.
const TILE_LEN: usize = TILE * TILE;
/// Rows and columns of sums computed at a time: two by two tiles, which with their operands fill all eight registers.
const SIDE: usize = 2 * TILE;

/// A tile of 16 rows of 16 pairs, moved as a tile of f32.
type PairTile = [[[u16; 2]; TILE]; TILE];
const EMPTY: PairTile = [[[0; 2]; TILE]; TILE];

pub(crate) struct Amx;

impl Kernel for Amx {
    const ROWS: usize = SIDE;
    const COLUMNS: usize = SIDE;
    const MAX_INNER: usize = 768;
    const INNER_BLOCK: usize = 512;
    const INNER_UNIT: usize = 1;

    fn reads_in_place<T: Float>(_matrix: &Matrix<T>, _inner: usize) -> bool {
        false
    }

    fn left_len(rows: usize, inner: usize) -> usize {
        rows.next_multiple_of(SIDE) / TILE * inner.div_ceil(DEPTH) * TILE_LEN
    }

    fn panel_len(inner: usize) -> usize {
        2 * inner.div_ceil(DEPTH) * TILE_LEN
    }

    fn pack_right<T: Float>(
        _level: Level,
        matrix: &Matrix<T>,
        inner: Range<usize>,
        columns: Range<usize>,
        packed: &mut [f32],
    ) {
        let (matrix, tiles, steps) = (as_bf16_matrix(matrix), tiles(packed), inner.len().div_ceil(DEPTH));
        let mut pairs = EMPTY;
        for step in 0..steps {
            let depth = inner.start + step * DEPTH;
            let inner = depth..inner.end.min(depth + DEPTH);
            for strip in 0..columns.len().next_multiple_of(SIDE) / TILE {
                let tile = &mut tiles[(strip / 2 * steps + step) * 2 + strip % 2];
                let columns = tile_range(&columns, strip);
                if matrix.column_stride == 1 {
                    interleave(&matrix, inner.clone(), columns, tile);
                } else {
                    copy(&matrix.transposed(), columns, inner.clone(), &mut pairs);
                    transpose(&pairs, tile);
                }
            }
        }
    }

    fn pack_row_major<T: Float>(
        _level: Level,
        matrix: &Matrix<T>,
        block: &Block,
        packed: &mut [f32],
    ) -> LeftBlock {
        let matrix = as_bf16_matrix(matrix);
        pack_left(block, packed, |rows, inner, tile| copy(&matrix, rows, inner, tile))
    }

    fn pack_column_major<T: Float>(
        level: Level,
        matrix: &Matrix<T>,
        block: &Block,
        packed: &mut [f32],
        sums: Option<&mut [f32]>,
    ) -> LeftBlock {
        if let Some(sums) = sums {
            let mut wide = [0.0; ROW_BLOCK];
            for p in block.inner.clone() {
                let start = p * matrix.column_stride;
                let column = start + block.rows.start..start + block.rows.end;
                add_to(level, sums, T::widened(level, &matrix.data[column], &mut wide));
            }
        }
        let matrix = as_bf16_matrix(matrix).transposed();
        let mut pairs = EMPTY;
        pack_left(block, packed, |rows, inner, tile| {
            interleave(&matrix, inner, rows, &mut pairs);
            transpose(&pairs, tile);
        })
    }

    unsafe fn multiply(block: &Block, left: LeftBlock, right: &[f32], sink: Sink) {
        let (rows, columns, inner) = (block.rows.len(), block.columns.len(), block.inner.len());
        let panel_len = Amx::panel_len(inner);
        for row in (0..rows).step_by(SIDE) {
            let left = left.rows_from(row).start;
            for (panel, column) in (0..columns).step_by(SIDE).enumerate() {
                // SAFETY: the packed operands hold whole tiles; the caller guarantees the rest.
                unsafe {
                    let mut sums = [0.0; SIDE * SIDE];
                    multiply(left, right[panel * panel_len..].as_ptr(), inner.div_ceil(DEPTH), &mut sums);
                    let sink = sink.rows_from(row).columns_from(column);
                    store(&sums, SIDE.min(rows - row), SIDE.min(columns - column), sink);
                }
            }
        }
    }

    fn with_configured_units(work: impl FnOnce()) {
        /// Palette 1: eight registers of up to 16 rows of 64 bytes.
        #[repr(C, align(64))]
        struct Configuration {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        let mut configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        configuration.row_bytes[..8].fill(64);
        configuration.rows[..8].fill(TILE as u8);
        // SAFETY: the level exists only if the processor has AMX and the system permits its use.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, readonly, preserves_flags))
        };
        work();
        // Then the system need not save the tiles on a context switch.
        // SAFETY: as above.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// Whether the processor, which has AVX-512, also has AMX with bf16, and the system permits this process to use it.
pub(crate) fn is_available() -> bool {
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    // SAFETY: every processor with AVX2 has this CPUID leaf. In newer compilers the function is safe.
    #[allow(unused_unsafe)]
    let features = unsafe { __cpuid_count(7, 0) }.edx;
    features & BF16 != 0 && features & TILES != 0 && is_permitted()
}

/// Requests permission from Linux, once per process, because tiles enlarge the saved state of each thread.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the call changes only the process's permissions.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Scratch memory as whole tiles.
fn tiles(scratch: &mut [f32]) -> &mut [PairTile] {
    // SAFETY: the length is rounded down to whole tiles, f32 has the stricter alignment, and any bits are valid.
    unsafe { std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), scratch.len() / TILE_LEN) }
}

/// The rows or columns of `range` that belong to a tile.
fn tile_range(range: &Range<usize>, tile: usize) -> Range<usize> {
    let first = range.end.min(range.start + tile * TILE);
    first..range.end.min(first + TILE)
}

/// Packs the left operand tile by tile; `pack` packs one tile.
fn pack_left(
    block: &Block,
    packed: &mut [f32],
    mut pack: impl FnMut(Range<usize>, Range<usize>, &mut PairTile),
) -> LeftBlock {
    let (start, tiles) = (packed.as_ptr(), tiles(packed));
    let steps = block.inner.len().div_ceil(DEPTH);
    for step in 0..steps {
        let depth = block.inner.start + step * DEPTH;
        let inner = depth..block.inner.end.min(depth + DEPTH);
        for strip in 0..block.rows.len().next_multiple_of(SIDE) / TILE {
            let tile = &mut tiles[(strip / 2 * steps + step) * 2 + strip % 2];
            pack(tile_range(&block.rows, strip), inner.clone(), tile);
        }
    }
    LeftBlock::from_tiles(start, steps * TILE)
}

/// Copies rows of a row-major matrix to a tile, padded with zeros.
fn copy(matrix: &Matrix<Bf16>, rows: Range<usize>, inner: Range<usize>, tile: &mut PairTile) {
    if rows.len() < TILE || inner.len() < DEPTH {
        *tile = EMPTY;
    }
    for (row, tile) in rows.zip(tile) {
        let start = row * matrix.row_stride + inner.start;
        let (tile, numbers) = (tile.as_flattened_mut(), &matrix.data[start..start + inner.len()]);
        if let Ok(numbers) = <&[Bf16; DEPTH]>::try_from(numbers) {
            tile.copy_from_slice(&numbers.map(|number| number.0));
        } else {
            tile.iter_mut().zip(numbers).for_each(|(to, number)| *to = number.0);
        }
    }
}

/// Interleaves pairs of rows of a row-major matrix, whose rows follow the inner dimension, to a tile padded with zeros.
fn interleave(matrix: &Matrix<Bf16>, inner: Range<usize>, columns: Range<usize>, tile: &mut PairTile) {
    let row = |p: usize| {
        let start = p * matrix.row_stride;
        &matrix.data[start + columns.start..start + columns.end]
    };
    if columns.len() < TILE || inner.len() < DEPTH {
        *tile = EMPTY;
        for (depth, p) in inner.enumerate() {
            for (pair, number) in tile[depth / 2].iter_mut().zip(row(p)) {
                pair[depth % 2] = number.0;
            }
        }
        return;
    }
    for (p, pairs) in inner.step_by(2).zip(tile) {
        let [first, second] =
            [row(p), row(p + 1)].map(|row| <&[Bf16; TILE]>::try_from(row).expect("a whole row"));
        for (index, pair) in pairs.iter_mut().enumerate() {
            *pair = [first[index].0, second[index].0];
        }
    }
}

/// Transposes 16 rows of 16 pairs.
fn transpose(pairs: &PairTile, tile: &mut PairTile) {
    // SAFETY: both are 16 rows of 16 elements of the size of f32, whose bits are moved unchanged, and processors with
    // AMX have AVX-512.
    unsafe { transpose_16(pairs.as_ptr().cast(), TILE, tile.as_mut_ptr().cast(), TILE) };
}

/// Multiplies a block of `SIDE` rows by a panel of `SIDE` columns.
///
/// # Safety
///
/// Both operands have `2 * steps` tiles, and the matrix units are configured.
unsafe fn multiply(left: *const f32, right: *const f32, steps: usize, sums: &mut [f32; SIDE * SIDE]) {
    // SAFETY: guaranteed by the caller; the sums are two by two tiles in rows of 128 bytes.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{left} + {row}]",
            "tileloadd tmm6, [{right} + {row}]",
            "tileloadd tmm7, [{right} + {row} + 1024]",
            "tileloadd tmm5, [{left} + {row} + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {left}, 2048",
            "add {right}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {sums_row}], tmm0",
            "tilestored [{sums} + {sums_row} + 64], tmm1",
            "tilestored [{sums} + {sums_row} + 2048], tmm2",
            "tilestored [{sums} + {sums_row} + 2112], tmm3",
            left = inout(reg) left => _,
            right = inout(reg) right => _,
            steps = inout(reg) steps => _,
            row = in(reg) 64usize,
            sums = in(reg) sums.as_mut_ptr(),
            sums_row = in(reg) 128usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Writes sums to the sink.
///
/// # Safety
///
/// The sink has these rows and columns, and the machine has AVX-512.
#[target_feature(enable = "avx512f")]
unsafe fn store(sums: &[f32; SIDE * SIDE], rows: usize, columns: usize, sink: Sink) {
    if columns < SIDE {
        // SAFETY: guaranteed by the caller.
        return unsafe { sink.write(sums, SIDE, rows, columns) };
    }
    for r in 0..rows {
        for column in [0, TILE] {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let mut value = _mm512_loadu_ps(sums.as_ptr().add(r * SIDE + column));
                if !sink.addend.is_null() {
                    let addend = sink.addend.add(r * sink.addend_row_stride + column);
                    value = _mm512_add_ps(value, _mm512_loadu_ps(addend));
                }
                if !sink.bias.is_null() {
                    value = _mm512_add_ps(value, _mm512_loadu_ps(sink.bias.add(column)));
                }
                _mm512_storeu_ps(sink.c.add(r * sink.row_stride + column), value);
            }
        }
    }
}
