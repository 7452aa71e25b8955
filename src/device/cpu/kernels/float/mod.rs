//! Storage types of floating-point numbers: f32, bf16 and f16. Arithmetic uses f32; each stored result is rounded once,
//! to nearest, ties to even.

mod half;

use std::ops::Range;

pub(super) use half::{Bf16, F16, Half};

use super::simd::Level;
use ops::DType;

/// Numbers that are converted to f32 at a time: the buffers of a few operands fit the L1 cache.
pub(super) const BUFFER: usize = 512;

/// A temporary buffer of f32 numbers.
pub(super) type Buffer = [f32; BUFFER];

/// The storage type of a floating-point number.
pub(super) trait Float: Copy + Default + Send + Sync + 'static {
    const DTYPE: DType;

    /// `to = from`, exactly.
    fn widen(level: Level, from: &[Self], to: &mut [f32]);

    /// `to = from`, rounded to nearest: overflow gives infinity, NaNs stay NaNs.
    fn narrow(level: Level, from: &[f32], to: &mut [Self]);

    /// The numbers themselves, if this type is f32.
    fn as_f32(_values: &[Self]) -> Option<&[f32]> {
        None
    }

    fn as_f32_mut(_values: &mut [Self]) -> Option<&mut [f32]> {
        None
    }

    /// The numbers themselves, if this type is bf16.
    #[cfg(target_arch = "x86_64")]
    fn as_bf16(_values: &[Self]) -> Option<&[Bf16]> {
        None
    }

    /// The numbers in f32: the slice itself, or a conversion at the start of `buffer`.
    fn widened<'a>(level: Level, from: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32] {
        if let Some(from) = Self::as_f32(from) {
            return from;
        }
        let buffer = &mut buffer[..from.len()];
        Self::widen(level, from, buffer);
        buffer
    }
}

/// Converts numbers from their bytes in memory to f32.
pub fn to_f32(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.as_chunks().0.iter().map(|half| u16::from_ne_bytes(*half));
    match dtype {
        DType::F32 => bytes.as_chunks().0.iter().map(|number| f32::from_ne_bytes(*number)).collect(),
        DType::BF16 => widened(&halves().map(Bf16).collect::<Vec<_>>()),
        DType::F16 => widened(&halves().map(F16).collect::<Vec<_>>()),
        DType::I32 | DType::U16 | DType::U8 | DType::U4 => {
            unreachable!("{dtype} is not a floating-point type")
        }
    }
}

/// Converts f32 numbers to another type, rounded to nearest, as bytes in memory.
pub fn from_f32(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => numbers.iter().flat_map(|number| number.to_ne_bytes()).collect(),
        DType::BF16 => narrowed::<Bf16>(numbers).iter().flat_map(|half| half.0.to_ne_bytes()).collect(),
        DType::F16 => narrowed::<F16>(numbers).iter().flat_map(|half| half.0.to_ne_bytes()).collect(),
        DType::I32 | DType::U16 | DType::U8 | DType::U4 => {
            unreachable!("{dtype} is not a floating-point type")
        }
    }
}

fn narrowed<T: Float>(numbers: &[f32]) -> Vec<T> {
    let mut narrow = vec![T::default(); numbers.len()];
    T::narrow(Level::Portable, numbers, &mut narrow);
    narrow
}

fn widened<T: Float>(numbers: &[T]) -> Vec<f32> {
    let mut wide = vec![0.0; numbers.len()];
    T::widen(Level::Portable, numbers, &mut wide);
    wide
}

impl Float for f32 {
    const DTYPE: DType = DType::F32;

    fn widen(_level: Level, from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn narrow(_level: Level, from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn as_f32(values: &[f32]) -> Option<&[f32]> {
        Some(values)
    }

    fn as_f32_mut(values: &mut [f32]) -> Option<&mut [f32]> {
        Some(values)
    }
}

/// Evaluates an expression in which a type name stands for the storage type of a dtype.
macro_rules! with_float {
    ($dtype:expr, $float:ident => $body:expr) => {
        match $dtype {
            ::ops::DType::F32 => {
                type $float = f32;
                $body
            }
            ::ops::DType::BF16 => {
                type $float = $crate::cpu::kernels::float::Bf16;
                $body
            }
            ::ops::DType::F16 => {
                type $float = $crate::cpu::kernels::float::F16;
                $body
            }
            ::ops::DType::I32 | ::ops::DType::U16 | ::ops::DType::U8 | ::ops::DType::U4 => {
                unreachable!("an operation's types are checked before it runs")
            }
        }
    };
}

/// As `with_float`, for a dtype that is either f32 or that of the given type.
macro_rules! with_f32_or {
    ($other:ty, $dtype:expr, $float:ident => $body:expr) => {
        if $dtype == ::ops::DType::F32 {
            type $float = f32;
            $body
        } else {
            assert_eq!($dtype, <$other as $crate::cpu::kernels::float::Float>::DTYPE);
            type $float = $other;
            $body
        }
    };
}

pub(super) use {with_f32_or, with_float};

/// Ranges of at most `BUFFER` numbers, or a single range if the type is f32.
fn ranges<T: Float>(len: usize) -> impl Iterator<Item = Range<usize>> {
    let longest = if T::DTYPE == DType::F32 { len.max(1) } else { BUFFER };
    (0..len).step_by(longest).map(move |start| start..len.min(start + longest))
}

/// Calls `work(range, numbers)` for ranges of the values, converted to f32.
pub(super) fn read<T: Float>(
    level: Level,
    values: &[T],
    buffer: &mut Buffer,
    mut work: impl FnMut(Range<usize>, &[f32]),
) {
    for range in ranges::<T>(values.len()) {
        work(range.clone(), T::widened(level, &values[range], buffer));
    }
}

/// Stores the f32 numbers that `work(range, numbers)` writes for ranges of the values.
pub(super) fn write<T: Float>(
    level: Level,
    values: &mut [T],
    buffer: &mut Buffer,
    mut work: impl FnMut(Range<usize>, &mut [f32]),
) {
    for range in ranges::<T>(values.len()) {
        let values = &mut values[range.clone()];
        if let Some(values) = T::as_f32_mut(values) {
            work(range, values);
        } else {
            let buffer = &mut buffer[..values.len()];
            work(range, buffer);
            T::narrow(level, buffer, values);
        }
    }
}

/// As `write`, but `work` starts from the present values.
pub(super) fn update<T: Float>(
    level: Level,
    values: &mut [T],
    buffer: &mut Buffer,
    mut work: impl FnMut(Range<usize>, &mut [f32]),
) {
    for range in ranges::<T>(values.len()) {
        let values = &mut values[range.clone()];
        if let Some(values) = T::as_f32_mut(values) {
            work(range, values);
        } else {
            let buffer = &mut buffer[..values.len()];
            T::widen(level, values, buffer);
            work(range, buffer);
            T::narrow(level, buffer, values);
        }
    }
}
