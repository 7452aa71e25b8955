//! Sizes as arguments of kernels and grids.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Operand};
use ops::{DType, TypeError};

/// Threads per block of most kernels.
pub(super) const BLOCK: u32 = 256;

/// Bytes of a thread's vector load.
pub(super) const VECTOR_BYTES: usize = 16;

/// # Errors
/// The value exceeds 31 bits, the limit on blocks of a grid: kernels count rows and columns in 32 bits.
pub(super) fn size(value: usize) -> Result<u32, DeviceError> {
    match i32::try_from(value) {
        Ok(value) => Ok(value.cast_unsigned()),
        Err(_) => Err(TypeError {
            operation: "kernel",
            problem: format!("sizes are limited to {}, got {value}", i32::MAX),
        }
        .into()),
    }
}

/// A size as a kernel argument.
///
/// # Errors
/// As `size`.
pub(super) fn size_argument(value: usize) -> Result<Argument, DeviceError> {
    size(value).map(Argument::U32)
}

/// The number of blocks for `count` items with `per_block` each.
///
/// # Errors
/// As `size`.
pub(super) fn blocks(count: usize, per_block: usize) -> Result<u32, DeviceError> {
    size(count.div_ceil(per_block))
}

/// Elements per vector load.
pub(super) fn vector_len(dtype: DType) -> usize {
    VECTOR_BYTES / dtype.bytes() as usize
}

/// Selects the kernel for f32, bf16 or f16.
///
/// # Errors
/// The type is none of these.
pub(super) fn by_dtype(
    dtype: DType,
    [f32, bf16, f16]: [&'static str; 3],
) -> Result<&'static str, DeviceError> {
    match dtype {
        DType::F32 => Ok(f32),
        DType::BF16 => Ok(bf16),
        DType::F16 => Ok(f16),
        DType::I32 | DType::U16 | DType::U8 | DType::U4 => {
            Err(TypeError { operation: f32, problem: format!("has no kernel for {dtype}") }.into())
        }
    }
}

pub(super) fn pointer(operand: &Operand) -> Argument {
    Argument::Pointer(operand.address)
}

/// A null pointer for `None`.
pub(super) fn optional(address: Option<u64>) -> Argument {
    Argument::Pointer(address.unwrap_or(0))
}

pub(super) fn flag(value: bool) -> Argument {
    Argument::U32(u32::from(value))
}

pub(super) fn count(value: usize) -> Argument {
    Argument::U64(value as u64)
}
