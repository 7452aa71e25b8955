//! Layer normalization over rows.

use ops::{LayerNorm, LayerNormBackward};

use super::elementwise::add_to;
use super::float::{BUFFER, Float, read, update, write};
use super::math::sum;
use super::operands::{Addend, Operands};
use super::simd::{Level, simd};
use super::workers::{SharedSlice, Workers};

const ROWS: usize = LayerNormBackward::ROWS_PER_PARTIAL;

pub(super) fn forward<X: Float, T: Float>(op: &LayerNorm, operands: &mut Operands, workers: &Workers) {
    let (x, weight, bias) = (operands.input::<X>(0), operands.input::<f32>(1), operands.input::<f32>(2));
    let channels = weight.len();
    let y = SharedSlice::new(operands.output::<T>(0));
    let (mean, rstd) = (SharedSlice::new(operands.output(1)), SharedSlice::new(operands.output(2)));
    workers.for_each_chunk(x.len() / channels, ROWS, |rows| {
        let elements = rows.start * channels..rows.end * channels;
        // SAFETY: chunks of rows do not overlap.
        #[allow(unsafe_code)]
        let (y, mean, rstd) =
            unsafe { (y.range_mut(elements.clone()), mean.range_mut(rows.clone()), rstd.range_mut(rows)) };
        let level = workers.level();
        let rows = x[elements].chunks_exact(channels).zip(y.chunks_exact_mut(channels));
        let (mut buffer, mut wide) = ([0.0; BUFFER], [0.0; BUFFER]);
        for ((x, y), (mean, rstd)) in rows.zip(mean.iter_mut().zip(rstd)) {
            (*mean, *rstd) = statistics(level, x, op.epsilon);
            write(level, y, &mut buffer, |run, y| {
                let x = X::widened(level, &x[run.clone()], &mut wide);
                normalise(level, x, &weight[run.clone()], &bias[run], (*mean, *rstd), y);
            });
        }
    });
}

/// The mean of a row, and 1 over its standard deviation.
fn statistics<X: Float>(level: Level, x: &[X], epsilon: f32) -> (f32, f32) {
    let (mut buffer, channels) = ([0.0; BUFFER], x.len() as f32);
    let (mut total, mut squares) = (0.0, 0.0);
    read(level, x, &mut buffer, |_, x| total += sum_of(level, x));
    let mean = total / channels;
    read(level, x, &mut buffer, |_, x| squares += squares_about(level, x, mean));
    (mean, 1.0 / (squares / channels + epsilon).sqrt())
}

simd! {
    fn sum_of(x: &[f32]) -> f32 {
        sum(x.len(), |c| x[c])
    }
}

simd! {
    fn squares_about(x: &[f32], mean: f32) -> f32 {
        sum(x.len(), |c| (x[c] - mean) * (x[c] - mean))
    }
}

simd! {
    fn normalise(x: &[f32], weight: &[f32], bias: &[f32], statistics: (f32, f32), y: &mut [f32]) {
        let (mean, rstd) = statistics;
        let channels = y.len();
        let (x, weight, bias) = (&x[..channels], &weight[..channels], &bias[..channels]);
        for c in 0..channels {
            y[c] = (x[c] - mean) * rstd * weight[c] + bias[c];
        }
    }
}

