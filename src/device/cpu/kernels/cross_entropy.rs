//! Softmax and cross-entropy in one pass over the logits.

use crate::ops::CrossEntropy;

use super::as_f64;
use super::math::{exp, largest, sum};
use super::operands::Operands;
use super::simd::simd;
use super::workers::{Parts, Workers};

const ROWS: usize = CrossEntropy::ROWS_PER_PARTIAL;

pub(super) fn run(op: &CrossEntropy, operands: &mut Operands, scratch: &mut [f32], workers: &Workers) {
    let vocabulary = operands.input_type(0).shape.last();
    let targets = operands.tokens(1);
    let rows = targets.len();
    let scale = op.weight / rows as f32;
    let partials = &mut as_f64(scratch)[..rows.div_ceil(ROWS)];
    let parts = Parts::new(partials);
    let level = workers.level();
    if op.gradient {
        let logits = operands.source(1, 0);
        let dlogits = Parts::new(operands.output(1));
        workers.chunks(rows, ROWS, |rows| {
            let elements = rows.start * vocabulary..rows.end * vocabulary;
            // SAFETY: runs of rows do not overlap and have a partial sum of their own.
            #[allow(unsafe_code)]
            let (dlogits, partial) =
                unsafe { (dlogits.part(elements.clone()), &mut parts.part(partial_of(rows.start))[0]) };
            let logits = logits.map(|logits| &logits[elements]);
            *partial = with_gradient(level, logits, &targets[rows], scale, dlogits);
        });
    } else {
        let logits = operands.input(0);
        workers.chunks(rows, ROWS, |rows| {
            // SAFETY: runs of rows have a partial sum of their own.
            #[allow(unsafe_code)]
            let partial = unsafe { &mut parts.part(partial_of(rows.start))[0] };
            let elements = rows.start * vocabulary..rows.end * vocabulary;
            *partial = without_gradient(level, &logits[elements], &targets[rows]);
        });
    }
    let total = partials.iter().sum::<f64>() * f64::from(op.weight) / rows as f64;
    let loss = operands.output(0);
    loss[0] = if op.accumulate { loss[0] + total as f32 } else { total as f32 };
}

fn partial_of(row: usize) -> std::ops::Range<usize> {
    row / ROWS..row / ROWS + 1
}

/// `logsumexp(logits) - logits[target]` from the row's largest element and the sum of the exponentials less it.
#[inline(always)]
fn loss_of(sum: f32, largest: f32, target: f32) -> f64 {
    f64::from(sum).ln() + (f64::from(largest) - f64::from(target))
}

simd! {
    fn without_gradient(logits: &[f32], targets: &[i32]) -> f64 {
        let vocabulary = logits.len() / targets.len();
        let mut loss = 0.0;
        for (row, &target) in logits.chunks_exact(vocabulary).zip(targets) {
            let largest = largest(row);
            let sum = sum(row.len(), |v| exp::<FUSED>(row[v] - largest));
            loss += loss_of(sum, largest, row[target as usize]);
        }
        loss
    }
}

simd! {
    /// Turns logits, which are in `dlogits` unless they are given, into their gradient.
    fn with_gradient(logits: Option<&[f32]>, targets: &[i32], scale: f32, dlogits: &mut [f32]) -> f64 {
        let vocabulary = dlogits.len() / targets.len();
        let mut loss = 0.0;
        for ((index, row), &target) in dlogits.chunks_exact_mut(vocabulary).enumerate().zip(targets) {
            if let Some(logits) = logits {
                row.copy_from_slice(&logits[index * vocabulary..(index + 1) * vocabulary]);
            }
            let largest = largest(row);
            let logit = row[target as usize];
            for value in row.iter_mut() {
                *value = exp::<FUSED>(*value - largest);
            }
            let sum = sum(row.len(), |v| row[v]);
            let share = scale / sum;
            for value in row.iter_mut() {
                *value *= share;
            }
            row[target as usize] -= scale;
            loss += loss_of(sum, largest, logit);
        }
        loss
    }
}
