//! Statistics and sums of each channel over rows [..,C], and what follows from them for each element.

use std::ops::Range;

use ops::BatchNorm;

use super::elementwise::{add_to, scale_by};
use super::float::{BUFFER, Float, update, write};
use super::simd::{Level, simd};

/// Rows that are summed in f32.
const BLOCK_ROWS: usize = BatchNorm::BLOCK_ROWS;

/// Rows per task of elementwise work: fixed, so that results do not depend on the number of threads.
pub(super) fn rows_per_task(channels: usize) -> usize {
    ((1 << 14) / channels).max(1)
}

/// Calls `work(row)` for each of these rows, with the elements of the channels of `run`.
fn for_each_row(rows: Range<usize>, channels: usize, run: &Range<usize>, mut work: impl FnMut(Range<usize>)) {
    for row in rows {
        work(row * channels + run.start..row * channels + run.end);
    }
}

/// Ranges of at most `BUFFER` channels.
fn runs(channels: usize) -> impl Iterator<Item = Range<usize>> {
    (0..channels).step_by(BUFFER).map(move |start| start..channels.min(start + BUFFER))
}

/// The mean of each channel over these rows of x, and the sum of squared differences from it.
///
/// Differences from the first row of a block are small even if the mean is large; the blocks' results are merged in
/// f64 (Chan et al. 1979).
pub(super) fn moments<T: Float>(
    level: Level,
    x: &[T],
    rows: Range<usize>,
    means: &mut [f64],
    squares: &mut [f64],
) {
    let channels = means.len();
    let [mut wide, mut first, mut mean, mut square] = [[0.0; BUFFER]; 4];
    for run in runs(channels) {
        let [first, mean, square] = [&mut first, &mut mean, &mut square].map(|sums| &mut sums[..run.len()]);
        for start in rows.clone().step_by(BLOCK_ROWS) {
            let block = start..rows.end.min(start + BLOCK_ROWS);
            T::widen(level, &x[start * channels + run.start..start * channels + run.end], first);
            mean.fill(0.0);
            square.fill(0.0);
            for_each_row(block.clone(), channels, &run, |elements| {
                add_differences(level, mean, T::widened(level, &x[elements], &mut wide), first);
            });
            scale_by(level, mean, 1.0 / block.len() as f32);
            for_each_row(block.clone(), channels, &run, |elements| {
                add_squares(level, square, T::widened(level, &x[elements], &mut wide), first, mean);
            });
            let (before, count) = ((start - rows.start) as f64, block.len() as f64);
            let (share, weight) = (count / (before + count), before * count / (before + count));
            for (c, channel) in run.clone().enumerate() {
                let difference = f64::from(first[c]) + f64::from(mean[c]) - means[channel];
                if start == rows.start {
                    means[channel] += difference;
                    squares[channel] = f64::from(square[c]);
                } else {
                    means[channel] += difference * share;
                    squares[channel] += f64::from(square[c]) + difference * difference * weight;
                }
            }
        }
    }
}

simd! {
    fn add_differences(sums: &mut [f32], x: &[f32], from: &[f32]) {
        let channels = sums.len();
        let (x, from) = (&x[..channels], &from[..channels]);
        for c in 0..channels {
            sums[c] += x[c] - from[c];
        }
    }
}

simd! {
    fn add_squares(sums: &mut [f32], x: &[f32], from: &[f32], mean: &[f32]) {
        let channels = sums.len();
        let (x, from, mean) = (&x[..channels], &from[..channels], &mean[..channels]);
        for c in 0..channels {
            let difference = (x[c] - from[c]) - mean[c];
            sums[c] += difference * difference;
        }
    }
}

/// How a channel is normalized: `y = (x - mean) * factor + shift`.
#[derive(Clone, Copy)]
pub(super) struct Affine<'a> {
    pub(super) mean: &'a [f32],
    pub(super) factor: &'a [f32],
    pub(super) shift: &'a [f32],
}

/// The factor and the shift of a channel with these statistics. The shift contains what rounding the mean to f32 leaves.
pub(super) fn affine(mean: f64, rstd: f64, weight: f32, bias: f32) -> (f32, f32) {
    let factor = rstd * f64::from(weight);
    let rest = mean - f64::from(mean as f32);
    (factor as f32, (f64::from(bias) - rest * factor) as f32)
}

/// Normalizes a row.
pub(super) fn normalise_row<T: Float>(level: Level, x: &[T], by: Affine, y: &mut [T]) {
    let mut wide = [0.0; BUFFER];
    write(level, y, &mut [0.0; BUFFER], |run, y| {
        let x = T::widened(level, &x[run.clone()], &mut wide);
        normalise(level, x, &by.mean[run.clone()], &by.factor[run.clone()], &by.shift[run], y);
    });
}

simd! {
    fn normalise(x: &[f32], mean: &[f32], factor: &[f32], shift: &[f32], y: &mut [f32]) {
        let channels = y.len();
        let (x, mean) = (&x[..channels], &mean[..channels]);
        let (factor, shift) = (&factor[..channels], &shift[..channels]);
        for c in 0..channels {
            y[c] = (x[c] - mean[c]) * factor[c] + shift[c];
        }
    }
}

