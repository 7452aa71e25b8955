//! Losses of single elements.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{ElementwiseLoss, LossFunction};

use super::cross_entropy::mean_of_rows;
use super::sizes::{by_dtype, optional, pointer, size, size_argument};

/// Maximum threads per row.
const MAX_THREADS: usize = 1024;

pub(super) fn run(
    ElementwiseLoss { terms, function }: &ElementwiseLoss,
    inputs: &[Operand],
    outputs: &[Operand],
    (losses, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let x = &inputs[0];
    let (rows, columns) = (x.ty.shape.rows(), x.ty.shape.last());
    let all_rows = inputs[1].ty.shape.rows();
    let first = terms.rows.range(all_rows).start;
    let targets = inputs[1].address + (first * columns) as u64 * inputs[1].ty.dtype.bytes();
    let names = match function {
        LossFunction::SquaredError => ["squared_error_f32", "squared_error_bf16", "squared_error_f16"],
        LossFunction::BinaryCrossEntropy => {
            ["binary_cross_entropy_f32", "binary_cross_entropy_bf16", "binary_cross_entropy_f16"]
        }
    };
    let scale = f64::from(terms.factor()) / (all_rows as f64 * columns as f64);
    let arguments = [
        Argument::Pointer(losses),
        optional(terms.gradient.then(|| outputs[1].address)),
        pointer(x),
        Argument::Pointer(targets),
        optional(terms.scaled.then(|| inputs[terms.loss_scale()].address)),
        size_argument(columns)?,
        Argument::F32(scale as f32),
        optional(terms.weighted.then(|| inputs[2].address)),
        size_argument(first)?,
        size_argument(if terms.weighted { all_rows / inputs[2].ty.elements() } else { 1 })?,
    ];
    let threads = columns.next_power_of_two().clamp(32, MAX_THREADS) as u32;
    launcher.kernel(by_dtype(x.ty.dtype, names)?, [size(rows)?, 1, 1], threads, 0, &arguments)?;
    mean_of_rows(&outputs[0], losses, [rows, all_rows], terms, launcher)
}
