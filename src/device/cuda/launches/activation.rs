//! Activations: alone, after an addition or a matmul, and gated.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{Activation, DType, Gated, GatedBackward, TensorType};

use super::elementwise::{RUN_ELEMENTS, binary, row_grid, unary};
use super::sizes::{BLOCK, blocks, by_dtype, count, optional, pointer, size_argument};

/// Suffixes of kernel names by type.
const TYPES: [&str; 3] = ["f32", "bf16", "f16"];

/// A kernel's name: the activation, the action and the types.
fn name(activation: Activation, action: &str, types: &str) -> String {
    format!("{}_{action}_{types}", activation.definition().word)
}

/// `y = f(x)`
pub(super) fn forward(
    activation: Activation,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let types = by_dtype(outputs[0].ty.dtype, TYPES)?;
    let name = format!("{}_{types}", activation.definition().word);
    unary(&name, [&outputs[0], &inputs[0]], &[], launcher)
}

/// `before = a + b; y = f(before)`
pub(super) fn add_and_activate(
    activation: Activation,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let name = name(activation, "add", by_dtype(outputs[0].ty.dtype, TYPES)?);
    let elements = outputs[0].ty.elements();
    let operands = [&outputs[0], &outputs[1], &inputs[0], &inputs[1]].map(pointer);
    let arguments: Vec<Argument> = operands.into_iter().chain([count(elements)]).collect();
    let blocks = blocks(elements, BLOCK as usize * RUN_ELEMENTS)?;
    launcher.kernel(&name, [blocks, 1, 1], BLOCK, 0, &arguments)
}

/// `dx = dy f'(x)`, from dy and the saved value of the activation.
pub(super) fn backward(
    activation: Activation,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let name = name(activation, "backward", by_dtype(outputs[0].ty.dtype, TYPES)?);
    binary(&name, [&outputs[0], &inputs[0], &inputs[1]], launcher)
}

/// The epilogue of a matmul: `before += bias; y = f(before) + residual`, with bias and residual of y's type.
pub(super) fn finish(
    activation: Activation,
    [y, before]: [&Operand; 2],
    bias: Option<u64>,
    residual: Option<u64>,
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let types = match y.ty.dtype {
        DType::F32 => ["f32", "bf16_residual", "f16_residual"],
        _ => TYPES,
    };
    let (rows, columns) = (y.ty.shape.rows(), y.ty.shape.last());
    let operands = [pointer(y), pointer(before), optional(bias), optional(residual)];
    let arguments: Vec<Argument> =
        operands.into_iter().chain([size_argument(rows)?, size_argument(columns)?]).collect();
    let name = name(activation, "finish", by_dtype(before.ty.dtype, types)?);
    launcher.kernel(&name, row_grid(rows, columns)?, BLOCK, 0, &arguments)
}

pub(super) fn gated(
    op: &Gated,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let name = name(op.activation, "gate", by_dtype(outputs[0].ty.dtype, TYPES)?);
    gate(&name, &outputs[0].ty, &[&outputs[0], &inputs[0]], launcher)
}

pub(super) fn gated_backward(
    op: &GatedBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let name = name(op.activation, "gate_backward", by_dtype(inputs[0].ty.dtype, TYPES)?);
    gate(&name, &inputs[0].ty, &[&outputs[0], &inputs[0], &inputs[1]], launcher)
}

/// Launches a gate kernel over the rows of the gate's output.
fn gate(
    name: &str,
    narrow: &TensorType,
    operands: &[&Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (rows, columns) = (narrow.shape.rows(), narrow.shape.last());
    let mut arguments: Vec<Argument> = operands.iter().map(|operand| pointer(operand)).collect();
    arguments.extend([size_argument(rows)?, size_argument(columns)?]);
    launcher.kernel(name, row_grid(rows, columns)?, BLOCK, 0, &arguments)
}
