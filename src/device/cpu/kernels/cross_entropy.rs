//! Fused softmax and cross-entropy, optionally with soft-capped logits or smoothed labels.

use ops::{CrossEntropy, DType};

use super::as_f64;
use super::float::Float;
use super::math::{exp, largest, sum, tanh};
use super::operands::Operands;
use super::simd::{Level, simd};
use super::workers::{SharedSlice, Workers};

const ROWS: usize = CrossEntropy::ROWS_PER_PARTIAL;

pub(super) fn run<T: Float>(
    op: &CrossEntropy,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let CrossEntropy { terms, accuracy, .. } = op;
    let vocabulary = operands.input_type(0).shape.last();
    let all_targets = operands.i32_input(1);
    let all_rows = all_targets.len();
    let targets = &all_targets[terms.rows.range(all_rows)];
    let rows = targets.len();
    let first_row = terms.rows.range(all_rows).start;
    // One weight per sample.
    let weights = terms.weighted.then(|| operands.input::<f32>(2));
    let rows_per_sample = weights.map_or(1, |weights| all_rows / weights.len());
    let loss_scale = if terms.scaled { operands.input::<f32>(terms.loss_scale())[0] } else { 1.0 };
    let scale = terms.factor() / all_rows as f32 * loss_scale;
    // Sums of each chunk: the losses and, for an accuracy, the weights of correct rows.
    let sums_len = if *accuracy { 2 } else { 1 };
    let (partials, wide) = scratch.split_at_mut(2 * sums_len * rows.div_ceil(ROWS));
    let partials = as_f64(partials);
    let (sums, wide) = (SharedSlice::new(partials), SharedSlice::new(wide));
    let wide_len = if T::DTYPE == DType::F32 { 0 } else { vocabulary };
    let logits =
        if terms.gradient { operands.input_unless_aliased::<T>(1, 0) } else { Some(operands.input(0)) };
    let dlogits = terms.gradient.then(|| SharedSlice::new(operands.output::<T>(1)));
    workers.for_each_with_worker(rows.div_ceil(ROWS), |worker, chunk| {
        let rows = chunk * ROWS..rows.min((chunk + 1) * ROWS);
        let elements = rows.start * vocabulary..rows.end * vocabulary;
        // SAFETY: chunks of rows do not overlap and have their own partial sums; each worker has its own wide row.
        #[allow(unsafe_code)]
        let (dlogits, partials, wide) = unsafe {
            (
                dlogits.as_ref().map(|dlogits| dlogits.range_mut(elements.clone())),
                sums.range_mut(chunk * sums_len..(chunk + 1) * sums_len),
                wide.range_mut(worker * wide_len..(worker + 1) * wide_len),
            )
        };
        let logits = logits.map(|logits| &logits[elements]);
        let weight =
            |row: usize| weights.map(|weights| weights[(first_row + rows.start + row) / rows_per_sample]);
        let block = RowBlock { targets: &targets[rows.clone()], logits, dlogits, op };
        partials.copy_from_slice(&block.run(workers.level(), scale, weight, wide)[..sums_len]);
    });
    let results = operands.output::<f32>(0);
    for (index, result) in results.iter_mut().enumerate() {
        let sum = partials.iter().skip(index).step_by(sums_len).sum::<f64>();
        let total = sum * f64::from(terms.factor()) / all_rows as f64;
        *result = if terms.accumulate { *result + total as f32 } else { total as f32 };
    }
}

/// A block of rows.
struct RowBlock<'a, T> {
    targets: &'a [i32],
    /// None if `dlogits` holds the logits.
    logits: Option<&'a [T]>,
    dlogits: Option<&'a mut [T]>,
    op: &'a CrossEntropy,
}

impl<T: Float> RowBlock<'_, T> {
    /// Returns the weighted sums of the losses and of the correct rows, 0 if there is no accuracy. `wide` is a buffer for
    /// a row in f32.
    fn run(
        mut self,
        level: Level,
        scale: f32,
        weight: impl Fn(usize) -> Option<f32>,
        wide: &mut [f32],
    ) -> [f64; 2] {
        let (mut loss, mut correct) = (0.0, 0.0);
        for (row, &target) in self.targets.iter().enumerate() {
            let weight = weight(row);
            let elements =
                |all: usize| row * (all / self.targets.len())..(row + 1) * (all / self.targets.len());
            let logits = self.logits.map(|logits| &logits[elements(logits.len())]);
            let counts = weight.is_none() || target >= 0;
            let target = target as usize;
            let (scale, weight) = (scale * weight.unwrap_or(1.0), f64::from(weight.unwrap_or(1.0)));
            let Some(dlogits) = &mut self.dlogits else {
                let logits = logits.expect("without a gradient, the logits are an input");
                if counts {
                    let logits = T::widened(level, logits, wide);
                    loss += weight * row_loss(level, logits, target, self.op);
                    if self.op.accuracy && is_largest(logits, target) {
                        correct += weight;
                    }
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
                loss += weight * row_loss_and_gradient(level, target, scale, self.op, dlogits);
            } else {
                T::widen(level, dlogits, wide);
                loss += weight * row_loss_and_gradient(level, target, scale, self.op, wide);
                T::narrow(level, wide, dlogits);
            }
        }
        [loss, correct]
    }
}

