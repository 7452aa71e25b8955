//! Softmax and cross-entropy in one pass over the logits, within a cap or not.

use ops::{CrossEntropy, DType};

use super::as_f64;
use super::float::Float;
use super::math::{exp, largest, sum, tanh};
use super::operands::Operands;
use super::simd::{Level, simd};
use super::workers::{Parts, Workers};

const ROWS: usize = CrossEntropy::ROWS_PER_PARTIAL;

pub(super) fn run<T: Float>(
    op: &CrossEntropy,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let vocabulary = operands.input_type(0).shape.last();
    let all_targets = operands.tokens(1);
    let all_rows = all_targets.len();
    let targets = &all_targets[op.rows.range(all_rows)];
    let rows = targets.len();
    let first_row = op.rows.range(all_rows).start;
    // A weight for so many rows.
    let weights = op.weighted.then(|| operands.input::<f32>(2));
    let rows_of_sample = weights.map_or(1, |weights| all_rows / weights.len());
    let loss_scale = if op.scaled { operands.input::<f32>(op.loss_scale())[0] } else { 1.0 };
    let scale = op.factor() / all_rows as f32 * loss_scale;
    let (partials, wide) = scratch.split_at_mut(2 * rows.div_ceil(ROWS));
    let partials = as_f64(partials);
    let (parts, wide) = (Parts::new(partials), Parts::new(wide));
    let wide_len = if T::DTYPE == DType::F32 { 0 } else { vocabulary };
    let logits = if op.gradient { operands.source::<T>(1, 0) } else { Some(operands.input(0)) };
    let dlogits = op.gradient.then(|| Parts::new(operands.output::<T>(1)));
    workers.each_by(rows.div_ceil(ROWS), |worker, chunk| {
        let rows = chunk * ROWS..rows.min((chunk + 1) * ROWS);
        let elements = rows.start * vocabulary..rows.end * vocabulary;
        // SAFETY: runs of rows do not overlap and have a partial sum of their own, and workers a wide row.
        #[allow(unsafe_code)]
        let (dlogits, partial, wide) = unsafe {
            (
                dlogits.as_ref().map(|dlogits| dlogits.part(elements.clone())),
                parts.part(chunk..chunk + 1),
                wide.part(worker * wide_len..(worker + 1) * wide_len),
            )
        };
        let logits = logits.map(|logits| &logits[elements]);
        let weight =
            |row: usize| weights.map(|weights| weights[(first_row + rows.start + row) / rows_of_sample]);
        let these = Rows { targets: &targets[rows.clone()], logits, dlogits, cap: op.cap };
        partial[0] = these.run(workers.level(), scale, weight, wide);
    });
    let total = partials.iter().sum::<f64>() * f64::from(op.factor()) / all_rows as f64;
    let loss = operands.output::<f32>(0);
    loss[0] = if op.accumulate { loss[0] + total as f32 } else { total as f32 };
}

/// A run of rows.
struct Rows<'a, T> {
    targets: &'a [i32],
    /// None where `dlogits` begins as them.
    logits: Option<&'a [T]>,
    dlogits: Option<&'a mut [T]>,
    cap: Option<f32>,
}

