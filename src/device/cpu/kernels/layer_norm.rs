//! Layer normalisation over rows.

use crate::ops::{LayerNorm, LayerNormBackward};

use super::elementwise::add_to;
use super::math::sum;
use super::operands::{Operands, Start};
use super::simd::simd;
use super::workers::{Parts, Workers};

const ROWS: usize = LayerNormBackward::ROWS_PER_PARTIAL;

pub(super) fn forward(op: &LayerNorm, operands: &mut Operands, workers: &Workers) {
    let (x, weight, bias) = (operands.input(0), operands.input(1), operands.input(2));
    let channels = weight.len();
    let y = Parts::new(operands.output(0));
    let (mean, rstd) = (Parts::new(operands.output(1)), Parts::new(operands.output(2)));
    workers.chunks(x.len() / channels, ROWS, |rows| {
        let elements = rows.start * channels..rows.end * channels;
        // SAFETY: runs of rows do not overlap.
        #[allow(unsafe_code)]
        let (y, mean, rstd) = unsafe { (y.part(elements.clone()), mean.part(rows.clone()), rstd.part(rows)) };
        normalise(workers.level(), &x[elements], weight, bias, op.epsilon, y, mean, rstd);
    });
}

simd! {
    #[allow(clippy::too_many_arguments)] // The operation's own operands.
    fn normalise(
        x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, y: &mut [f32], mean: &mut [f32], rstd: &mut [f32],
    ) {
        let channels = weight.len();
        let bias = &bias[..channels];
        let rows = x.chunks_exact(channels).zip(y.chunks_exact_mut(channels));
        for ((x, y), (mean, rstd)) in rows.zip(mean.iter_mut().zip(rstd)) {
            let (x, y) = (&x[..channels], &mut y[..channels]);
            let centre = sum(channels, |c| x[c]) / channels as f32;
            let squares = sum(channels, |c| (x[c] - centre) * (x[c] - centre));
            let scale = 1.0 / (squares / channels as f32 + epsilon).sqrt();
            for c in 0..channels {
                y[c] = (x[c] - centre) * scale * weight[c] + bias[c];
            }
            (*mean, *rstd) = (centre, scale);
        }
    }
}

pub(super) fn backward(
    op: &LayerNormBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let [dy, x, weight, mean, rstd] = [0, 1, 2, 3, 4].map(|index| operands.input(index));
    let channels = weight.len();
    let start = operands.start(0, op.accumulate.then_some(5));
    let dx = Parts::new(operands.output(0));
    let rows = x.len() / channels;
    let scratch = &mut scratch[..rows.div_ceil(ROWS) * 2 * channels];
    let partials = Parts::new(scratch);
    workers.chunks(rows, ROWS, |rows| {
        let partial = rows.start / ROWS * 2 * channels;
        let elements = rows.start * channels..rows.end * channels;
        // SAFETY: runs of rows do not overlap and have partial sums of their own.
        #[allow(unsafe_code)]
        let (dx, partial) =
            unsafe { (dx.part(elements.clone()), partials.part(partial..partial + 2 * channels)) };
        match start {
            Start::Zero => dx.fill(0.0),
            Start::Output => {}
            Start::Other(so_far) => dx.copy_from_slice(&so_far[elements.clone()]),
        }
        let rows = (&dy[elements.clone()], &x[elements], &mean[rows.clone()], &rstd[rows]);
        differentiate(workers.level(), rows, weight, dx, partial);
    });
    for (index, sums) in [operands.output(1), operands.output(2)].into_iter().enumerate() {
        if !op.accumulate_weights {
            sums.fill(0.0);
        }
        for partial in scratch.chunks_exact(channels).skip(index).step_by(2) {
            add_to(workers.level(), sums, partial);
        }
    }
}

simd! {
    /// Adds to dx and overwrites the partial sums of dweight and dbias. `rows` are dy, x, mean, rstd.
    fn differentiate(
        rows: (&[f32], &[f32], &[f32], &[f32]), weight: &[f32], dx: &mut [f32], partial: &mut [f32],
    ) {
        let (dy, x, mean, rstd) = rows;
        let channels = weight.len();
        partial.fill(0.0);
        let (dweight, dbias) = partial.split_at_mut(channels);
        let (dweight, dbias) = (&mut dweight[..channels], &mut dbias[..channels]);
        let operands = dy.chunks_exact(channels).zip(x.chunks_exact(channels)).zip(dx.chunks_exact_mut(channels));
        for (((dy, x), dx), (&mean, &rstd)) in operands.zip(mean.iter().zip(rstd)) {
            let (dy, x, dx) = (&dy[..channels], &x[..channels], &mut dx[..channels]);
            let normal = |c: usize| (x[c] - mean) * rstd;
            let through = sum(channels, |c| dy[c] * weight[c]) / channels as f32;
            let along = sum(channels, |c| dy[c] * weight[c] * normal(c)) / channels as f32;
            for c in 0..channels {
                let normal = normal(c);
                dx[c] += rstd * (dy[c] * weight[c] - through - normal * along);
                dweight[c] += dy[c] * normal;
                dbias[c] += dy[c];
            }
        }
    }
}
