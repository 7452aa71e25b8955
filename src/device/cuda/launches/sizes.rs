//! Sizes as kernels and grids take them.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Operand};
use ops::{DType, TypeError};

/// Threads of a block of most kernels.
pub(super) const BLOCK: u32 = 256;

/// Bytes that a thread loads at once.
pub(super) const VECTOR_BYTES: usize = 16;

/// # Errors
/// A number of more than 31 bits, the most blocks that a grid can have: kernels count rows and columns in 32 bits.
pub(super) fn size(value: usize) -> Result<u32, DeviceError> {
    match i32::try_from(value) {
        Ok(value) => Ok(value.cast_unsigned()),
        Err(_) => Err(TypeError {
            operation: "kernel",
            problem: format!("takes sizes of at most {}, got {value}", i32::MAX),
        }
        .into()),
    }
}

/// The same as a kernel's parameter.
///
/// # Errors
/// As `size`.
pub(super) fn size_argument(value: usize) -> Result<Argument, DeviceError> {
    size(value).map(Argument::U32)
}

/// Blocks that take `per_block` of `count` each.
///
/// # Errors
/// As `size`.
pub(super) fn blocks(count: usize, per_block: usize) -> Result<u32, DeviceError> {
    size(count.div_ceil(per_block))
}

/// Elements of a type in a vector.
pub(super) fn vector_len(dtype: DType) -> usize {
    VECTOR_BYTES / dtype.bytes() as usize
}

/// The kernel for f32, bf16 or f16.
///
/// # Errors
/// Another type.
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

/// Null where there is none.
pub(super) fn optional(address: Option<u64>) -> Argument {
    Argument::Pointer(address.unwrap_or(0))
}

pub(super) fn flag(value: bool) -> Argument {
    Argument::U32(u32::from(value))
}

pub(super) fn count(value: usize) -> Argument {
    Argument::U64(value as u64)
}