/// `logsumexp(logits) - logits[target]`, from the row's largest logit and `sum(exp(logits - largest))`.
#[inline(always)]
fn loss_of(sum: f32, largest: f32, target: f32) -> f64 {
    f64::from(sum).ln() + (f64::from(largest) - f64::from(target))
}

/// A soft-capped logit.
#[inline(always)]
fn capped<const FUSED: bool>(logit: f32, cap: f32) -> f32 {
    cap * tanh::<FUSED>(logit / cap)
}

/// The derivative of the soft cap, from the capped logit.
#[inline(always)]
fn slope(capped: f32, cap: f32) -> f32 {
    let ratio = capped / cap;
    1.0 - ratio * ratio
}

/// Whether the target's logit is the largest of a row, and the first of equal ones.
fn is_largest(logits: &[f32], target: usize) -> bool {
    let logit = logits[target];
    let (before, after) = logits.split_at(target);
    before.iter().all(|&other| other < logit) && after.iter().all(|&other| other <= logit)
}

/// The mean logit under the smoothed target.
#[inline(always)]
fn smoothed(logits: &[f32], target: usize, smoothing: f32) -> f32 {
    let mean = sum(logits.len(), |v| logits[v]) / logits.len() as f32;
    (1.0 - smoothing) * logits[target] + smoothing * mean
}

fn row_loss(level: Level, logits: &[f32], target: usize, op: &CrossEntropy) -> f64 {
    match op.cap {
        Some(cap) => capped_loss(level, logits, target, cap),
        None if op.smoothing > 0.0 => smoothed_loss(level, logits, target, op.smoothing),
        None => loss(level, logits, target),
    }
}

/// Replaces the logits of a row by their gradient. Returns the loss.
fn row_loss_and_gradient(level: Level, target: usize, scale: f32, op: &CrossEntropy, row: &mut [f32]) -> f64 {
    match op.cap {
        Some(cap) => capped_loss_and_gradient(level, target, scale, cap, row),
        None if op.smoothing > 0.0 => smoothed_loss_and_gradient(level, target, scale, op.smoothing, row),
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
    fn smoothed_loss(logits: &[f32], target: usize, smoothing: f32) -> f64 {
        let largest = largest(logits);
        let sum = sum(logits.len(), |v| exp::<FUSED>(logits[v] - largest));
        loss_of(sum, largest, smoothed(logits, target, smoothing))
    }
}

simd! {
    fn capped_loss(logits: &[f32], target: usize, cap: f32) -> f64 {
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
        let factor = scale / sum;
        for value in row.iter_mut() {
            *value *= factor;
        }
        row[target] -= scale;
        loss_of(sum, largest, logit)
    }
}

simd! {
    fn smoothed_loss_and_gradient(target: usize, scale: f32, smoothing: f32, row: &mut [f32]) -> f64 {
        let largest = largest(row);
        let logit = smoothed(row, target, smoothing);
        for value in row.iter_mut() {
            *value = exp::<FUSED>(*value - largest);
        }
        let sum = sum(row.len(), |v| row[v]);
        let (factor, of_each) = (scale / sum, scale * smoothing / row.len() as f32);
        for value in row.iter_mut() {
            *value = *value * factor - of_each;
        }
        row[target] -= scale * (1.0 - smoothing);
        loss_of(sum, largest, logit)
    }
}

simd! {
    /// The gradient needs each capped logit and its exponential. The row keeps the capped logits, so the exponentials
    /// are computed twice.
    fn capped_loss_and_gradient(target: usize, scale: f32, cap: f32, row: &mut [f32]) -> f64 {
        for value in row.iter_mut() {
            *value = capped::<FUSED>(*value, cap);
        }
        let largest = largest(row);
        let logit = row[target];
        let sum = sum(row.len(), |v| exp::<FUSED>(row[v] - largest));
        let factor = scale / sum;
        for value in row.iter_mut() {
            *value = exp::<FUSED>(*value - largest) * factor * slope(*value, cap);
        }
        row[target] -= scale * slope(logit, cap);
        loss_of(sum, largest, logit)
    }
}