impl<T: Float> Rows<'_, T> {
    /// The sum of the losses, weighted where rows are. `wide` holds a row in f32.
    fn run(
        mut self,
        level: Level,
        scale: f32,
        weight: impl Fn(usize) -> Option<f32>,
        wide: &mut [f32],
    ) -> f64 {
        let mut loss = 0.0;
        for (row, &target) in self.targets.iter().enumerate() {
            let weight = weight(row);
            let elements =
                |all: usize| row * (all / self.targets.len())..(row + 1) * (all / self.targets.len());
            let logits = self.logits.map(|logits| &logits[elements(logits.len())]);
            let counts = weight.is_none() || target >= 0;
            let target = target as usize;
            let (scale, weight) = (scale * weight.unwrap_or(1.0), f64::from(weight.unwrap_or(1.0)));
            let Some(dlogits) = &mut self.dlogits else {
                let logits = logits.expect("a gradient or logits of their own");
                if counts {
                    loss +=
                        weight * without_gradient(level, T::widened(level, logits, wide), target, self.cap);
                }
                continue;
            };
            let elements = elements(dlogits.len());
            let dlogits = &mut dlogits[elements];
            if !counts {
                dlogits.fill(T::default());
                continue;
            }
            if let Some(logits) = logits {
                dlogits.copy_from_slice(logits);
            }
            if let Some(dlogits) = T::as_f32_mut(dlogits) {
                loss += weight * with_gradient(level, target, scale, self.cap, dlogits);
            } else {
                T::widen(level, dlogits, wide);
                loss += weight * with_gradient(level, target, scale, self.cap, wide);
                T::narrow(level, wide, dlogits);
            }
        }
        loss
    }
}

/// `logsumexp(logits) - logits[target]` from the row's largest element and the sum of the exponentials less it.
#[inline(always)]
fn loss_of(sum: f32, largest: f32, target: f32) -> f64 {
    f64::from(sum).ln() + (f64::from(largest) - f64::from(target))
}

/// A logit within a cap.
#[inline(always)]
fn capped<const FUSED: bool>(logit: f32, cap: f32) -> f32 {
    cap * tanh::<FUSED>(logit / cap)
}

/// What the gradient of a logit within a cap is multiplied by to be that of the logit before.
#[inline(always)]
fn slope(capped: f32, cap: f32) -> f32 {
    let share = capped / cap;
    1.0 - share * share
}

fn without_gradient(level: Level, logits: &[f32], target: usize, cap: Option<f32>) -> f64 {
    match cap {
        Some(cap) => loss_within(level, logits, target, cap),
        None => loss(level, logits, target),
    }
}

/// Turns the logits of a row into their gradient.
fn with_gradient(level: Level, target: usize, scale: f32, cap: Option<f32>, row: &mut [f32]) -> f64 {
    match cap {
        Some(cap) => loss_and_gradient_within(level, target, scale, cap, row),
        None => loss_and_gradient(level, target, scale, row),
    }
}

simd! {
    fn loss(logits: &[f32], target: usize) -> f64 {
        let largest = largest(logits);
        let sum = sum(logits.len(), |v| exp::<FUSED>(logits[v] - largest));
        loss_of(sum, largest, logits[target])
    }
}

simd! {
    fn loss_within(logits: &[f32], target: usize, cap: f32) -> f64 {
        let largest = capped::<FUSED>(largest(logits), cap);
        let sum = sum(logits.len(), |v| exp::<FUSED>(capped::<FUSED>(logits[v], cap) - largest));
        loss_of(sum, largest, capped::<FUSED>(logits[target], cap))
    }
}

simd! {
    fn loss_and_gradient(target: usize, scale: f32, row: &mut [f32]) -> f64 {
        let largest = largest(row);
        let logit = row[target];
        for value in row.iter_mut() {
            *value = exp::<FUSED>(*value - largest);
        }
        let sum = sum(row.len(), |v| row[v]);
        let share = scale / sum;
        for value in row.iter_mut() {
            *value *= share;
        }
        row[target] -= scale;
        loss_of(sum, largest, logit)
    }
}

simd! {
    /// The row holds what is within the cap first, of which exponentials are taken twice.
    fn loss_and_gradient_within(target: usize, scale: f32, cap: f32, row: &mut [f32]) -> f64 {
        for value in row.iter_mut() {
            *value = capped::<FUSED>(*value, cap);
        }
        let largest = largest(row);
        let logit = row[target];
        let sum = sum(row.len(), |v| exp::<FUSED>(row[v] - largest));
        let share = scale / sum;
        for value in row.iter_mut() {
            *value = exp::<FUSED>(*value - largest) * share * slope(*value, cap);
        }
        row[target] -= scale * slope(logit, cap);
        loss_of(sum, largest, logit)
    }
}
