//! Root-mean-square normalization over rows.

use ops::{RmsNorm, RmsNormBackward};

use super::elementwise::add_to;
use super::float::{BUFFER, Float, read, update, write};
use super::math::sum;
use super::operands::{Addend, Operands};
use super::simd::{Level, simd};
use super::workers::{SharedSlice, Workers};

const ROWS: usize = RmsNormBackward::ROWS_PER_PARTIAL;

pub(super) fn forward<X: Float, T: Float>(op: &RmsNorm, operands: &mut Operands, workers: &Workers) {
    let (x, weight) = (operands.input::<X>(0), operands.input::<f32>(1));
    let channels = weight.len();
    let (y, rrms) = (SharedSlice::new(operands.output::<T>(0)), SharedSlice::new(operands.output(1)));
    workers.for_each_chunk(x.len() / channels, ROWS, |rows| {
        let elements = rows.start * channels..rows.end * channels;
        // SAFETY: chunks of rows do not overlap.
        #[allow(unsafe_code)]
        let (y, rrms) = unsafe { (y.range_mut(elements.clone()), rrms.range_mut(rows)) };
        let level = workers.level();
        let rows = x[elements].chunks_exact(channels).zip(y.chunks_exact_mut(channels));
        for ((x, y), rrms) in rows.zip(rrms) {
            *rrms = normalise_row(level, x, (weight, op.offset), op.epsilon, y);
        }
    });
}

/// Normalizes a row. Returns 1 over its root mean square.
pub(super) fn normalise_row<X: Float, T: Float>(
    level: Level,
    x: &[X],
    (weight, offset): (&[f32], f32),
    epsilon: f32,
    y: &mut [T],
) -> f32 {
    let rrms = reciprocal_root(level, x, epsilon);
    let (mut buffer, mut wide) = ([0.0; BUFFER], [0.0; BUFFER]);
    write(level, y, &mut buffer, |run, y| {
        normalise(level, X::widened(level, &x[run.clone()], &mut wide), &weight[run], (rrms, offset), y);
    });
    rrms
}

/// Adds to the gradients of a row and of the weight.
pub(super) fn differentiate_row<T: Float, X: Float>(
    level: Level,
    (dy, x): (&[T], &[X]),
    (weight, offset, rrms): (&[f32], f32, f32),
    dx: &mut [X],
    dweight: &mut [f32],
) {
    let (mut buffer, mut wide, mut sums) = ([0.0; BUFFER], [0.0; BUFFER], [0.0; BUFFER]);
    let mut mean_product = 0.0;
    read(level, dy, &mut buffer, |run, dy| {
        let x = X::widened(level, &x[run.clone()], &mut wide);
        mean_product += gradient_times_x(level, dy, x, &weight[run], offset) * rrms / weight.len() as f32;
    });
    read(level, dy, &mut buffer, |run, dy| {
        let dweight = &mut dweight[run.clone()];
        let x = X::widened(level, &x[run.clone()], &mut wide);
        update(level, &mut dx[run.clone()], &mut sums, |_, dx| {
            differentiate(level, (rrms, mean_product, offset), dy, x, &weight[run.clone()], dx, dweight);
        });
    });
}

/// 1 over the root mean square of a row.
fn reciprocal_root<X: Float>(level: Level, x: &[X], epsilon: f32) -> f32 {
    let mut squares = 0.0;
    read(level, x, &mut [0.0; BUFFER], |_, x| squares += squares_of(level, x));
    1.0 / (squares / x.len() as f32 + epsilon).sqrt()
}

simd! {
    fn squares_of(x: &[f32]) -> f32 {
        sum(x.len(), |c| x[c] * x[c])
    }
}

simd! {
    fn normalise(x: &[f32], weight: &[f32], row: (f32, f32), y: &mut [f32]) {
        let (rrms, offset) = row;
        let channels = y.len();
        let (x, weight) = (&x[..channels], &weight[..channels]);
        for c in 0..channels {
            y[c] = x[c] * rrms * (weight[c] + offset);
        }
    }
}