pub(super) fn backward<T: Float, X: Float, G: Float>(
    op: &LayerNormBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    // The cast output may share memory with dy.
    let dy = if op.cast { operands.input_unless_aliased::<T>(3, 0) } else { Some(operands.input::<T>(0)) };
    let x = operands.input::<X>(1);
    let [weight, mean, rstd] = [2, 3, 4].map(|index| operands.input::<f32>(index));
    let channels = weight.len();
    let start = operands.addend::<X>(0, op.accumulate.then_some(5));
    let dx = SharedSlice::new(operands.output::<X>(0));
    let cast = op.cast.then(|| SharedSlice::new(operands.output::<T>(3)));
    let rows = x.len() / channels;
    let scratch = &mut scratch[..rows.div_ceil(ROWS) * 2 * channels];
    let partials = SharedSlice::new(scratch);
    workers.for_each_chunk(rows, ROWS, |rows| {
        let partial = rows.start / ROWS * 2 * channels;
        let elements = rows.start * channels..rows.end * channels;
        // SAFETY: chunks of rows do not overlap and have their own partial sums.
        #[allow(unsafe_code)]
        let (dx, partial) =
            unsafe { (dx.range_mut(elements.clone()), partials.range_mut(partial..partial + 2 * channels)) };
        match start {
            Addend::Zero => dx.fill(X::default()),
            Addend::Output => {}
            Addend::Input(previous) => dx.copy_from_slice(&previous[elements.clone()]),
        }
        let level = workers.level();
        partial.fill(0.0);
        let (dweight, dbias) = partial.split_at_mut(channels);
        let (mut buffer, mut wide, mut sums) = ([0.0; BUFFER], [0.0; BUFFER], [0.0; BUFFER]);
        for (dx, row) in dx.chunks_exact_mut(channels).zip(rows) {
            let elements = row * channels..(row + 1) * channels;
            let (x, mean, rstd) = (&x[elements.clone()], mean[row], rstd[row]);
            // SAFETY: rows do not overlap.
            #[allow(unsafe_code)]
            let cast = cast.as_ref().map(|cast| unsafe { cast.range_mut(elements.clone()) });
            let dy: &[T] = match (dy, &cast) {
                (Some(dy), _) => &dy[elements],
                (None, Some(cast)) => cast,
                (None, None) => unreachable!("dy shares memory with the cast output only"),
            };
            let (mut mean_gradient, mut mean_product) = (0.0, 0.0);
            read(level, dy, &mut buffer, |run, dy| {
                let x = X::widened(level, &x[run.clone()], &mut wide);
                let sums = gradient_sums(level, dy, x, &weight[run], mean, rstd);
                mean_gradient += sums.0 / channels as f32;
                mean_product += sums.1 / channels as f32;
            });
            let row = Row { mean, rstd, mean_gradient, mean_product };
            read(level, dy, &mut buffer, |run, dy| {
                let (dweight, dbias) = (&mut dweight[run.clone()], &mut dbias[run.clone()]);
                let x = X::widened(level, &x[run.clone()], &mut wide);
                update(level, &mut dx[run.clone()], &mut sums, |_, dx| {
                    differentiate(level, row, dy, x, &weight[run.clone()], dx, dweight, dbias);
                });
            });
            if let (Some(cast), Some(dx)) = (cast, X::as_f32(dx)) {
                T::narrow(level, dx, cast);
            }
        }
    });
    for (index, sums) in [operands.output::<G>(1), operands.output(2)].into_iter().enumerate() {
        if !op.accumulate_weights {
            sums.fill(G::default());
        }
        update(workers.level(), sums, &mut [0.0; BUFFER], |run, sums| {
            for partial in scratch.chunks_exact(channels).skip(index).step_by(2) {
                add_to(workers.level(), sums, &partial[run.clone()]);
            }
        });
    }
}

/// Statistics of a row and of its gradient.
#[derive(Clone, Copy)]
struct Row {
    mean: f32,
    rstd: f32,
    /// Means over the channels of the normalized row's gradient, and of that gradient times the normalized row.
    mean_gradient: f32,
    mean_product: f32,
}

simd! {
    /// The sums of the normalized row's gradient, and of that gradient times the normalized row.
    fn gradient_sums(dy: &[f32], x: &[f32], weight: &[f32], mean: f32, rstd: f32) -> (f32, f32) {
        let channels = dy.len();
        let (x, weight) = (&x[..channels], &weight[..channels]);
        let gradient = sum(channels, |c| dy[c] * weight[c]);
        let product = sum(channels, |c| dy[c] * weight[c] * ((x[c] - mean) * rstd));
        (gradient, product)
    }
}

simd! {
    /// Adds to dx, dweight and dbias.
    #[allow(clippy::too_many_arguments)] // The operands of the operation.
    fn differentiate(
        row: Row, dy: &[f32], x: &[f32], weight: &[f32], dx: &mut [f32], dweight: &mut [f32], dbias: &mut [f32],
    ) {
        let Row { mean, rstd, mean_gradient, mean_product } = row;
        let channels = dy.len();
        let (x, weight, dx) = (&x[..channels], &weight[..channels], &mut dx[..channels]);
        let (dweight, dbias) = (&mut dweight[..channels], &mut dbias[..channels]);
        for c in 0..channels {
            let normalized = (x[c] - mean) * rstd;
            dx[c] += rstd * (dy[c] * weight[c] - mean_gradient - normalized * mean_product);
            dweight[c] += dy[c] * normalized;
            dbias[c] += dy[c];
        }
    }
}
