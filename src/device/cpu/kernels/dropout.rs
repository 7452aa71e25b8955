//! Elements left out by chance.

use ops::{Dropout, Dropped};

use super::elementwise::add_to;
use super::float::{BUFFER, Float};
use super::operands::Operands;
use super::philox::philox_columns;
use super::simd::{Level, simd};
use super::workers::{Parts, Workers};

/// Elements that a thread takes at a time, or as many as make a row.
const CHUNK: usize = 1 << 14;

/// Columns between those that numbers may be asked for from.
pub(super) const PANEL: usize = 32;

/// Whatever is dropped of some samples.
#[derive(Clone, Copy)]
pub(super) struct Chance<'a> {
    dropped: Dropped,
    /// Two words of each sample.
    seeds: &'a [i32],
}

impl<'a> Chance<'a> {
    pub(super) fn new(dropped: Dropped, seeds: &'a [i32]) -> Chance<'a> {
        Chance { dropped, seeds }
    }

    /// The numbers of a row of a sample, from a column on that is a multiple of `PANEL`.
    pub(super) fn numbers(
        &self,
        level: Level,
        sample: usize,
        row: usize,
        column: usize,
        numbers: &mut [u16],
    ) {
        let key = [0, 1].map(|word| self.seeds[2 * sample + word] as u32);
        let first = (row as u64) << 32 | (column / PANEL * 4) as u64;
        philox_columns(level, first, [self.dropped.site, 0], key, numbers);
    }

    /// Drops the elements whose numbers say so.
    pub(super) fn drop(&self, level: Level, values: &mut [f32], numbers: &[u16]) {
        drop_from(level, values, numbers, self.dropped.kept, self.dropped.factor());
    }
}

simd! {
    fn drop_from(values: &mut [f32], numbers: &[u16], kept: u32, factor: f32) {
        let numbers = &numbers[..values.len()];
        for (value, &number) in values.iter_mut().zip(numbers) {
            *value = if u32::from(number) < kept { *value * factor } else { 0.0 };
        }
    }
}

/// `y` may be x, or what is added to it.
pub(super) fn run<X: Float, Y: Float>(op: &Dropout, operands: &mut Operands, workers: &Workers) {
    let ty = *operands.input_type(0);
    let chance = Chance::new(op.dropped, operands.tokens(1));
    let x = if op.residual || op.to.is_some() {
        Some(operands.input::<X>(0))
    } else {
        operands.source::<X>(0, 0)
    };
    // Where it is not what y holds already.
    let residual = if op.residual { operands.source::<Y>(0, 2) } else { None };
    let (channels, samples) = (ty.shape.last(), ty.shape.dims()[0]);
    let (rows, of_sample) = (ty.shape.rows(), ty.shape.rows() / samples);
    let (y, level) = (Parts::new(operands.output::<Y>(0)), workers.level());
    workers.chunks(rows, (CHUNK / channels).max(1), |rows| {
        let (mut numbers, mut dropped, mut other) = ([0; BUFFER], [0.0; BUFFER], [0.0; BUFFER]);
        for row in rows {
            for start in (0..channels).step_by(BUFFER) {
                let run = row * channels + start..row * channels + channels.min(start + BUFFER);
                // SAFETY: rows do not overlap.
                #[allow(unsafe_code)]
                let y = unsafe { y.part(run.clone()) };
                let (numbers, dropped) = (&mut numbers[..run.len()], &mut dropped[..run.len()]);
                chance.numbers(level, row / of_sample, row % of_sample, start, numbers);
                match x {
                    Some(x) => X::widen(level, &x[run.clone()], dropped),
                    None => Y::widen(level, y, dropped),
                }
                chance.drop(level, dropped, numbers);
                if op.residual {
                    let residual = residual.map_or(&*y, |residual| &residual[run]);
                    add_to(level, dropped, Y::widened(level, residual, &mut other));
                }
                Y::narrow(level, dropped, y);
            }
        }
    });
}
