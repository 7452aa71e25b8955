//! Batch normalization.

use ops::{BatchNorm, BatchNormBackward, BatchNormMode};

use super::as_f64;
use super::channels::{
    Affine, Slopes, Statistics, add_gradient_sums, affine, differentiate_row, moments, normalise_row,
    rows_per_task,
};
use super::elementwise::add_to;
use super::float::{BUFFER, Float, update};
use super::operands::{Addend, Operands};
use super::workers::{SharedSlice, Workers};

pub(super) fn forward<T: Float>(
    op: &BatchNorm,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let (x, weight, bias) = (operands.input::<T>(0), operands.input::<f32>(1), operands.input::<f32>(2));
    let channels = weight.len();
    let (factor, rest) = scratch.split_at_mut(channels);
    let (shift, rest) = rest.split_at_mut(channels);
    let epsilon = f64::from(op.epsilon);
    let mean: &[f32] = match op.mode {
        BatchNormMode::Evaluation => {
            let (mean, variance) = (operands.input::<f32>(3), operands.input::<f32>(4));
            for c in 0..channels {
                let rstd = 1.0 / (f64::from(variance[c]) + epsilon).sqrt();
                (factor[c], shift[c]) = affine(mean[c].into(), rstd, weight[c], bias[c]);
            }
            mean
        }
        BatchNormMode::Training | BatchNormMode::Recomputation => {
            let (mean, rstd) = (operands.output::<f32>(1), operands.output::<f32>(2));
            let mut running = (op.mode == BatchNormMode::Training)
                .then(|| (operands.output::<f32>(3), operands.output::<f32>(4)));
            let rows = x.len() / channels;
            let partials = batch_moments(x, channels, as_f64(rest), workers);
            for c in 0..channels {
                let (channel_mean, squares) = partials.channel(c);
                let channel_rstd = 1.0 / (squares / rows as f64 + epsilon).sqrt();
                (mean[c], rstd[c]) = (channel_mean as f32, channel_rstd as f32);
                (factor[c], shift[c]) = affine(channel_mean, channel_rstd, weight[c], bias[c]);
                if let Some((running_mean, running_variance)) = &mut running {
                    let unbiased = squares / rows.saturating_sub(1).max(1) as f64;
                    for (running, batch) in [(running_mean, channel_mean), (running_variance, unbiased)] {
                        let momentum = f64::from(op.momentum);
                        running[c] = ((1.0 - momentum) * f64::from(running[c]) + momentum * batch) as f32;
                    }
                }
            }
            mean
        }
    };
    let by = Affine { mean, factor, shift };
    let (y, level) = (SharedSlice::new(operands.output::<T>(0)), workers.level());
    workers.for_each_chunk(x.len() / channels, rows_per_task(channels), |rows| {
        for row in rows {
            let elements = row * channels..(row + 1) * channels;
            // SAFETY: rows do not overlap.
            #[allow(unsafe_code)]
            let y = unsafe { y.range_mut(elements.clone()) };
            normalise_row(level, &x[elements], by, y);
        }
    });
}

/// Partial results of all channels: means and sums of squared differences, [partials, 2, C].
struct Partials<'a> {
    values: &'a [f64],
    channels: usize,
    rows: usize,
    rows_per_partial: usize,
}

impl Partials<'_> {
    /// The mean of a channel over all rows, and the sum of squared differences from it.
    fn channel(&self, channel: usize) -> (f64, f64) {
        let partials = || {
            self.values.chunks_exact(2 * self.channels).enumerate().map(move |(index, partial)| {
                let count = self.rows_per_partial.min(self.rows - index * self.rows_per_partial);
                (count as f64, partial[channel], partial[self.channels + channel])
            })
        };
        let mean = partials().map(|(count, mean, _)| count * mean).sum::<f64>() / self.rows as f64;
        let squares = partials().map(|(count, part, squares)| squares + count * (part - mean).powi(2)).sum();
        (mean, squares)
    }
}

