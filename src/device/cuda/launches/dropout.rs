//! Dropout.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{DType, Dropout, DropoutMask};

use super::sizes::{BLOCK, blocks, by_dtype, optional, pointer, size, size_argument};

/// Columns per four threads, which generate their random numbers together.
const COLUMNS: usize = 32;

/// The fields of `Chance` in `chance.cuh`: the dropout and the address of its seeds, if any.
pub(super) fn chance(dropped: Option<(DropoutMask, u64)>) -> [u64; 2] {
    const ALL: u64 = 1 << 16;
    let words = |(DropoutMask { site, kept }, seeds)| [seeds, u64::from(site) | u64::from(kept) << 32];
    dropped.map_or([0, ALL << 32], words)
}

pub(super) fn run(
    op: &Dropout,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    drop_elements(op.dropped, [&inputs[0], &inputs[1], &outputs[0]], inputs.get(2), launcher)
}

/// `y = residual + dropout(x)`, with x num[B,..,C] and seeds i32[B,2]; the residual is optional.
pub(super) fn drop_elements(
    dropped: DropoutMask,
    [x, seeds, y]: [&Operand; 3],
    residual: Option<&Operand>,
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let names = match x.ty.dtype {
        DType::BF16 => ["dropout_bf16_f32", "dropout_bf16_bf16", "dropout_bf16_f16"],
        DType::F16 => ["dropout_f16_f32", "dropout_f16_bf16", "dropout_f16_f16"],
        _ => ["dropout_f32_f32", "dropout_f32_bf16", "dropout_f32_f16"],
    };
    let (rows, columns) = (x.ty.shape.rows(), x.ty.shape.last());
    // The kernel counts groups in 32 bits.
    let groups = size(rows * columns.div_ceil(COLUMNS))?;
    launcher.kernel(
        by_dtype(y.ty.dtype, names)?,
        [blocks(4 * groups as usize, BLOCK as usize)?, 1, 1],
        BLOCK,
        0,
        &[
            pointer(y),
            pointer(x),
            optional(residual.map(|residual| residual.address)),
            Argument::Words(chance(Some((dropped, seeds.address))).to_vec()),
            Argument::F32(dropped.factor()),
            size_argument(rows)?,
            size_argument(rows / x.ty.shape.dims()[0])?,
            size_argument(columns)?,
        ],
    )
}
