//! Losses of single elements.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{ElementwiseLoss, Loss, LossFunction, TensorType};

use super::cross_entropy::sum_of_rows;
use super::sizes::{by_dtype, optional, pointer, size, size_argument};

/// Maximum threads per row.
const MAX_THREADS: usize = 1024;

pub(super) fn run(
    op: &ElementwiseLoss,
    inputs: &[Operand],
    outputs: &[Operand],
    (losses, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let ElementwiseLoss { terms, function } = op;
    let x = &inputs[0];
    let (rows, columns) = (x.ty.shape.rows(), x.ty.shape.last());
    let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
    // Without targets or weights, rows beyond a slice do not matter.
    let all_rows = op.all_rows(&types).unwrap_or(rows);
    let first = if all_rows == rows { 0 } else { terms.rows.range(all_rows).start };
    let of_slice = |targets: &Operand| targets.address + (first * columns) as u64 * targets.ty.dtype.bytes();
    let weights = terms.weighted.then(|| &inputs[terms.weights()]);
    let (names, mean) = match function {
        LossFunction::SquaredError => {
            (["squared_error_f32", "squared_error_bf16", "squared_error_f16"], (terms.factor(), all_rows))
        }
        LossFunction::BinaryCrossEntropy => (
            ["binary_cross_entropy_f32", "binary_cross_entropy_bf16", "binary_cross_entropy_f16"],
            (terms.factor(), all_rows),
        ),
        LossFunction::Sum { .. } => (["sum_f32", "sum_bf16", "sum_f16"], (terms.weight, 1)),
    };
    let scale = op.factor(all_rows as f64 * columns as f64);
    let arguments = [
        Argument::Pointer(losses),
        optional(terms.gradient.then(|| outputs[1].address)),
        pointer(x),
        optional(terms.targets.then(|| of_slice(&inputs[1]))),
        optional(terms.scaled.then(|| inputs[terms.loss_scale()].address)),
        size_argument(columns)?,
        Argument::F32(scale as f32),
        optional(weights.map(|weights| weights.address)),
        size_argument(first)?,
        size_argument(weights.map_or(1, |weights| all_rows / weights.ty.elements()))?,
    ];
    let threads = columns.next_power_of_two().clamp(32, MAX_THREADS) as u32;
    launcher.kernel(by_dtype(x.ty.dtype, names)?, [size(rows)?, 1, 1], threads, 0, &arguments)?;
    sum_of_rows([outputs[0].address, losses], rows, mean, terms.accumulate, launcher)
}
