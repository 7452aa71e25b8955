//! Batch normalization.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{BatchNorm, BatchNormBackward, BatchNormMode, DType};

use super::column_sums::{Sums, sum_partials};
use super::sizes::{BLOCK, blocks, by_dtype, optional, pointer, size_argument};

/// Rows per block of elementwise kernels: 16 for each warp.
const BLOCK_ROWS: usize = 128;
/// Channels per block: one for each lane.
pub(super) const LANES: usize = 32;

const F32: u64 = size_of::<f32>() as u64;

/// Selects the kernel for a dtype with vectors of four channels, if rows are whole vectors and fill a warp.
fn by_width(
    dtype: DType,
    channels: usize,
    names: [[&'static str; 3]; 2],
) -> Result<(&'static str, usize), DeviceError> {
    let is_wide = channels.is_multiple_of(4) && channels >= 4 * LANES;
    Ok((by_dtype(dtype, names[usize::from(is_wide)])?, if is_wide { 4 } else { 1 }))
}

pub(super) fn forward(
    op: &BatchNorm,
    inputs: &[Operand],
    outputs: &[Operand],
    (workspace, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let x = &inputs[0];
    let (rows, channels) = (x.ty.shape.rows(), x.ty.shape.last());
    let (factor, shift) = (workspace, workspace + channels as u64 * F32);
    let mean = if op.mode == BatchNormMode::Evaluation {
        let arguments = [
            Argument::Pointer(factor),
            Argument::Pointer(shift),
            pointer(&inputs[1]),
            pointer(&inputs[2]),
            pointer(&inputs[4]),
            size_argument(channels)?,
            Argument::F32(op.epsilon),
        ];
        let grid = [blocks(channels, BLOCK as usize)?, 1, 1];
        launcher.kernel("batch_norm_running", grid, BLOCK, 0, &arguments)?;
        &inputs[3]
    } else {
        let partials = workspace + 2 * channels as u64 * F32;
        statistics(op, inputs, outputs, [factor, shift, partials], launcher)?;
        &outputs[1]
    };
    let names = [
        ["batch_norm_f32_1", "batch_norm_bf16_1", "batch_norm_f16_1"],
        ["batch_norm_f32_4", "batch_norm_bf16_4", "batch_norm_f16_4"],
    ];
    let (name, width) = by_width(x.ty.dtype, channels, names)?;
    let arguments = [
        pointer(&outputs[0]),
        pointer(x),
        pointer(mean),
        Argument::Pointer(factor),
        Argument::Pointer(shift),
        size_argument(rows)?,
        size_argument(channels)?,
    ];
    let grid = [blocks(rows, BLOCK_ROWS)?, blocks(channels, LANES * width)?, 1];
    launcher.kernel(name, grid, BLOCK, 0, &arguments)
}

/// Computes the statistics of the batch, factor and shift of each channel, and the next running statistics in training.
fn statistics(
    op: &BatchNorm,
    inputs: &[Operand],
    outputs: &[Operand],
    [factor, shift, partials]: [u64; 3],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let x = &inputs[0];
    let (rows, channels) = (x.ty.shape.rows(), x.ty.shape.last());
    let rows_per_partial = BatchNorm::rows_per_partial(rows, channels);
    let sizes = [size_argument(rows)?, size_argument(channels)?, size_argument(rows_per_partial)?];
    let names = ["batch_norm_moments_f32", "batch_norm_moments_bf16", "batch_norm_moments_f16"];
    let grid = [blocks(rows, rows_per_partial)?, blocks(channels, LANES)?, 1];
    let arguments = [&[Argument::Pointer(partials), pointer(x)], sizes.as_slice()].concat();
    launcher.kernel(by_dtype(x.ty.dtype, names)?, grid, BLOCK, 0, &arguments)?;
    let running =
        |index: usize| optional((op.mode == BatchNormMode::Training).then(|| outputs[index].address));
    let operands = [
        pointer(&outputs[1]),
        pointer(&outputs[2]),
        Argument::Pointer(factor),
        Argument::Pointer(shift),
        running(3),
        running(4),
        Argument::Pointer(partials),
        pointer(&inputs[1]),
        pointer(&inputs[2]),
    ];
    let numbers = [Argument::F32(op.epsilon), Argument::F32(op.momentum)];
    let arguments = [operands.as_slice(), &sizes, &numbers].concat();
    launcher.kernel("batch_norm_statistics", [blocks(channels, LANES)?, 1, 1], 1024, 0, &arguments)
}

pub(super) fn backward(
    op: &BatchNormBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    (sums, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [dy, x, weight, mean, rstd] = [0, 1, 2, 3, 4].map(|index| &inputs[index]);
    let (rows, channels) = (x.ty.shape.rows(), x.ty.shape.last());
    let rows_per_partial = BatchNorm::rows_per_partial(rows, channels);
    let count = rows.div_ceil(rows_per_partial);
    let partials = sums + 2 * channels as u64 * F32;
    let names = ["batch_norm_sums_f32", "batch_norm_sums_bf16", "batch_norm_sums_f16"];
    let arguments = [
        Argument::Pointer(partials),
        pointer(dy),
        pointer(x),
        pointer(mean),
        pointer(rstd),
        size_argument(rows)?,
        size_argument(channels)?,
        size_argument(rows_per_partial)?,
    ];
    let grid = [blocks(rows, rows_per_partial)?, blocks(channels, LANES)?, 1];
    launcher.kernel(by_dtype(x.ty.dtype, names)?, grid, BLOCK, 0, &arguments)?;
    // dx needs the sums of this pass alone, in f32.
    let sizes = [count, 2 * channels, channels];
    let full = Sums { dtype: DType::F32, addresses: [sums, sums + channels as u64 * F32] };
    sum_partials(full, partials, sizes, false, launcher)?;
    let sinks = Sums { dtype: op.gradients, addresses: [outputs[1].address, outputs[2].address] };
    sum_partials(sinks, partials, sizes, op.accumulate_weights, launcher)?;
    let names = [
        ["batch_norm_backward_f32_1", "batch_norm_backward_bf16_1", "batch_norm_backward_f16_1"],
        ["batch_norm_backward_f32_4", "batch_norm_backward_bf16_4", "batch_norm_backward_f16_4"],
    ];
    let (name, width) = by_width(x.ty.dtype, channels, names)?;
    let arguments = [
        pointer(&outputs[0]),
        pointer(dy),
        pointer(x),
        pointer(weight),
        pointer(mean),
        pointer(rstd),
        Argument::Pointer(sums),
        optional(op.accumulate.then(|| inputs[5].address)),
        size_argument(rows)?,
        size_argument(channels)?,
    ];
    let grid = [blocks(rows, BLOCK_ROWS)?, blocks(channels, LANES * width)?, 1];
    launcher.kernel(name, grid, BLOCK, 0, &arguments)
}
