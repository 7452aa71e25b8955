//! Layer normalisation over rows.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{DType, LayerNorm, LayerNormBackward, Processor};

use super::column_sums::{Sums, sum_partials};
use super::sizes::{BLOCK, blocks, by_dtype, optional, pointer, size_argument};

/// Warps per block.
pub(super) const BLOCK_WARPS: usize = 8;
/// Channels that a warp holds in registers.
const WARP_CHANNELS: usize = 768;

/// The number of warps that hold a row in registers; `None` if the row is too long or not a multiple of four channels.
pub(super) fn warps_per_row(channels: usize) -> Option<usize> {
    let warps = channels.div_ceil(WARP_CHANNELS).next_power_of_two();
    (channels.is_multiple_of(4) && warps <= BLOCK_WARPS).then_some(warps)
}

/// Kernel names, forward and backward: for y in f32, bf16 and f16, with x in f32 and with x of y's type.
macro_rules! names {
    ($warps:literal) => {
        [
            names!("layer_norm_", $warps, ["f32_", "bf16_", "f16_"], ["f32_", "bf16_bf16_", "f16_f16_"]),
            names!("layer_norm_backward_", $warps, ["f32_", "bf16_", "f16_"], ["f32_", "bf16_bf16_", "f16_f16_"]),
        ]
    };
    ($name:literal, $warps:literal, $([$($types:literal),+]),+) => {
        [$([$(concat!($name, $types, $warps)),+]),+]
    };
}

/// The forward and backward kernels for this number of warps per row.
fn kernels(warps: Option<usize>, y: DType, x: DType) -> Result<[&'static str; 2], DeviceError> {
    let names = match warps {
        None => names!("any"),
        Some(1) => names!("1"),
        Some(2) => names!("2"),
        Some(4) => names!("4"),
        Some(_) => names!("8"),
    };
    let [forward, backward] = names.map(|by_x| by_dtype(y, by_x[usize::from(x != DType::F32)]));
    Ok([forward?, backward?])
}

pub(super) fn forward(
    op: &LayerNorm,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (rows, channels) = (inputs[0].ty.shape.rows(), inputs[0].ty.shape.last());
    let warps = warps_per_row(channels);
    let [forward, _] = kernels(warps, outputs[0].ty.dtype, inputs[0].ty.dtype)?;
    let block_rows = warps.map_or(1, |warps| BLOCK_WARPS / warps);
    let mut arguments: Vec<Argument> = outputs.iter().chain(inputs).map(pointer).collect();
    if warps.is_some() {
        arguments.push(size_argument(rows)?);
    }
    arguments.extend([size_argument(channels)?, Argument::F32(op.epsilon)]);
    launcher.kernel(forward, [blocks(rows, block_rows)?, 1, 1], BLOCK, 0, &arguments)
}

pub(super) fn backward(
    op: &LayerNormBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    (partials, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [dy, x, weight, mean, rstd] = [0, 1, 2, 3, 4].map(|index| &inputs[index]);
    let (rows, channels) = (x.ty.shape.rows(), x.ty.shape.last());
    let warps = warps_per_row(channels);
    let [_, backward] = kernels(warps, dy.ty.dtype, x.ty.dtype)?;
    let rows_per_partial = LayerNormBackward::rows_per_partial(rows, Processor::Cuda);
    let count = rows.div_ceil(rows_per_partial);
    // Shared memory for each warp group's partial sums of dweight and dbias.
    let sums = warps.map_or(0, |warps| BLOCK_WARPS / warps * 2 * channels);
    launcher.kernel(
        backward,
        [blocks(count, 1)?, 1, 1],
        BLOCK,
        sums as u32 * DType::F32.bytes() as u32,
        &[
            pointer(&outputs[0]),
            Argument::Pointer(partials),
            pointer(dy),
            pointer(x),
            pointer(weight),
            pointer(mean),
            pointer(rstd),
            optional(op.accumulate.then(|| inputs[5].address)),
            optional(op.cast.then(|| outputs[3].address)),
            size_argument(rows)?,
            size_argument(channels)?,
            size_argument(rows_per_partial)?,
        ],
    )?;
    let sinks = Sums { dtype: op.gradients, addresses: [outputs[1].address, outputs[2].address] };
    sum_partials(sinks, partials, [count, 2 * channels, channels], op.accumulate_weights, launcher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_use_the_fewest_warps() {
        let cases = [(4, 1), (768, 1), (772, 2), (1600, 4), (3072, 4), (3076, 8), (6144, 8)];
        for (channels, warps) in cases {
            assert_eq!(warps_per_row(channels), Some(warps), "{channels} channels");
        }
        for channels in [1, 258, 6148] {
            assert_eq!(warps_per_row(channels), None, "{channels} channels");
        }
    }
}