pub(super) fn backward<T: Float, X: Float, G: Float>(
    op: &RmsNormBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    // The cast output may share memory with dy.
    let dy = if op.cast { operands.input_unless_aliased::<T>(2, 0) } else { Some(operands.input::<T>(0)) };
    let x = operands.input::<X>(1);
    let [weight, rrms] = [2, 3].map(|index| operands.input::<f32>(index));
    let channels = weight.len();
    let start = operands.addend::<X>(0, op.accumulate.then_some(4));
    let dx = SharedSlice::new(operands.output::<X>(0));
    let cast = op.cast.then(|| SharedSlice::new(operands.output::<T>(2)));
    let rows = x.len() / channels;
    let scratch = &mut scratch[..rows.div_ceil(ROWS) * channels];
    let partials = SharedSlice::new(scratch);
    workers.for_each_chunk(rows, ROWS, |rows| {
        let partial = rows.start / ROWS * channels;
        let elements = rows.start * channels..rows.end * channels;
        // SAFETY: chunks of rows do not overlap and have their own partial sums.
        #[allow(unsafe_code)]
        let (dx, dweight) =
            unsafe { (dx.range_mut(elements.clone()), partials.range_mut(partial..partial + channels)) };
        match start {
            Addend::Zero => dx.fill(X::default()),
            Addend::Output => {}
            Addend::Input(previous) => dx.copy_from_slice(&previous[elements.clone()]),
        }
        let level = workers.level();
        dweight.fill(0.0);
        for (dx, row) in dx.chunks_exact_mut(channels).zip(rows) {
            let elements = row * channels..(row + 1) * channels;
            let (x, rrms) = (&x[elements.clone()], rrms[row]);
            // SAFETY: rows do not overlap.
            #[allow(unsafe_code)]
            let cast = cast.as_ref().map(|cast| unsafe { cast.range_mut(elements.clone()) });
            let dy: &[T] = match (dy, &cast) {
                (Some(dy), _) => &dy[elements],
                (None, Some(cast)) => cast,
                (None, None) => unreachable!("dy shares memory with the cast output only"),
            };
            differentiate_row(level, (dy, x), (weight, op.offset, rrms), dx, dweight);
            if let (Some(cast), Some(dx)) = (cast, X::as_f32(dx)) {
                T::narrow(level, dx, cast);
            }
        }
    });
    let sums = operands.output::<G>(1);
    if !op.accumulate_weight {
        sums.fill(G::default());
    }
    update(workers.level(), sums, &mut [0.0; BUFFER], |run, sums| {
        for partial in scratch.chunks_exact(channels) {
            add_to(workers.level(), sums, &partial[run.clone()]);
        }
    });
}

simd! {
    /// The sum over the channels of the normalized row's gradient times x.
    fn gradient_times_x(dy: &[f32], x: &[f32], weight: &[f32], offset: f32) -> f32 {
        let channels = dy.len();
        let (x, weight) = (&x[..channels], &weight[..channels]);
        sum(channels, |c| dy[c] * (weight[c] + offset) * x[c])
    }
}

simd! {
    /// Adds to dx and dweight. `mean_product` is the mean of the normalized row's gradient times the normalized row.
    fn differentiate(
        row: (f32, f32, f32), dy: &[f32], x: &[f32], weight: &[f32], dx: &mut [f32], dweight: &mut [f32],
    ) {
        let (rrms, mean_product, offset) = row;
        let channels = dy.len();
        let (x, weight, dx) = (&x[..channels], &weight[..channels], &mut dx[..channels]);
        let dweight = &mut dweight[..channels];
        for c in 0..channels {
            let normalized = x[c] * rrms;
            dx[c] += rrms * (dy[c] * (weight[c] + offset) - normalized * mean_product);
            dweight[c] += dy[c] * normalized;
        }
    }
}
