//! Token embedding, scaled or not, with learned positions or without.

use std::ops::Range;

use ops::{DType, Embedding, EmbeddingBackward};

use super::as_u32;
use super::elementwise::{add_scaled_to, add_to, scale_by};
use super::float::{BUFFER, Buffer, Float, read, update};
use super::operands::Operands;
use super::simd::Level;
use super::workers::{Parts, Workers};

/// Rows that a thread takes at a time.
const ROWS: usize = 32;
/// Channels that a thread takes at a time where it takes all rows.
const CHANNELS: usize = 64;

pub(super) fn forward<P: Float, X: Float>(op: &Embedding, operands: &mut Operands, workers: &Workers) {
    let (tokens, table) = (operands.tokens(0), operands.input::<P>(1));
    let positions = op.positions.then(|| operands.input::<P>(2));
    let starts = op.documents.then(|| operands.tokens(3));
    let (sequence, channels) = (operands.input_type(0).shape.last(), operands.input_type(1).shape.last());
    let (x, level) = (Parts::new(operands.output::<X>(0)), workers.level());
    workers.chunks(tokens.len(), ROWS, |rows| {
        let (mut sum, mut wide) = ([0.0; BUFFER], [0.0; BUFFER]);
        for row in rows {
            // SAFETY: runs of rows do not overlap.
            #[allow(unsafe_code)]
            let x = unsafe { x.part(row * channels..(row + 1) * channels) };
            let position = row % sequence - starts.map_or(0, |starts| starts[row] as usize);
            let (token, position) = (tokens[row] as usize * channels, position * channels);
            for start in (0..channels).step_by(BUFFER) {
                let run = start..channels.min(start + BUFFER);
                let of = |row: usize| row + run.start..row + run.end;
                let sum = &mut sum[..run.len()];
                P::widen(level, &table[of(token)], sum);
                scale_by(level, sum, op.scale);
                if let Some(positions) = positions {
                    add_to(level, sum, P::widened(level, &positions[of(position)], &mut wide));
                }
                X::narrow(level, sum, &mut x[run]);
            }
        }
    });
}

pub(super) fn backward<X: Float, G: Float>(
    op: &EmbeddingBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let (tokens, dx) = (operands.tokens(0), operands.input::<X>(1));
    let (sequence, channels) = (operands.input_type(0).shape.last(), operands.input_type(1).shape.last());
    let dtable = Parts::new(operands.output::<G>(0));
    let level = workers.level();
    let table = Table { tokens, dx, dtable, channels, level };
    if G::DTYPE == DType::F32 {
        // Threads divide the channels: each adds all rows in order, so no two add to the same element.
        workers.chunks(channels, CHANNELS, |part| table.add_rows(op, &part));
    } else {
        // A sum is rounded once: the rows of a token follow each other.
        let order = &mut as_u32(scratch)[..tokens.len()];
        order.iter_mut().zip(0..).for_each(|(place, row)| *place = row);
        order.sort_unstable_by_key(|&row| (tokens[row as usize], row));
        let order = &*order;
        workers.chunks(channels, CHANNELS, |part| table.sum_rows(op, order, &part));
    }
    if !op.positions {
        return;
    }
    let starts = op.documents.then(|| operands.tokens(2));
    let dpositions = Parts::new(operands.output::<G>(1));
    workers.chunks(sequence, ROWS, |positions| {
        for position in positions {
            // SAFETY: runs of positions do not overlap.
            #[allow(unsafe_code)]
            let sum = unsafe { dpositions.part(position * channels..(position + 1) * channels) };
            if !op.accumulate_positions {
                sum.fill(G::default());
            }
            let (mut sums, mut wide) = ([0.0; BUFFER], [0.0; BUFFER]);
            let place = |row: usize| row % sequence - starts.map_or(0, |starts| starts[row] as usize);
            update(level, sum, &mut sums, |run, sum| {
                let first = if starts.is_none() { position } else { 0 };
                let rows = (first..tokens.len()).step_by(if starts.is_none() { sequence } else { 1 });
                for dx in rows
                    .filter(|row| place(*row) == position)
                    .map(|row| &dx[row * channels..(row + 1) * channels])
                {
                    read(level, &dx[run.clone()], &mut wide, |run, dx| add_to(level, &mut sum[run], dx));
                }
            });
        }
    });
}

/// What the gradient of the table is made of.
struct Table<'a, X, G> {
    tokens: &'a [i32],
    dx: &'a [X],
    dtable: Parts<'a, G>,
    channels: usize,
    level: Level,
}

impl<X: Float, G: Float> Table<'_, X, G> {
    /// Some channels of a row, at the most `CHANNELS`.
    fn part_of(&self, row: usize, part: &Range<usize>) -> Range<usize> {
        row * self.channels + part.start..row * self.channels + part.end
    }

    /// Lets `work` change the same of the gradient, in f32.
    fn change(
        &self,
        token: usize,
        part: &Range<usize>,
        buffer: &mut Buffer,
        mut work: impl FnMut(&mut [f32]),
    ) {
        // SAFETY: parts of the channels do not overlap, and this one is given back before the next is asked for.
        #[allow(unsafe_code)]
        let sum = unsafe { self.dtable.part(self.part_of(token, part)) };
        update(self.level, sum, buffer, |_, sum| work(sum));
    }

    fn clear(&self, op: &EmbeddingBackward, part: &Range<usize>, buffer: &mut Buffer) {
        if !op.accumulate_table {
            (0..op.vocabulary).for_each(|token| self.change(token, part, buffer, |sum| sum.fill(0.0)));
        }
    }

    /// Adds every row where its token's sum lies.
    fn add_rows(&self, op: &EmbeddingBackward, part: &Range<usize>) {
        let (mut sums, mut wide) = ([0.0; BUFFER], [0.0; BUFFER]);
        self.clear(op, part, &mut sums);
        for (row, &token) in self.tokens.iter().enumerate() {
            let dx = X::widened(self.level, &self.dx[self.part_of(row, part)], &mut wide);
            self.change(token as usize, part, &mut sums, |sum| add_scaled_to(self.level, sum, dx, op.scale));
        }
    }

    /// Adds the rows of each token, which follow each other in this order, and stores their sum.
    fn sum_rows(&self, op: &EmbeddingBackward, order: &[u32], part: &Range<usize>) {
        let (mut sums, mut wide) = ([0.0; BUFFER], [0.0; BUFFER]);
        self.clear(op, part, &mut sums);
        let token = |row: u32| self.tokens[row as usize];
        for rows in order.chunk_by(|&a, &b| token(a) == token(b)) {
            self.change(token(rows[0]) as usize, part, &mut sums, |sum| {
                for &row in rows {
                    let dx = &self.dx[self.part_of(row as usize, part)];
                    add_scaled_to(self.level, sum, X::widened(self.level, dx, &mut wide), op.scale);
                }
            });
        }
    }
}
