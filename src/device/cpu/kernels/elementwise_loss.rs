//! Losses of single elements.

use ops::{ElementwiseLoss, Loss, LossFunction};

use super::as_f64;
use super::float::{BUFFER, Float};
use super::math::exp;
use super::operands::Operands;
use super::simd::simd;
use super::workers::{SharedSlice, Workers};

const ROWS: usize = ElementwiseLoss::ROWS_PER_PARTIAL;

pub(super) fn run<T: Float>(
    op: &ElementwiseLoss,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let ElementwiseLoss { terms, function } = *op;
    let prediction = operands.input_type(0).shape;
    let columns = prediction.last();
    // Without targets or weights, rows beyond a slice do not matter.
    let (all_rows, part) = match op.all_rows(&operands.input_types()) {
        Some(all) => (all, terms.rows.range(all)),
        None => (prediction.rows(), 0..prediction.rows()),
    };
    let targets = terms.targets.then(|| &operands.input::<f32>(1)[part.start * columns..part.end * columns]);
    // One weight per sample.
    let weights = terms.weighted.then(|| operands.input::<f32>(terms.weights()));
    let rows_per_sample = weights.map_or(1, |weights| all_rows / weights.len());
    let weight = |row: usize| {
        weights.map_or(1.0, |weights| op.sample_factor(weights[(part.start + row) / rows_per_sample]))
    };
    let loss_scale = if terms.scaled { operands.input::<f32>(terms.loss_scale())[0] } else { 1.0 };
    let factor = op.factor(all_rows as f64 * columns as f64);
    let scale = factor as f32 * loss_scale;
    let level = workers.level();
    let partials = as_f64(&mut scratch[..2 * part.len().div_ceil(ROWS)]);
    let sums = SharedSlice::new(partials);
    let x = if terms.gradient { operands.input_unless_aliased::<T>(1, 0) } else { Some(operands.input(0)) };
    let dx = terms.gradient.then(|| SharedSlice::new(operands.output::<T>(1)));
    workers.for_each(part.len().div_ceil(ROWS), |chunk| {
        let mut values = [0.0; BUFFER];
        let mut sum = 0.0;
        for row in chunk * ROWS..part.len().min((chunk + 1) * ROWS) {
            let weight = weight(row);
            let mut of_row = 0.0;
            for first in (row * columns..(row + 1) * columns).step_by(BUFFER) {
                let range = first..(first + BUFFER).min((row + 1) * columns);
                let values = &mut values[..range.len()];
                // SAFETY: rows do not overlap.
                #[allow(unsafe_code)]
                let dx = dx.as_ref().map(|dx| unsafe { dx.range_mut(range.clone()) });
                match (&x, &dx) {
                    (Some(x), _) => T::widen(level, &x[range.clone()], values),
                    (None, Some(dx)) => T::widen(level, dx, values),
                    (None, None) => unreachable!("without a gradient, the prediction is an input"),
                }
                of_row += losses_and_slopes(
                    level,
                    function,
                    targets.map_or(&[], |targets| &targets[range]),
                    scale * weight,
                    values,
                );
                if let Some(dx) = dx {
                    T::narrow(level, values, dx);
                }
            }
            sum += of_row * f64::from(weight);
        }
        // SAFETY: each chunk has its own partial sum.
        #[allow(unsafe_code)]
        unsafe {
            sums.range_mut(chunk..chunk + 1)[0] = sum;
        }
    });
    let total = (partials.iter().sum::<f64>() * factor) as f32;
    let loss = operands.output::<f32>(0);
    loss[0] = if terms.accumulate { loss[0] + total } else { total };
}

simd! {
    /// Replaces the predictions by their slopes times `scale`. Returns the sum of the losses.
    fn losses_and_slopes(function: LossFunction, targets: &[f32], scale: f32, values: &mut [f32]) -> f64 {
        let mut sum = 0.0;
        match function {
            LossFunction::SquaredError => {
                for (value, &target) in values.iter_mut().zip(targets) {
                    let difference = *value - target;
                    sum += f64::from(difference) * f64::from(difference);
                    *value = 2.0 * difference * scale;
                }
            }
            LossFunction::BinaryCrossEntropy => {
                for (value, &target) in values.iter_mut().zip(targets) {
                    let x = *value;
                    let tail = exp::<FUSED>(-x.abs());
                    sum += f64::from(x.max(0.0)) - f64::from(x) * f64::from(target) + f64::from(tail).ln_1p();
                    let share = if x >= 0.0 { 1.0 / (1.0 + tail) } else { tail / (1.0 + tail) };
                    *value = (share - target) * scale;
                }
            }
            LossFunction::Sum { .. } => {
                for value in values {
                    sum += f64::from(*value);
                    *value = scale;
                }
            }
        }
        sum
    }
}
