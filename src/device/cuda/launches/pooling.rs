//! Maximum and average pooling.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{AvgPool, AvgPoolBackward, MaxPool, MaxPoolBackward, TensorType, Window};

use super::sizes::{BLOCK, blocks, by_dtype, count, optional, pointer, size};

pub(super) fn max(
    op: &MaxPool,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let names = ["max_pool_f32", "max_pool_bf16", "max_pool_f16"];
    let operands = [&outputs[0], &outputs[1], &inputs[0]].map(pointer);
    run(names, &operands, &outputs[0], &op.window, [&inputs[0], &outputs[0]], launcher)
}

pub(super) fn max_backward(
    op: &MaxPoolBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let names = ["max_pool_backward_f32", "max_pool_backward_bf16", "max_pool_backward_f16"];
    let partial = optional(op.accumulate.then(|| inputs[2].address));
    let operands = [pointer(&outputs[0]), pointer(&inputs[0]), pointer(&inputs[1]), partial];
    run(names, &operands, &outputs[0], &op.window, [&outputs[0], &inputs[0]], launcher)
}

pub(super) fn average(
    op: &AvgPool,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let names = ["avg_pool_f32", "avg_pool_bf16", "avg_pool_f16"];
    let operands = [&outputs[0], &inputs[0]].map(pointer);
    run(names, &operands, &outputs[0], &op.window, [&inputs[0], &outputs[0]], launcher)
}

pub(super) fn average_backward(
    op: &AvgPoolBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let names = ["avg_pool_backward_f32", "avg_pool_backward_bf16", "avg_pool_backward_f16"];
    let partial = optional(op.accumulate.then(|| inputs[1].address));
    let operands = [pointer(&outputs[0]), pointer(&inputs[0]), partial];
    run(names, &operands, &outputs[0], &op.window, [&outputs[0], &inputs[0]], launcher)
}

/// Runs a kernel with a thread for each element of `output`. `images` are x and y, or their gradients.
fn run(
    names: [&'static str; 3],
    operands: &[Argument],
    output: &Operand,
    window: &Window,
    images: [&Operand; 2],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let elements = output.ty.elements();
    // Kernels count pixels in 32 bits.
    size(output.ty.shape.rows())?;
    let [[height_of_x, width_of_x, channels], [rows, columns, _]] = images.map(|image| image_of(&image.ty));
    let [height, width] = window.kernel;
    let window = words(&[height, width, window.stride, window.padding])?;
    let sizes = words(&[height_of_x, width_of_x, rows, columns, channels])?;
    let arguments = [operands, &[count(elements), window, sizes]].concat();
    let grid = [blocks(elements, BLOCK as usize)?, 1, 1];
    launcher.kernel(by_dtype(output.ty.dtype, names)?, grid, BLOCK, 0, &arguments)
}

/// Height, width and channels. A sequence [B, T, C] is an image of one column, and its mean [B, C] one of one pixel.
fn image_of(ty: &TensorType) -> [usize; 3] {
    match *ty.shape.dims() {
        [_, height, width, channels] => [height, width, channels],
        [_, height, channels] => [height, 1, channels],
        _ => [1, 1, ty.shape.last()],
    }
}

/// A struct of 32-bit sizes.
fn words(sizes: &[usize]) -> Result<Argument, DeviceError> {
    let sizes = sizes.iter().map(|&value| size(value)).collect::<Result<Vec<u32>, _>>()?;
    let word = |pair: &[u32]| u64::from(pair[0]) | u64::from(*pair.get(1).unwrap_or(&0)) << 32;
    Ok(Argument::Words(sizes.chunks(2).map(word).collect()))
}
