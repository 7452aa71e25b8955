//! Normalisation of query and key heads (QK norm).

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{LayerNormBackward, Processor, QkNorm, QkNormBackward, QkNormHeads};

use super::column_sums::{Sums, sum_partials};
use super::sizes::{BLOCK, blocks, by_dtype, pointer, size, size_argument};

/// Maximum channels per head of the narrow kernels.
const CHANNELS: usize = 256;

/// Lanes per head of the narrow kernels: each holds eight channels, if heads consist of whole runs of eight.
fn lanes(channels: usize) -> usize {
    if channels.is_multiple_of(8) { (channels / 8).next_power_of_two() } else { 32 }
}

/// The kernels for these widths of query and key heads: a warp or less per head, or one block.
fn is_narrow([queries, keys]: [usize; 2]) -> bool {
    queries == keys && queries <= CHANNELS
}

/// The kernels' struct `Heads`.
///
/// # Errors
/// Sizes beyond 32 bits.
fn sizes(heads: QkNormHeads, widths: [usize; 2]) -> Result<Argument, DeviceError> {
    let QkNormHeads { queries, keys } = heads;
    let fields = if is_narrow(widths) {
        [queries, queries + keys, queries + 2 * keys, widths[0]]
    } else {
        [queries, keys, widths[0], widths[1]]
    };
    let words =
        fields.chunks_exact(2).map(|pair| Ok(u64::from(size(pair[0])?) | u64::from(size(pair[1])?) << 32));
    Ok(Argument::Words(words.collect::<Result<_, DeviceError>>()?))
}

pub(super) fn forward(
    op: &QkNorm,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let qkv = &inputs[0];
    let widths = [1, 2].map(|index| inputs[index].ty.shape.last());
    let heads = qkv.ty.shape.rows() * (op.heads.count() + op.heads.keys);
    let mut arguments: Vec<Argument> = outputs.iter().chain(inputs).map(pointer).collect();
    arguments.push(sizes(op.heads, widths)?);
    let (names, grid) = if is_narrow(widths) {
        let lanes = lanes(widths[0]);
        arguments.extend([size_argument(heads)?, size_argument(lanes)?]);
        (["head_norm_f32", "head_norm_bf16", "head_norm_f16"], blocks(heads, BLOCK as usize / lanes)?)
    } else {
        (["wide_head_norm_f32", "wide_head_norm_bf16", "wide_head_norm_f16"], size(heads)?)
    };
    arguments.extend([op.offset, op.epsilon].map(Argument::F32));
    launcher.kernel(by_dtype(qkv.ty.dtype, names)?, [grid, 1, 1], BLOCK, 0, &arguments)
}

/// One block per partial sum; three of the wide kernels, for queries, keys and values.
pub(super) fn backward(
    op: &QkNormBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    (partials, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let qkv = &inputs[1];
    let widths = [2, 3].map(|index| inputs[index].ty.shape.last());
    let rows = qkv.ty.shape.rows();
    let rows_per_partial = LayerNormBackward::rows_per_partial(rows, Processor::Cuda);
    let count = rows.div_ceil(rows_per_partial);
    let mut arguments = vec![pointer(&outputs[0]), Argument::Pointer(partials)];
    arguments.extend(inputs[..5].iter().map(pointer));
    arguments.extend([sizes(op.heads, widths)?, size_argument(rows)?]);
    let (names, grid) = if is_narrow(widths) {
        arguments.push(size_argument(lanes(widths[0]))?);
        (["head_norm_backward_f32", "head_norm_backward_bf16", "head_norm_backward_f16"], 1)
    } else {
        (["wide_head_norm_backward_f32", "wide_head_norm_backward_bf16", "wide_head_norm_backward_f16"], 3)
    };
    arguments.extend([Argument::F32(op.offset), size_argument(rows_per_partial)?]);
    launcher.kernel(by_dtype(qkv.ty.dtype, names)?, [blocks(count, 1)?, grid, 1], BLOCK, 0, &arguments)?;
    let sinks = Sums { dtype: op.gradients, addresses: [outputs[1].address, outputs[2].address] };
    sum_partials(sinks, partials, [count, widths[0] + widths[1], widths[0]], op.accumulate, launcher)
}
