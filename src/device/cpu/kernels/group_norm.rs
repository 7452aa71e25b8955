//! Group normalization. A task processes whole samples.

use std::ops::Range;

use ops::{GroupNorm, GroupNormBackward};

use super::as_f64;
use super::batch_norm::{start_row, store_sums};
use super::channels::{
    Affine, Slopes, Statistics, add_gradient_sums, affine, differentiate_row, moments, normalise_row,
};
use super::elementwise::add_to;
use super::float::Float;
use super::operands::{Addend, Operands};
use super::workers::{SharedSlice, Workers};

/// The channels of each group.
fn groups(channels: usize, groups: usize) -> impl Iterator<Item = Range<usize>> {
    let each = channels / groups;
    (0..groups).map(move |group| group * each..(group + 1) * each)
}

pub(super) fn forward<T: Float>(
    op: &GroupNorm,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let (x, weight, bias) = (operands.input::<T>(0), operands.input::<f32>(1), operands.input::<f32>(2));
    let (samples, channels) = (operands.input_type(0).shape.dims()[0], weight.len());
    let pixels = x.len() / channels / samples;
    let elements = (pixels * channels / op.groups) as f64;
    let y = SharedSlice::new(operands.output::<T>(0));
    let [mean, rstd] = [1, 2].map(|index| SharedSlice::new(operands.output::<f32>(index)));
    let scratch = SharedSlice::new(scratch);
    let level = workers.level();
    workers.for_each_with_worker(samples, |worker, sample| {
        let of_sample = sample * op.groups..(sample + 1) * op.groups;
        // SAFETY: each worker has its own scratch memory, and each sample its own statistics.
        #[allow(unsafe_code)]
        let (scratch, mean, rstd) = unsafe {
            (
                scratch.range_mut(worker * 8 * channels..(worker + 1) * 8 * channels),
                mean.range_mut(of_sample.clone()),
                rstd.range_mut(of_sample),
            )
        };
        let (of_channels, terms) = scratch.split_at_mut(4 * channels);
        let (means, squares) = as_f64(of_channels).split_at_mut(channels);
        means.fill(0.0);
        let rows = sample * pixels..(sample + 1) * pixels;
        moments(level, x, rows.clone(), means, squares);

        let (centre, terms) = terms.split_at_mut(channels);
        let (factor, terms) = terms.split_at_mut(channels);
        let shift = &mut terms[..channels];
        for (group, channels) in groups(channels, op.groups).enumerate() {
            let group_mean = means[channels.clone()].iter().sum::<f64>() / channels.len() as f64;
            let squares =
                channels.clone().map(|c| squares[c] + pixels as f64 * (means[c] - group_mean).powi(2));
            let variance = squares.sum::<f64>() / elements;
            let group_rstd = 1.0 / (variance + f64::from(op.epsilon)).sqrt();
            (mean[group], rstd[group]) = (group_mean as f32, group_rstd as f32);
            for c in channels {
                centre[c] = group_mean as f32;
                (factor[c], shift[c]) = affine(group_mean, group_rstd, weight[c], bias[c]);
            }
        }
        let by = Affine { mean: centre, factor, shift };
        for row in rows {
            let elements = row * channels..(row + 1) * channels;
            // SAFETY: rows do not overlap.
            #[allow(unsafe_code)]
            let y = unsafe { y.range_mut(elements.clone()) };
            normalise_row(level, &x[elements], by, y);
        }
    });
}

