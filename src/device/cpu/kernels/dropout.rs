//! Dropout.

use ops::{Dropout, DropoutMask};

use super::elementwise::add_to;
use super::float::{BUFFER, Float};
use super::operands::Operands;
use super::philox::philox_columns;
use super::simd::{Level, simd};
use super::workers::{SharedSlice, Workers};

/// Elements per task, or one row if that is longer.
const CHUNK: usize = 1 << 14;

/// Columns per four Philox blocks: random numbers can be computed from any multiple of this column on.
pub(super) const PANEL: usize = 32;

/// The dropout of a batch: its rate and site, and the seeds of the samples.
#[derive(Clone, Copy)]
pub(super) struct SeededDropout<'a> {
    dropped: DropoutMask,
    /// Two words per sample.
    seeds: &'a [i32],
}

impl<'a> SeededDropout<'a> {
    pub(super) fn new(dropped: DropoutMask, seeds: &'a [i32]) -> SeededDropout<'a> {
        SeededDropout { dropped, seeds }
    }

    /// The random numbers of a row of a sample, from `column` on, which is a multiple of `PANEL`.
    pub(super) fn random_row(
        &self,
        level: Level,
        sample: usize,
        row: usize,
        column: usize,
        random: &mut [u16],
    ) {
        let key = [0, 1].map(|word| self.seeds[2 * sample + word] as u32);
        let first = (row as u64) << 32 | (column / PANEL * 4) as u64;
        philox_columns(level, first, [self.dropped.site, 0], key, random);
    }

    /// Sets elements to zero according to their random numbers, and scales the others.
    pub(super) fn apply(&self, level: Level, values: &mut [f32], random: &[u16]) {
        drop_elements(level, values, random, self.dropped.kept, self.dropped.factor());
    }
}

simd! {
    fn drop_elements(values: &mut [f32], random: &[u16], kept: u32, factor: f32) {
        let random = &random[..values.len()];
        for (value, &number) in values.iter_mut().zip(random) {
            *value = if u32::from(number) < kept { *value * factor } else { 0.0 };
        }
    }
}

/// The output may share memory with x, or with the residual.
pub(super) fn run<X: Float, Y: Float>(op: &Dropout, operands: &mut Operands, workers: &Workers) {
    let ty = *operands.input_type(0);
    let dropout = SeededDropout::new(op.dropped, operands.i32_input(1));
    let x = if op.residual || op.to.is_some() {
        Some(operands.input::<X>(0))
    } else {
        operands.input_unless_aliased::<X>(0, 0)
    };
    // None if the output holds it already.
    let residual = if op.residual { operands.input_unless_aliased::<Y>(0, 2) } else { None };
    let (channels, samples) = (ty.shape.last(), ty.shape.dims()[0]);
    let (rows, rows_per_sample) = (ty.shape.rows(), ty.shape.rows() / samples);
    let (y, level) = (SharedSlice::new(operands.output::<Y>(0)), workers.level());
    workers.for_each_chunk(rows, (CHUNK / channels).max(1), |rows| {
        let (mut random, mut dropped, mut other) = ([0; BUFFER], [0.0; BUFFER], [0.0; BUFFER]);
        for row in rows {
            for start in (0..channels).step_by(BUFFER) {
                let run = row * channels + start..row * channels + channels.min(start + BUFFER);
                // SAFETY: rows do not overlap.
                #[allow(unsafe_code)]
                let y = unsafe { y.range_mut(run.clone()) };
                let (random, dropped) = (&mut random[..run.len()], &mut dropped[..run.len()]);
                dropout.random_row(level, row / rows_per_sample, row % rows_per_sample, start, random);
                match x {
                    Some(x) => X::widen(level, &x[run.clone()], dropped),
                    None => Y::widen(level, y, dropped),
                }
                dropout.apply(level, dropped, random);
                if op.residual {
                    let residual = residual.map_or(&*y, |residual| &residual[run]);
                    add_to(level, dropped, Y::widened(level, residual, &mut other));
                }
                Y::narrow(level, dropped, y);
            }
        }
    });
}
