//! Softmax and cross-entropy.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{CrossEntropy, LossTerms};

use super::sizes::{by_dtype, flag, optional, pointer, size, size_argument, vector_len};

/// Maximum threads per row: two such blocks fill a multiprocessor, and their rows are still in the second-level cache
/// when they are read again.
const MAX_THREADS: usize = 1024;

pub(super) fn run(
    op @ CrossEntropy { terms, .. }: &CrossEntropy,
    inputs: &[Operand],
    outputs: &[Operand],
    (losses, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let logits = &inputs[0];
    let (rows, vocabulary) = (logits.ty.shape.rows(), logits.ty.shape.last());
    let all_rows = inputs[1].ty.elements();
    let first = terms.rows.range(all_rows).start;
    let targets = inputs[1].address + first as u64 * inputs[1].ty.dtype.bytes();
    let (names, choice) = match op.cap {
        Some(cap) => {
            (["cross_entropy_capped_f32", "cross_entropy_capped_bf16", "cross_entropy_capped_f16"], Some(cap))
        }
        None if op.smoothing > 0.0 => (
            ["cross_entropy_smoothed_f32", "cross_entropy_smoothed_bf16", "cross_entropy_smoothed_f16"],
            Some(op.smoothing),
        ),
        None => (["cross_entropy_f32", "cross_entropy_bf16", "cross_entropy_f16"], None),
    };
    // Four vectors per thread.
    let threads = vocabulary / (4 * vector_len(logits.ty.dtype));
    let threads = threads.next_power_of_two().clamp(32, MAX_THREADS) as u32;
    let weights = || -> Result<[Argument; 3], DeviceError> {
        Ok([
            optional(terms.weighted.then(|| inputs[2].address)),
            size_argument(first)?,
            size_argument(if terms.weighted { all_rows / inputs[2].ty.elements() } else { 1 })?,
        ])
    };
    let mut arguments = vec![
        Argument::Pointer(losses),
        optional(terms.gradient.then(|| outputs[1].address)),
        pointer(logits),
        Argument::Pointer(targets),
        optional(terms.scaled.then(|| inputs[terms.loss_scale()].address)),
        size_argument(vocabulary)?,
        Argument::F32(terms.factor() / all_rows as f32),
    ];
    arguments.extend(weights()?);
    arguments.extend(choice.map(Argument::F32));
    let grid = [size(rows)?, 1, 1];
    launcher.kernel(by_dtype(logits.ty.dtype, names)?, grid, threads, 0, &arguments)?;
    let mean = |launcher: &mut Launcher, loss: u64, of_rows: u64| {
        mean_of_rows([loss, of_rows], [rows, all_rows], terms, launcher)
    };
    mean(launcher, outputs[0].address, losses)?;
    if !op.accuracy {
        return Ok(());
    }
    let correct = losses + (rows * size_of::<f32>()) as u64;
    let mut arguments = vec![
        Argument::Pointer(correct),
        pointer(logits),
        Argument::Pointer(targets),
        size_argument(vocabulary)?,
    ];
    arguments.extend(weights()?);
    let names = ["correct_rows_f32", "correct_rows_bf16", "correct_rows_f16"];
    launcher.kernel(by_dtype(logits.ty.dtype, names)?, grid, threads, 0, &arguments)?;
    mean(launcher, outputs[0].address + size_of::<f32>() as u64, correct)
}

/// Writes the mean of the losses of rows, as their share of all rows, to `loss`. With accumulation, it is added to the
/// present number.
pub(super) fn mean_of_rows(
    [loss, losses]: [u64; 2],
    [rows, all_rows]: [usize; 2],
    terms: &LossTerms,
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    sum_of_rows([loss, losses], rows, (terms.factor(), all_rows), terms.accumulate, launcher)
}

/// Writes the sum of the losses of rows, times a factor and divided by a number of rows, to `loss`; or adds it.
pub(super) fn sum_of_rows(
    [loss, losses]: [u64; 2],
    rows: usize,
    (factor, of): (f32, usize),
    accumulate: bool,
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let arguments = [
        Argument::Pointer(loss),
        Argument::Pointer(losses),
        size_argument(rows)?,
        size_argument(of)?,
        Argument::F32(factor),
        flag(accumulate),
    ];
    launcher.kernel("cross_entropy_mean", [1, 1, 1], 1024, 0, &arguments)
}
