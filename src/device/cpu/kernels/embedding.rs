//! Token embedding, optionally scaled and with learned positions.

use std::ops::Range;

use ops::{DType, Embedding, EmbeddingBackward};

use super::as_u32;
use super::elementwise::{add_scaled_to, add_to, scale_by};
use super::float::{BUFFER, Buffer, Float, read, update};
use super::operands::Operands;
use super::simd::Level;
use super::workers::{SharedSlice, Workers};

/// Rows per task.
const ROWS: usize = 32;
/// Channels per task, if a task handles all rows.
const CHANNELS: usize = 64;

pub(super) fn forward<P: Float, X: Float>(op: &Embedding, operands: &mut Operands, workers: &Workers) {
    let (tokens, table) = (operands.i32_input(0), operands.input::<P>(1));
    let positions = op.positions.then(|| operands.input::<P>(2));
    let starts = op.documents.then(|| operands.i32_input(3));
    let (sequence, channels) = (operands.input_type(0).shape.last(), operands.input_type(1).shape.last());
    let (x, level) = (SharedSlice::new(operands.output::<X>(0)), workers.level());
    workers.for_each_chunk(tokens.len(), ROWS, |rows| {
        let (mut sum, mut wide) = ([0.0; BUFFER], [0.0; BUFFER]);
        for row in rows {
            // SAFETY: chunks of rows do not overlap.
            #[allow(unsafe_code)]
            let x = unsafe { x.range_mut(row * channels..(row + 1) * channels) };
            let position = row % sequence - starts.map_or(0, |starts| starts[row] as usize);
            let (token, position) = (tokens[row] as usize * channels, position * channels);
            for start in (0..channels).step_by(BUFFER) {
                let run = start..channels.min(start + BUFFER);
                let range = |start: usize| start + run.start..start + run.end;
                let sum = &mut sum[..run.len()];
                P::widen(level, &table[range(token)], sum);
                scale_by(level, sum, op.scale);
                if let Some(positions) = positions {
                    add_to(level, sum, P::widened(level, &positions[range(position)], &mut wide));
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
    let (tokens, dx) = (operands.i32_input(0), operands.input::<X>(1));
    let (sequence, channels) = (operands.input_type(0).shape.last(), operands.input_type(1).shape.last());
    let dtable = SharedSlice::new(operands.output::<G>(0));
    let level = workers.level();
    let table = TableGradient { tokens, dx, dtable, channels, level };
    if G::DTYPE == DType::F32 {
        // Tasks divide the channels. Each adds all rows in order, so that no two tasks add to the same element.
        workers.for_each_chunk(channels, CHANNELS, |part| table.add_rows(op, &part));
    } else {
        // Rows are sorted by token, so that each sum is complete before it is rounded, once.
        let order = &mut as_u32(scratch)[..tokens.len()];
        order.iter_mut().zip(0..).for_each(|(entry, row)| *entry = row);
        order.sort_unstable_by_key(|&row| (tokens[row as usize], row));
        let order = &*order;
        workers.for_each_chunk(channels, CHANNELS, |part| table.sum_rows(op, order, &part));
    }
    let Some(positions) = op.positions else { return };
    let starts = op.documents.then(|| operands.i32_input(2));
    let dpositions = SharedSlice::new(operands.output::<G>(1));
    // Rows behind the sequence have no row of dx.
    workers.for_each_chunk(positions, ROWS, |positions| {
        for position in positions {
            // SAFETY: chunks of positions do not overlap.
            #[allow(unsafe_code)]
            let sum = unsafe { dpositions.range_mut(position * channels..(position + 1) * channels) };
            if !op.accumulate_positions {
                sum.fill(G::default());
            }
            let (mut sums, mut wide) = ([0.0; BUFFER], [0.0; BUFFER]);
            let position_of = |row: usize| row % sequence - starts.map_or(0, |starts| starts[row] as usize);
            update(level, sum, &mut sums, |run, sum| {
                let first = match starts {
                    None if position >= sequence => tokens.len(),
                    None => position,
                    Some(_) => 0,
                };
                let rows = (first..tokens.len()).step_by(if starts.is_none() { sequence } else { 1 });
                for dx in rows
                    .filter(|row| position_of(*row) == position)
                    .map(|row| &dx[row * channels..(row + 1) * channels])
                {
                    read(level, &dx[run.clone()], &mut wide, |run, dx| add_to(level, &mut sum[run], dx));
                }
            });
        }
    });
}

/// The gradient of the embedding table, and its operands.
struct TableGradient<'a, X, G> {
    tokens: &'a [i32],
    dx: &'a [X],
    dtable: SharedSlice<'a, G>,
    channels: usize,
    level: Level,
}

impl<X: Float, G: Float> TableGradient<'_, X, G> {
    /// The range of some channels of a row, at most `CHANNELS`.
    fn row_range(&self, row: usize, part: &Range<usize>) -> Range<usize> {
        row * self.channels + part.start..row * self.channels + part.end
    }

    /// Calls `work` with some channels of a token's gradient in f32, and stores the result.
    fn update_row(
        &self,
        token: usize,
        part: &Range<usize>,
        buffer: &mut Buffer,
        mut work: impl FnMut(&mut [f32]),
    ) {
        // SAFETY: tasks have disjoint channels, and a task uses one range at a time.
        #[allow(unsafe_code)]
        let sum = unsafe { self.dtable.range_mut(self.row_range(token, part)) };
        update(self.level, sum, buffer, |_, sum| work(sum));
    }

    fn clear(&self, op: &EmbeddingBackward, part: &Range<usize>, buffer: &mut Buffer) {
        if !op.accumulate_table {
            (0..op.vocabulary).for_each(|token| self.update_row(token, part, buffer, |sum| sum.fill(0.0)));
        }
    }

    /// Adds every row to its token's gradient, in place.
    fn add_rows(&self, op: &EmbeddingBackward, part: &Range<usize>) {
        let (mut sums, mut wide) = ([0.0; BUFFER], [0.0; BUFFER]);
        self.clear(op, part, &mut sums);
        for (row, &token) in self.tokens.iter().enumerate() {
            let dx = X::widened(self.level, &self.dx[self.row_range(row, part)], &mut wide);
            self.update_row(token as usize, part, &mut sums, |sum| {
                add_scaled_to(self.level, sum, dx, op.scale)
            });
        }
    }

    /// Sums the rows of each token, which are consecutive in `order`, and stores the sum.
    fn sum_rows(&self, op: &EmbeddingBackward, order: &[u32], part: &Range<usize>) {
        let (mut sums, mut wide) = ([0.0; BUFFER], [0.0; BUFFER]);
        self.clear(op, part, &mut sums);
        let token = |row: u32| self.tokens[row as usize];
        for rows in order.chunk_by(|&a, &b| token(a) == token(b)) {
            self.update_row(token(rows[0]) as usize, part, &mut sums, |sum| {
                for &row in rows {
                    let dx = &self.dx[self.row_range(row as usize, part)];
                    add_scaled_to(self.level, sum, X::widened(self.level, dx, &mut wide), op.scale);
                }
            });
        }
    }
}