/// The partial results of the rows of x, stored in `scratch`.
fn batch_moments<'a, T: Float>(
    x: &[T],
    channels: usize,
    scratch: &'a mut [f64],
    workers: &Workers,
) -> Partials<'a> {
    let rows = x.len() / channels;
    let rows_per_partial = BatchNorm::rows_per_partial(rows, channels);
    let values = &mut scratch[..rows.div_ceil(rows_per_partial) * 2 * channels];
    let shared = SharedSlice::new(values);
    workers.for_each_chunk(rows, rows_per_partial, |rows| {
        let start = rows.start / rows_per_partial * 2 * channels;
        // SAFETY: chunks have their own partial results.
        #[allow(unsafe_code)]
        let partial = unsafe { shared.range_mut(start..start + 2 * channels) };
        let (means, squares) = partial.split_at_mut(channels);
        means.fill(0.0);
        moments(workers.level(), x, rows, means, squares);
    });
    Partials { values, channels, rows, rows_per_partial }
}

pub(super) fn backward<T: Float, G: Float>(
    op: &BatchNormBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let x = operands.input::<T>(1);
    let [weight, mean, rstd] = [2, 3, 4].map(|index| operands.input::<f32>(index));
    let (channels, level) = (weight.len(), workers.level());
    let rows = x.len() / channels;
    let statistics = Statistics { mean, rstd };
    // dx overwrites dy, a copy of it, or adds to the partial gradient.
    let dy = if op.accumulate { Some(operands.input::<T>(0)) } else { operands.input_unless_aliased(0, 0) };
    let partial = operands.addend::<T>(0, op.accumulate.then_some(5));
    let dx = operands.output::<T>(0);

    let rows_per_partial = BatchNorm::rows_per_partial(rows, channels);
    let count = rows.div_ceil(rows_per_partial);
    let (sums, partials) = scratch[..(count + 1) * 2 * channels].split_at_mut(2 * channels);
    let shared = SharedSlice::new(partials);
    let gradient: &[T] = dy.unwrap_or(dx);
    workers.for_each_chunk(rows, rows_per_partial, |rows| {
        let start = rows.start / rows_per_partial * 2 * channels;
        // SAFETY: chunks have their own partial sums.
        #[allow(unsafe_code)]
        let partial = unsafe { shared.range_mut(start..start + 2 * channels) };
        partial.fill(0.0);
        let (dweight, dbias) = partial.split_at_mut(channels);
        add_gradient_sums(level, (gradient, x), rows, statistics, dweight, dbias);
    });
    sums.fill(0.0);
    for partial in partials.chunks_exact(2 * channels) {
        add_to(level, sums, partial);
    }
    for (output, sums) in [1, 2].into_iter().zip(sums.chunks_exact(channels)) {
        store_sums(operands.output::<G>(output), op.accumulate_weights, sums, workers);
    }

    // The sums and a part of the partial sums become the slopes' terms.
    let (along, through) = sums.split_at_mut(channels);
    let factor = &mut partials[..channels];
    for c in 0..channels {
        factor[c] = rstd[c] * weight[c];
        along[c] = factor[c] * (along[c] / rows as f32);
        through[c] = factor[c] * (through[c] / rows as f32);
    }
    let by = Slopes { statistics, factor, through, along };
    let dx = SharedSlice::new(dx);
    workers.for_each_chunk(rows, rows_per_task(channels), |rows| {
        for row in rows {
            let elements = row * channels..(row + 1) * channels;
            // SAFETY: rows do not overlap.
            #[allow(unsafe_code)]
            let dx = unsafe { dx.range_mut(elements.clone()) };
            let separate = start_row(op.accumulate, dy.map(|dy| &dy[elements.clone()]), dx);
            if let Addend::Input(partial) = partial {
                dx.copy_from_slice(&partial[elements.clone()]);
            }
            differentiate_row(level, separate, &x[elements], by, dx);
        }
    });
}

/// Prepares a row of dx: returns dy if dx accumulates; otherwise dx receives dy, unless it holds it already.
pub(super) fn start_row<'a, T: Float>(
    accumulate: bool,
    dy: Option<&'a [T]>,
    dx: &mut [T],
) -> Option<&'a [T]> {
    if accumulate {
        return dy;
    }
    if let Some(dy) = dy {
        dx.copy_from_slice(dy);
    }
    None
}

/// Stores the gradient of a parameter, or adds it to the previous one.
pub(super) fn store_sums<G: Float>(gradient: &mut [G], accumulate: bool, sums: &[f32], workers: &Workers) {
    if !accumulate {
        gradient.fill(G::default());
    }
    update(workers.level(), gradient, &mut [0.0; BUFFER], |run, gradient| {
        add_to(workers.level(), gradient, &sums[run]);
    });
}
