//! Group normalization.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{BatchNorm, GroupNorm, GroupNormBackward};

use super::batch_norm::LANES;
use super::column_sums::{Sums, sum_partials};
use super::sizes::{BLOCK, blocks, by_dtype, optional, pointer, size, size_argument};

/// Pixels, channels and groups of x, as arguments, and the number of blocks: one for each group of a sample.
fn sizes(x: &Operand, groups: usize) -> Result<([Argument; 3], u32), DeviceError> {
    let (samples, channels) = (x.ty.shape.dims()[0], x.ty.shape.last());
    let pixels = x.ty.shape.rows() / samples;
    // Kernels count the elements of a group in 32 bits.
    size(pixels * (channels / groups))?;
    let arguments = [size_argument(pixels)?, size_argument(channels)?, size_argument(groups)?];
    Ok((arguments, blocks(samples * groups, 1)?))
}

pub(super) fn forward(
    op: &GroupNorm,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (sizes, blocks) = sizes(&inputs[0], op.groups)?;
    let mut arguments: Vec<Argument> = outputs.iter().chain(inputs).map(pointer).collect();
    arguments.extend(sizes);
    arguments.push(Argument::F32(op.epsilon));
    let names = ["group_norm_f32", "group_norm_bf16", "group_norm_f16"];
    launcher.kernel(by_dtype(inputs[0].ty.dtype, names)?, [blocks, 1, 1], BLOCK, 0, &arguments)
}

pub(super) fn backward(
    op: &GroupNormBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    (partials, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [dy, x, weight, mean, rstd] = [0, 1, 2, 3, 4].map(|index| &inputs[index]);
    let (rows, channels, dtype) = (x.ty.shape.rows(), x.ty.shape.last(), x.ty.dtype);
    let ([pixels, channels_argument, groups], group_blocks) = sizes(x, mean.ty.shape.last())?;
    let rows_per_partial = BatchNorm::rows_per_partial(rows, channels);
    let count = rows.div_ceil(rows_per_partial);
    // The sums read dy, which dx may overwrite.
    let arguments = [
        Argument::Pointer(partials),
        pointer(dy),
        pointer(x),
        pointer(mean),
        pointer(rstd),
        size_argument(rows)?,
        channels_argument.clone(),
        size_argument(rows_per_partial)?,
        pixels.clone(),
        groups.clone(),
    ];
    let names = ["group_norm_sums_f32", "group_norm_sums_bf16", "group_norm_sums_f16"];
    let grid = [blocks(count, 1)?, blocks(channels, LANES)?, 1];
    launcher.kernel(by_dtype(dtype, names)?, grid, BLOCK, 0, &arguments)?;
    let sinks = Sums { dtype: op.gradients, addresses: [outputs[1].address, outputs[2].address] };
    let sizes = [count, 2 * channels, channels];
    sum_partials(sinks, partials, sizes, op.accumulate_weights, launcher)?;
    let arguments = [
        pointer(&outputs[0]),
        pointer(dy),
        pointer(x),
        pointer(weight),
        pointer(mean),
        pointer(rstd),
        optional(op.accumulate.then(|| inputs[5].address)),
        pixels,
        channels_argument,
        groups,
    ];
    let names = ["group_norm_backward_f32", "group_norm_backward_bf16", "group_norm_backward_f16"];
    launcher.kernel(by_dtype(dtype, names)?, [group_blocks, 1, 1], BLOCK, 0, &arguments)
}
