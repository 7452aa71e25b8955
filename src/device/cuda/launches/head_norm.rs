//! Normalisation of query and key heads (QK norm).

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{LayerNormBackward, Operation, Processor, QkNorm, QkNormBackward, QkNormHeads, TypeError};

use super::column_sums::{Sums, sum_partials};
use super::sizes::{BLOCK, blocks, by_dtype, pointer, size, size_argument};

/// Maximum channels per head.
const CHANNELS: usize = 256;

/// Lanes per head: each holds eight channels, if heads consist of whole runs of eight.
fn lanes(channels: usize) -> usize {
    if channels.is_multiple_of(8) { (channels / 8).next_power_of_two() } else { 32 }
}

/// The kernels' struct `Heads`.
///
/// # Errors
/// Heads are wider than the kernels support.
fn sizes(operation: &'static str, heads: QkNormHeads, channels: usize) -> Result<Argument, DeviceError> {
    if channels > CHANNELS {
        let problem = format!("CUDA devices support heads of at most {CHANNELS} channels, not {channels}");
        return Err(TypeError { operation, problem }.into());
    }
    let QkNormHeads { queries, keys } = heads;
    let fields = [size(queries)?, size(queries + keys)?, size(queries + 2 * keys)?, size(channels)?];
    let words = fields.chunks_exact(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32);
    Ok(Argument::Words(words.collect()))
}

pub(super) fn forward(
    op: &QkNorm,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (qkv, channels) = (&inputs[0], inputs[1].ty.shape.last());
    let items = qkv.ty.elements() / channels;
    let mut arguments: Vec<Argument> = outputs.iter().chain(inputs).map(pointer).collect();
    arguments.push(sizes(op.name(), op.heads, channels)?);
    arguments.extend([size_argument(items)?, size_argument(lanes(channels))?]);
    arguments.extend([op.offset, op.epsilon].map(Argument::F32));
    let name = by_dtype(qkv.ty.dtype, ["head_norm_f32", "head_norm_bf16", "head_norm_f16"])?;
    launcher.kernel(name, [blocks(items, BLOCK as usize / lanes(channels))?, 1, 1], BLOCK, 0, &arguments)
}

/// One block per partial sum.
pub(super) fn backward(
    op: &QkNormBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    (partials, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (qkv, channels) = (&inputs[1], inputs[2].ty.shape.last());
    let rows = qkv.ty.shape.rows();
    let rows_per_partial = LayerNormBackward::rows_per_partial(rows, Processor::Cuda);
    let count = rows.div_ceil(rows_per_partial);
    let mut arguments = vec![pointer(&outputs[0]), Argument::Pointer(partials)];
    arguments.extend(inputs[..5].iter().map(pointer));
    arguments.extend([sizes(op.name(), op.heads, channels)?, size_argument(rows)?]);
    arguments.extend([size_argument(lanes(channels))?, Argument::F32(op.offset)]);
    arguments.push(size_argument(rows_per_partial)?);
    let names = ["head_norm_backward_f32", "head_norm_backward_bf16", "head_norm_backward_f16"];
    launcher.kernel(by_dtype(qkv.ty.dtype, names)?, [blocks(count, 1)?, 1, 1], BLOCK, 0, &arguments)?;
    let sinks = Sums { dtype: op.gradients, addresses: [outputs[1].address, outputs[2].address] };
    sum_partials(sinks, partials, [count, 2 * channels, channels], op.accumulate, launcher)
}
