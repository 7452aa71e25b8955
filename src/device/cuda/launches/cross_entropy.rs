//! Softmax and cross-entropy.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{CrossEntropy, LossTerms};

use super::sizes::{by_dtype, flag, optional, pointer, size, size_argument, vector_len};

/// Maximum threads per row: two such blocks fill a multiprocessor, and their rows are still in the second-level cache
/// when they are read again.
const MAX_THREADS: usize = 1024;

pub(super) fn run(
    CrossEntropy { terms, cap }: &CrossEntropy,
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
    let names = match cap {
        None => ["cross_entropy_f32", "cross_entropy_bf16", "cross_entropy_f16"],
        Some(_) => ["cross_entropy_capped_f32", "cross_entropy_capped_bf16", "cross_entropy_capped_f16"],
    };
    // Four vectors per thread.
    let threads = vocabulary / (4 * vector_len(logits.ty.dtype));
    let mut arguments = vec![
        Argument::Pointer(losses),
        optional(terms.gradient.then(|| outputs[1].address)),
        pointer(logits),
        Argument::Pointer(targets),
        optional(terms.scaled.then(|| inputs[terms.loss_scale()].address)),
        size_argument(vocabulary)?,
        Argument::F32(terms.factor() / all_rows as f32),
        optional(terms.weighted.then(|| inputs[2].address)),
        size_argument(first)?,
        size_argument(if terms.weighted { all_rows / inputs[2].ty.elements() } else { 1 })?,
    ];
    arguments.extend(cap.map(Argument::F32));
    launcher.kernel(
        by_dtype(logits.ty.dtype, names)?,
        [size(rows)?, 1, 1],
        threads.next_power_of_two().clamp(32, MAX_THREADS) as u32,
        0,
        &arguments,
    )?;
    mean_of_rows(&outputs[0], losses, [rows, all_rows], terms, launcher)
}

/// The mean of the losses of rows, as their share of all rows. With accumulation, it is added to the previous loss, which the
/// output holds.
pub(super) fn mean_of_rows(
    loss: &Operand,
    losses: u64,
    [rows, all_rows]: [usize; 2],
    terms: &LossTerms,
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let arguments = [
        pointer(loss),
        Argument::Pointer(losses),
        size_argument(rows)?,
        size_argument(all_rows)?,
        Argument::F32(terms.factor()),
        flag(terms.accumulate),
    ];
    launcher.kernel("cross_entropy_mean", [1, 1, 1], 1024, 0, &arguments)
}
