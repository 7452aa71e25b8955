//! Elements of packed operands: 32 bits each.

use std::ops::Range;

use super::Matrix;
use crate::cpu::kernels::elementwise;
use crate::cpu::kernels::float::Float;
use crate::cpu::kernels::simd::Level;
#[cfg(target_arch = "x86_64")]
use crate::cpu::kernels::{float::Bf16, simd::simd};

/// The contents of a 32-bit element of a packed operand.
pub(crate) trait PackedElement {
    /// Numbers per element, which are consecutive along the inner dimension.
    const DEPTH: usize;

    /// The matrix viewed as elements, without copying, if the range `inner` of every row is aligned to elements.
    fn in_place<'a, T: Float>(matrix: &Matrix<'a, T>, inner: &Range<usize>) -> Option<Matrix<'a>>;

    /// Packs contiguous numbers along the inner dimension into elements, the last one padded with zeros.
    fn pack_row<T: Float>(level: Level, numbers: &[T], elements: &mut [f32]);

    /// One element per column from at most `DEPTH` rows of a row-major matrix: a view of the matrix, or the start of
    /// `buffer`.
    fn pack_columns<'a, T: Float>(
        level: Level,
        matrix: &Matrix<'a, T>,
        rows: Range<usize>,
        columns: Range<usize>,
        buffer: &'a mut [f32],
    ) -> &'a [f32];

    /// Adds the numbers of each element to its own sum.
    fn add_to(level: Level, sums: &mut [f32], elements: &[f32]);
}

/// One number in f32, converted from any storage type.
pub(crate) struct F32Element;

impl PackedElement for F32Element {
    const DEPTH: usize = 1;

    fn in_place<'a, T: Float>(matrix: &Matrix<'a, T>, _inner: &Range<usize>) -> Option<Matrix<'a>> {
        matrix.as_f32()
    }

    fn pack_row<T: Float>(level: Level, numbers: &[T], elements: &mut [f32]) {
        T::widen(level, numbers, elements);
    }

    fn pack_columns<'a, T: Float>(
        level: Level,
        matrix: &Matrix<'a, T>,
        rows: Range<usize>,
        columns: Range<usize>,
        buffer: &'a mut [f32],
    ) -> &'a [f32] {
        T::widened(level, matrix.row_range(rows.start, columns), buffer)
    }

    fn add_to(level: Level, sums: &mut [f32], elements: &[f32]) {
        elementwise::add_to(level, sums, elements);
    }
}

/// Two bf16 numbers, the first one in the lower half, moved as one f32.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Bf16Pair;

#[cfg(target_arch = "x86_64")]
impl PackedElement for Bf16Pair {
    const DEPTH: usize = 2;

    fn in_place<'a, T: Float>(matrix: &Matrix<'a, T>, inner: &Range<usize>) -> Option<Matrix<'a>> {
        let Matrix { data, row_stride, column_stride } = as_bf16_matrix(matrix);
        // SAFETY: any bits are valid for both types.
        #[allow(unsafe_code)]
        let (before, pairs, _) = unsafe { data.align_to() };
        let is_whole =
            before.is_empty() && [inner.start, inner.end, row_stride].iter().all(|n| n.is_multiple_of(2));
        (column_stride == 1 && is_whole).then_some(Matrix {
            data: pairs,
            row_stride: row_stride / 2,
            column_stride,
        })
    }

    fn pack_row<T: Float>(_level: Level, numbers: &[T], elements: &mut [f32]) {
        for (element, numbers) in elements.iter_mut().zip(bf16(numbers).chunks(2)) {
            *element = pair(numbers[0], numbers.get(1).copied().unwrap_or_default());
        }
    }

    fn pack_columns<'a, T: Float>(
        level: Level,
        matrix: &Matrix<'a, T>,
        rows: Range<usize>,
        columns: Range<usize>,
        buffer: &'a mut [f32],
    ) -> &'a [f32] {
        let matrix = as_bf16_matrix(matrix);
        let buffer = &mut buffer[..columns.len()];
        let first = matrix.row_range(rows.start, columns.clone());
        if rows.len() == 2 {
            interleave(level, first, matrix.row_range(rows.start + 1, columns), buffer);
        } else {
            buffer
                .iter_mut()
                .zip(first)
                .for_each(|(element, &first)| *element = pair(first, Bf16::default()));
        }
        buffer
    }

    fn add_to(level: Level, sums: &mut [f32], elements: &[f32]) {
        add_pairs_to(level, sums, elements);
    }
}

/// The bits of two bf16 numbers as an f32, which is only moved, never used in arithmetic.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn pair(first: Bf16, second: Bf16) -> f32 {
    f32::from_bits(u32::from(first.0) | u32::from(second.0) << 16)
}

#[cfg(target_arch = "x86_64")]
simd! {
    fn interleave(first: &[Bf16], second: &[Bf16], pairs: &mut [f32]) {
        for ((to, &first), &second) in pairs.iter_mut().zip(first).zip(second) {
            *to = pair(first, second);
        }
    }
}

#[cfg(target_arch = "x86_64")]
simd! {
    fn add_pairs_to(sums: &mut [f32], pairs: &[f32]) {
        for (sum, pair) in sums.iter_mut().zip(pairs) {
            let [first, second] = [pair.to_bits() << 16, pair.to_bits() & 0xFFFF_0000].map(f32::from_bits);
            *sum = *sum + first + second;
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn bf16<T: Float>(numbers: &[T]) -> &[Bf16] {
    T::as_bf16(numbers).expect("this instruction set multiplies bf16 only")
}

#[cfg(target_arch = "x86_64")]
pub(super) fn as_bf16_matrix<'a, T: Float>(matrix: &Matrix<'a, T>) -> Matrix<'a, Bf16> {
    Matrix { data: bf16(matrix.data), row_stride: matrix.row_stride, column_stride: matrix.column_stride }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_in_place_if_they_are_aligned_to_elements() {
        // Aligned to f32, as every second bf16 number is.
        let memory: Vec<f32> = (0..12).map(|i| pair(Bf16(2 * i), Bf16(2 * i + 1))).collect();
        // SAFETY: any bits are two valid numbers.
        #[allow(unsafe_code)]
        let (_, numbers, _) = unsafe { memory.align_to::<Bf16>() };
        assert_eq!(numbers.len(), 24);
        let elements = |first: usize, row: usize, inner: Range<usize>| {
            let matrix = Bf16Pair::in_place(&Matrix::new(&numbers[first..], row), &inner)?;
            Some((matrix.data[0].to_bits(), matrix.row_stride, matrix.column_stride))
        };
        assert_eq!(elements(0, 8, 0..6), Some((0x0001_0000, 4, 1)));
        assert_eq!(elements(2, 8, 2..8), Some((0x0003_0002, 4, 1)));
        assert_eq!(elements(1, 8, 0..6), None, "the first pair is not aligned");
        assert_eq!(elements(0, 7, 0..6), None, "the second row's pairs are not aligned");
        assert_eq!(elements(0, 8, 0..5), None, "the last pair's second number is not zero");
        assert_eq!(elements(0, 8, 1..7), None, "the first pair's first number belongs to another block");
        let column_major = Matrix::new(numbers, 8).transposed();
        assert!(Bf16Pair::in_place(&column_major, &(0..2)).is_none(), "the matrix is not row-major");
    }
}
