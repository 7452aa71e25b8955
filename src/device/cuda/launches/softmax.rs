//! Softmax over rows.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};

use super::sizes::{BLOCK, blocks, by_dtype, pointer, size_argument};

/// The most columns of a row of one warp.
const WARP_COLUMNS: usize = 1024;
/// Rows per block of the kernels with a warp per row.
const WARP_ROWS: usize = BLOCK as usize / 32;

pub(super) fn forward(
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    launch("softmax", inputs, outputs, launcher)
}

pub(super) fn backward(
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    launch("softmax_backward", inputs, outputs, launcher)
}

fn launch(
    direction: &str,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let ty = &outputs[0].ty;
    let (rows, columns) = (ty.shape.rows(), ty.shape.last());
    let (threads, rows_per_block) = if columns <= WARP_COLUMNS { ("warp", WARP_ROWS) } else { ("block", 1) };
    let name = format!("{direction}_{}_{threads}", by_dtype(ty.dtype, ["f32", "bf16", "f16"])?);
    let mut arguments: Vec<Argument> = outputs.iter().chain(inputs).map(pointer).collect();
    arguments.extend([size_argument(rows)?, size_argument(columns)?]);
    launcher.kernel(&name, [blocks(rows, rows_per_block)?, 1, 1], BLOCK, 0, &arguments)
}
