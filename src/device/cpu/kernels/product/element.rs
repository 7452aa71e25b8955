//! What register tiles multiply: elements of 32 bits.

use std::ops::Range;

use super::Matrix;
use crate::cpu::kernels::elementwise;
use crate::cpu::kernels::float::Float;
use crate::cpu::kernels::simd::Level;
#[cfg(target_arch = "x86_64")]
use crate::cpu::kernels::{float::Bf16, simd::simd};

/// What an element of a packed operand consists of.
pub(crate) trait Element {
    /// Numbers in one: they follow each other along the inner dimension.
    const DEPTH: usize;

    /// The whole matrix as elements where it lies, if these numbers along its rows lie as whole elements do.
    fn in_place<'a, T: Float>(matrix: &Matrix<'a, T>, inner: &Range<usize>) -> Option<Matrix<'a>>;

    /// Elements of numbers that lie along memory, the last one filled up with zeros.
    fn along<T: Float>(level: Level, numbers: &[T], elements: &mut [f32]);

    /// Elements side by side of the columns of at most `DEPTH` rows, which lie along memory: where they lie, or in
    /// the beginning of `buffer`.
    fn beside<'a, T: Float>(
        level: Level,
        matrix: &Matrix<'a, T>,
        rows: Range<usize>,
        columns: Range<usize>,
        buffer: &'a mut [f32],
    ) -> &'a [f32];

    /// Adds the numbers of each element to a sum of its own.
    fn add_to(level: Level, sums: &mut [f32], elements: &[f32]);
}

/// One number in f32, whatever it is stored as.
pub(crate) struct Single;

impl Element for Single {
    const DEPTH: usize = 1;

    fn in_place<'a, T: Float>(matrix: &Matrix<'a, T>, _inner: &Range<usize>) -> Option<Matrix<'a>> {
        matrix.as_f32()
    }

    fn along<T: Float>(level: Level, numbers: &[T], elements: &mut [f32]) {
        T::widen(level, numbers, elements);
    }

    fn beside<'a, T: Float>(
        level: Level,
        matrix: &Matrix<'a, T>,
        rows: Range<usize>,
        columns: Range<usize>,
        buffer: &'a mut [f32],
    ) -> &'a [f32] {
        T::widened(level, matrix.along(rows.start, columns), buffer)
    }

    fn add_to(level: Level, sums: &mut [f32], elements: &[f32]) {
        elementwise::add_to(level, sums, elements);
    }
}

/// Two numbers in bf16, the first one in the lower half, which are moved as if they were one in f32.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Pair;

#[cfg(target_arch = "x86_64")]
impl Element for Pair {
    const DEPTH: usize = 2;

    fn in_place<'a, T: Float>(matrix: &Matrix<'a, T>, inner: &Range<usize>) -> Option<Matrix<'a>> {
        let Matrix { data, row, step } = of_bf16(matrix);
        // SAFETY: any bits are two numbers, and any are one.
        #[allow(unsafe_code)]
        let (before, pairs, _) = unsafe { data.align_to() };
        let is_whole = before.is_empty() && [inner.start, inner.end, row].iter().all(|n| n.is_multiple_of(2));
        (step == 1 && is_whole).then_some(Matrix { data: pairs, row: row / 2, step })
    }

    fn along<T: Float>(_level: Level, numbers: &[T], elements: &mut [f32]) {
        for (element, numbers) in elements.iter_mut().zip(bf16(numbers).chunks(2)) {
            *element = pair(numbers[0], numbers.get(1).copied().unwrap_or_default());
        }
    }

    fn beside<'a, T: Float>(
        level: Level,
        matrix: &Matrix<'a, T>,
        rows: Range<usize>,
        columns: Range<usize>,
        buffer: &'a mut [f32],
    ) -> &'a [f32] {
        let matrix = of_bf16(matrix);
        let buffer = &mut buffer[..columns.len()];
        let first = matrix.along(rows.start, columns.clone());
        if rows.len() == 2 {
            interleave(level, first, matrix.along(rows.start + 1, columns), buffer);
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

/// The bits of a pair survive as those of an f32, which is never computed with.
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
    T::as_bf16(numbers).expect("only bf16 is multiplied so")
}

#[cfg(target_arch = "x86_64")]
pub(super) fn of_bf16<'a, T: Float>(matrix: &Matrix<'a, T>) -> Matrix<'a, Bf16> {
    Matrix { data: bf16(matrix.data), row: matrix.row, step: matrix.step }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_where_they_lie_if_they_lie_as_elements_do() {
        // Aligned like f32, which every other number is.
        let memory: Vec<f32> = (0..12).map(|i| pair(Bf16(2 * i), Bf16(2 * i + 1))).collect();
        // SAFETY: any bits are two numbers.
        #[allow(unsafe_code)]
        let (_, numbers, _) = unsafe { memory.align_to::<Bf16>() };
        assert_eq!(numbers.len(), 24);
        let elements = |first: usize, row: usize, inner: Range<usize>| {
            let matrix = Pair::in_place(&Matrix::new(&numbers[first..], row), &inner)?;
            Some((matrix.data[0].to_bits(), matrix.row, matrix.step))
        };
        assert_eq!(elements(0, 8, 0..6), Some((0x0001_0000, 4, 1)));
        assert_eq!(elements(2, 8, 2..8), Some((0x0003_0002, 4, 1)));
        assert_eq!(elements(1, 8, 0..6), None, "the first pair is not aligned");
        assert_eq!(elements(0, 7, 0..6), None, "the second row's are not");
        assert_eq!(elements(0, 8, 0..5), None, "the last pair's second number is not zero");
        assert_eq!(elements(0, 8, 1..7), None, "the first pair's first number belongs to another block");
        let across = Matrix::new(numbers, 8).transposed();
        assert!(Pair::in_place(&across, &(0..2)).is_none(), "pairs do not lie along rows");
    }
}