/// Statistics of each channel.
#[derive(Clone, Copy)]
pub(super) struct Statistics<'a> {
    pub(super) mean: &'a [f32],
    pub(super) rstd: &'a [f32],
}

/// Adds to dweight and dbias of each channel the sums over these rows.
pub(super) fn add_gradient_sums<T: Float>(
    level: Level,
    (dy, x): (&[T], &[T]),
    rows: Range<usize>,
    Statistics { mean, rstd }: Statistics,
    dweight: &mut [f32],
    dbias: &mut [f32],
) {
    let channels = mean.len();
    let [mut wide, mut wide_dy, mut products, mut sums] = [[0.0; BUFFER]; 4];
    for run in runs(channels) {
        let [products, sums] = [&mut products, &mut sums].map(|sums| &mut sums[..run.len()]);
        let (mean, rstd) = (&mean[run.clone()], &rstd[run.clone()]);
        for start in rows.clone().step_by(BLOCK_ROWS) {
            products.fill(0.0);
            sums.fill(0.0);
            for_each_row(start..rows.end.min(start + BLOCK_ROWS), channels, &run, |elements| {
                let x = T::widened(level, &x[elements.clone()], &mut wide);
                let dy = T::widened(level, &dy[elements], &mut wide_dy);
                add_products(level, dy, x, mean, rstd, products, sums);
            });
            add_to(level, &mut dweight[run.clone()], products);
            add_to(level, &mut dbias[run.clone()], sums);
        }
    }
}

simd! {
    #[allow(clippy::too_many_arguments)] // The operands of the operation.
    fn add_products(
        dy: &[f32], x: &[f32], mean: &[f32], rstd: &[f32], products: &mut [f32], sums: &mut [f32],
    ) {
        let channels = dy.len();
        let (x, mean, rstd) = (&x[..channels], &mean[..channels], &rstd[..channels]);
        let (products, sums) = (&mut products[..channels], &mut sums[..channels]);
        for c in 0..channels {
            products[c] += dy[c] * ((x[c] - mean[c]) * rstd[c]);
            sums[c] += dy[c];
        }
    }
}

/// The gradient of a channel's x: `factor * dy - through - along * (x - mean) * rstd`.
#[derive(Clone, Copy)]
pub(super) struct Slopes<'a> {
    pub(super) statistics: Statistics<'a>,
    pub(super) factor: &'a [f32],
    pub(super) through: &'a [f32],
    pub(super) along: &'a [f32],
}

impl<'a> Slopes<'a> {
    fn run(&self, run: &Range<usize>) -> Slopes<'a> {
        let Slopes { statistics: Statistics { mean, rstd }, factor, through, along } = *self;
        let [mean, rstd, factor, through, along] =
            [mean, rstd, factor, through, along].map(|all| &all[run.clone()]);
        Slopes { statistics: Statistics { mean, rstd }, factor, through, along }
    }
}

/// Replaces a row of dy by dx; or adds it to a row of dx, if dy has its own memory.
pub(super) fn differentiate_row<T: Float>(level: Level, dy: Option<&[T]>, x: &[T], by: Slopes, dx: &mut [T]) {
    let (mut wide, mut wide_dy) = ([0.0; BUFFER], [0.0; BUFFER]);
    update(level, dx, &mut [0.0; BUFFER], |run, dx| {
        let (x, by) = (T::widened(level, &x[run.clone()], &mut wide), by.run(&run));
        match dy {
            Some(dy) => add_slopes(level, T::widened(level, &dy[run], &mut wide_dy), x, by, dx),
            None => slopes(level, x, by, dx),
        }
    });
}

simd! {
    fn add_slopes(dy: &[f32], x: &[f32], by: Slopes, dx: &mut [f32]) {
        let Slopes { statistics: Statistics { mean, rstd }, factor, through, along } = by;
        let channels = dx.len();
        let (dy, x, mean, rstd) = (&dy[..channels], &x[..channels], &mean[..channels], &rstd[..channels]);
        let (factor, through, along) = (&factor[..channels], &through[..channels], &along[..channels]);
        for c in 0..channels {
            dx[c] += factor[c] * dy[c] - through[c] - along[c] * ((x[c] - mean[c]) * rstd[c]);
        }
    }
}

simd! {
    fn slopes(x: &[f32], by: Slopes, dx: &mut [f32]) {
        let Slopes { statistics: Statistics { mean, rstd }, factor, through, along } = by;
        let channels = dx.len();
        let (x, mean, rstd) = (&x[..channels], &mean[..channels], &rstd[..channels]);
        let (factor, through, along) = (&factor[..channels], &through[..channels], &along[..channels]);
        for c in 0..channels {
            dx[c] = factor[c] * dx[c] - through[c] - along[c] * ((x[c] - mean[c]) * rstd[c]);
        }
    }
}
