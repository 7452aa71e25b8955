//! Functions of each element, by themselves, behind a sum or a product, and through a gate.

use crate::device::DeviceError;
use crate::device::cuda::launcher::{Argument, Launcher, Operand};
use crate::ops::{Activation, DType, Gated, GatedBackward, TensorType};

use super::elementwise::{FINISH_COLUMNS, SINGLES, map2};
use super::sizes::{BLOCK, blocks, by_dtype, count, optional, pointer, size, size_argument};

/// The names of a kernel for each activation, by what follows its name.
macro_rules! names {
    ($($types:literal),+) => {
        [
            [$(concat!("gelu_erf_", $types)),+],
            [$(concat!("gelu_", $types)),+],
            [$(concat!("relu_", $types)),+],
            [$(concat!("silu_", $types)),+],
        ]
    };
}

/// Columns of a gate that a block takes.
const GATE_COLUMNS: usize = 1024;

/// `before = a + b; y = f(before)`
pub(super) fn add_and_activate(
    activation: Activation,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let names = activation.of(names!("add_f32", "add_bf16", "add_f16"));
    let elements = outputs[0].ty.elements();
    let operands = [&outputs[0], &outputs[1], &inputs[0], &inputs[1]].map(pointer);
    let arguments: Vec<Argument> = operands.into_iter().chain([count(elements)]).collect();
    let blocks = blocks(elements, BLOCK as usize * SINGLES)?;
    launcher.kernel(by_dtype(outputs[0].ty.dtype, names)?, [blocks, 1, 1], BLOCK, 0, &arguments)
}

/// `dx = dy f'(x)`
pub(super) fn backward(
    activation: Activation,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let names = activation.of(names!("backward_f32", "backward_bf16", "backward_f16"));
    let name = by_dtype(outputs[0].ty.dtype, names)?;
    map2(name, [&outputs[0], &inputs[0], &inputs[1]], launcher)
}

/// What follows a product: `before += bias; y = f(before) + residual`, bias and residual being of y's type.
pub(super) fn finish(
    activation: Activation,
    [y, before]: [&Operand; 2],
    bias: Option<u64>,
    residual: Option<u64>,
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let names = match y.ty.dtype {
        DType::F32 => names!("finish_f32", "finish_bf16_residual", "finish_f16_residual"),
        _ => names!("finish_f32", "finish_bf16", "finish_f16"),
    };
    let columns = y.ty.shape.last();
    launcher.kernel(
        by_dtype(before.ty.dtype, activation.of(names))?,
        [size(y.ty.shape.rows())?, blocks(columns, FINISH_COLUMNS)?, 1],
        BLOCK,
        0,
        &[pointer(y), pointer(before), optional(bias), optional(residual), size_argument(columns)?],
    )
}

pub(super) fn gated(
    op: &Gated,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let names = op.activation.of(names!("gate_f32", "gate_bf16", "gate_f16"));
    gate(names, &outputs[0].ty, &[&outputs[0], &inputs[0]], launcher)
}

pub(super) fn gated_backward(
    op: &GatedBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let names = op.activation.of(names!("gate_backward_f32", "gate_backward_bf16", "gate_backward_f16"));
    gate(names, &inputs[0].ty, &[&outputs[0], &inputs[0], &inputs[1]], launcher)
}

/// A kernel over rows as wide as what comes of a gate.
fn gate(
    names: [&'static str; 3],
    narrow: &TensorType,
    operands: &[&Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let columns = narrow.shape.last();
    let mut arguments: Vec<Argument> = operands.iter().map(|operand| pointer(operand)).collect();
    arguments.push(size_argument(columns)?);
    let grid = [size(narrow.shape.rows())?, blocks(columns, GATE_COLUMNS)?, 1];
    launcher.kernel(by_dtype(narrow.dtype, names)?, grid, BLOCK, 0, &arguments)
}