pub(super) fn backward<T: Float, G: Float>(
    op: &GroupNormBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let x = operands.input::<T>(1);
    let [weight, mean, rstd] = [2, 3, 4].map(|index| operands.input::<f32>(index));
    let (samples, channels, level) = (operands.input_type(1).shape.dims()[0], weight.len(), workers.level());
    let (pixels, group_count) = (x.len() / channels / samples, mean.len() / samples);
    let elements = (pixels * channels / group_count) as f32;
    // dx overwrites dy, a copy of it, or adds to the partial gradient.
    let dy = if op.accumulate { Some(operands.input::<T>(0)) } else { operands.input_unless_aliased(0, 0) };
    let previous = operands.addend::<T>(0, op.accumulate.then_some(5));
    let dx = SharedSlice::new(operands.output::<T>(0));

    let each = GroupNormBackward::samples_per_partial(samples);
    let (of_workers, partials) = scratch.split_at_mut(workers.threads() * 7 * channels);
    let partials = &mut partials[..samples.div_ceil(each) * 2 * channels];
    let (of_workers, shared) = (SharedSlice::new(of_workers), SharedSlice::new(partials));
    workers.for_each_with_worker(samples.div_ceil(each), |worker, task| {
        // SAFETY: each worker has its own scratch memory, and each task its own partial sums.
        #[allow(unsafe_code)]
        let (scratch, partial) = unsafe {
            (
                of_workers.range_mut(worker * 7 * channels..(worker + 1) * 7 * channels),
                shared.range_mut(task * 2 * channels..(task + 1) * 2 * channels),
            )
        };
        partial.fill(0.0);
        let (sums, terms) = scratch.split_at_mut(2 * channels);
        let mut terms = terms.chunks_exact_mut(channels);
        let [centre, scale, factor, through, along] =
            std::array::from_fn(|_| terms.next().expect("five terms of each channel"));
        for sample in task * each..samples.min((task + 1) * each) {
            let of_sample = sample * group_count..(sample + 1) * group_count;
            let (mean, rstd) = (&mean[of_sample.clone()], &rstd[of_sample]);
            for (group, channels) in groups(channels, group_count).enumerate() {
                centre[channels.clone()].fill(mean[group]);
                scale[channels].fill(rstd[group]);
            }
            let statistics = Statistics { mean: centre, rstd: scale };
            let rows = sample * pixels..(sample + 1) * pixels;
            // SAFETY: samples do not overlap.
            #[allow(unsafe_code)]
            let dx = unsafe { dx.range_mut(rows.start * channels..rows.end * channels) };
            let of_sample = rows.start * channels..rows.end * channels;
            let x = &x[of_sample.clone()];
            let dy = dy.map(|dy| &dy[of_sample.clone()]);
            sums.fill(0.0);
            let (dweight, dbias) = sums.split_at_mut(channels);
            add_gradient_sums(level, (dy.unwrap_or(dx), x), 0..pixels, statistics, dweight, dbias);
            for (group, channels) in groups(channels, group_count).enumerate() {
                let mean_of =
                    |sums: &[f32]| channels.clone().map(|c| weight[c] * sums[c]).sum::<f32>() / elements;
                through[channels.clone()].fill(rstd[group] * mean_of(dbias));
                along[channels.clone()].fill(rstd[group] * mean_of(dweight));
                for c in channels {
                    factor[c] = rstd[group] * weight[c];
                }
            }
            add_to(level, partial, sums);
            if let Addend::Input(previous) = previous {
                dx.copy_from_slice(&previous[of_sample]);
            }
            let by = Slopes { statistics, factor, through, along };
            for (row, (x, dx)) in x.chunks_exact(channels).zip(dx.chunks_exact_mut(channels)).enumerate() {
                let dy = dy.map(|dy| &dy[row * channels..(row + 1) * channels]);
                let separate = start_row(op.accumulate, dy, dx);
                differentiate_row(level, separate, x, by, dx);
            }
        }
    });
    let (sums, others) = partials.split_at_mut(2 * channels);
    for partial in others.chunks_exact(2 * channels) {
        add_to(level, sums, partial);
    }
    for (output, sums) in [1, 2].into_iter().zip(sums.chunks_exact(channels)) {
        store_sums(operands.output::<G>(output), op.accumulate_weights, sums, workers);
    }
}
