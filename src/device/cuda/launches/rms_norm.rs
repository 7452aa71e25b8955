//! Root-mean-square normalisation over rows.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{DType, LayerNormBackward, Processor, RmsNorm, RmsNormBackward};

use super::column_sums::{Sums, sum_partials};
use super::layer_norm::{BLOCK_WARPS, warps_per_row};
use super::sizes::{BLOCK, blocks, by_dtype, optional, pointer, size_argument};

/// A kernel's name: the direction, the types of y and, if not f32, of x, and the warps that hold a row in registers.
fn kernel(direction: &str, warps: Option<usize>, [y, x]: [&Operand; 2]) -> Result<String, DeviceError> {
    let types = match x.ty.dtype {
        DType::F32 => ["f32", "bf16", "f16"],
        _ => ["f32", "bf16_bf16", "f16_f16"],
    };
    let types = by_dtype(y.ty.dtype, types)?;
    let warps = warps.map_or("any".to_owned(), |warps| warps.to_string());
    Ok(format!("{direction}_{types}_{warps}"))
}

pub(super) fn forward(
    op: &RmsNorm,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [x, y] = [&inputs[0], &outputs[0]];
    let (rows, channels) = (x.ty.shape.rows(), x.ty.shape.last());
    let warps = warps_per_row(channels);
    let block_rows = warps.map_or(1, |warps| BLOCK_WARPS / warps);
    let mut arguments: Vec<Argument> = outputs.iter().chain(inputs).map(pointer).collect();
    if warps.is_some() {
        arguments.push(size_argument(rows)?);
    }
    arguments.push(size_argument(channels)?);
    arguments.extend([op.offset, op.epsilon].map(Argument::F32));
    let grid = [blocks(rows, block_rows)?, 1, 1];
    launcher.kernel(&kernel("rms_norm", warps, [y, x])?, grid, BLOCK, 0, &arguments)
}

/// One block per partial sum.
pub(super) fn backward(
    op: &RmsNormBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    (partials, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [dy, x, weight, rrms] = [0, 1, 2, 3].map(|index| &inputs[index]);
    let (rows, channels) = (x.ty.shape.rows(), x.ty.shape.last());
    let warps = warps_per_row(channels);
    let rows_per_partial = LayerNormBackward::rows_per_partial(rows, Processor::Cuda);
    let count = rows.div_ceil(rows_per_partial);
    // Shared memory for each warp group's partial sum.
    let sums = warps.map_or(0, |warps| BLOCK_WARPS / warps * channels);
    launcher.kernel(
        &kernel("rms_norm_backward", warps, [dy, x])?,
        [blocks(count, 1)?, 1, 1],
        BLOCK,
        sums as u32 * DType::F32.bytes() as u32,
        &[
            pointer(&outputs[0]),
            Argument::Pointer(partials),
            pointer(dy),
            pointer(x),
            pointer(weight),
            pointer(rrms),
            optional(op.accumulate.then(|| inputs[4].address)),
            optional(op.cast.then(|| outputs[2].address)),
            size_argument(rows)?,
            size_argument(channels)?,
            Argument::F32(op.offset),
            size_argument(rows_per_partial)?,
        ],
    )?;
    let sinks = Sums { dtype: op.gradients, addresses: [outputs[1].address, 0] };
    sum_partials(sinks, partials, [count, channels, channels], op.accumulate_weight, launcher)
}
