//! `out = softmax(mask(cap(scale q k^T))) v`, with a running maximum and sum for each query.

use std::ops::Range;

use crate::cpu::kernels::dropout::Chance;
use crate::cpu::kernels::float::{BUFFER, Float, write};
use crate::cpu::kernels::math::{LANES, exp, largest, map_and_sum, multiply_add, tanh};
use crate::cpu::kernels::operands::Operands;
use crate::cpu::kernels::product::{Left, Micro, Sink, panels};
use crate::cpu::kernels::simd::{Level, simd};
use crate::cpu::kernels::workers::{Parts, Workers};
use ops::{Attention, Operation};

use super::{
    Head, QUERIES, Rows, SCORE_ROW, Sizes, Starts, Tile, chance, each_head, pack_straight, pack_transposed,
    take,
};

pub(crate) fn run<T: Float>(op: &Attention, operands: &mut Operands, scratch: &mut [f32], workers: &Workers) {
    with_micro!(workers, run_with::<T>(op, operands, scratch, workers));
}

fn run_with<M: Micro, T: Float>(
    op: &Attention,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let sizes = Sizes::new(op.name(), op.attending, operands.input_type(0));
    let qkv = operands.input::<T>(0);
    let starts = Starts::of_all(op.attending, 1, operands);
    let chance = chance(op.attending, op.attending.places(1)[1], operands);
    let (out, lse) = (Parts::new(operands.output::<T>(0)), Parts::new(operands.output(1)));
    let scratch_len = Attention::workspace_elements(T::DTYPE, sizes.sequence, sizes.head);
    each_head(sizes, scratch, scratch_len, workers, |place, mut scratch| {
        let head = ForwardHead {
            sizes,
            place,
            level: workers.level(),
            qkv,
            starts: starts.of(place, sizes),
            chance,
            keys: take(&mut scratch, sizes.padded_sequence() * sizes.head),
            values: take(&mut scratch, sizes.sequence * sizes.padded_head()),
            scores: take(&mut scratch, QUERIES * SCORE_ROW),
            sums: take(&mut scratch, QUERIES * sizes.padded_head()),
            largest: [0.0; QUERIES],
            total: [0.0; QUERIES],
            queries: scratch,
        };
        head.run::<M>(&out, &lse);
    });
}

struct ForwardHead<'a, T> {
    sizes: Sizes,
    place: Head,
    level: Level,
    qkv: &'a [T],
    starts: Starts<'a>,
    chance: Option<Chance<'a>>,
    /// k^T in panels.
    keys: &'a mut [f32],
    /// v in panels.
    values: &'a mut [f32],
    scores: &'a mut [f32],
    /// Weighted values of each query, in rows of `padded_head`.
    sums: &'a mut [f32],
    largest: [f32; QUERIES],
    total: [f32; QUERIES],
    /// A tile of queries in f32, where they are stored otherwise.
    queries: &'a mut [f32],
}

impl<T: Float> ForwardHead<'_, T> {
    fn run<M: Micro>(mut self, out: &Parts<T>, lse: &Parts<f32>) {
        let (sizes, row, level) = (self.sizes, self.sizes.row(), self.level);
        let [queries, keys, values] = self.place.qkv.map(|start| &self.qkv[start..]);
        pack_transposed::<M, T>(level, keys, row, sizes, self.keys);
        pack_straight::<M, T>(level, values, row, sizes, self.values);
        let wide = std::mem::take(&mut self.queries);
        for query in (0..sizes.sequence).step_by(QUERIES) {
            self.largest.fill(f32::NEG_INFINITY);
            self.total.fill(0.0);
            let count = QUERIES.min(sizes.sequence - query);
            let queries = Rows::new(level, &queries[query * row..], row, count, sizes.head, wide);
            for tile in Tile::of_queries(query, sizes, self.starts) {
                for rows in tile.query_groups(M::ROWS) {
                    self.score::<M>(tile, rows.clone(), queries);
                    self.soften(tile, rows.clone());
                    self.weigh::<M>(tile, rows);
                }
            }
            self.finish(query, out, lse);
        }
    }

    /// `scores = q k^T` for a group of queries, masked ones included up to a whole panel.
    fn score<M: Micro>(&mut self, tile: Tile, rows: Range<usize>, queries: Rows) {
        let sizes = self.sizes;
        let queries = queries.left(rows.start);
        let keys = self.keys[tile.key * sizes.head..].as_ptr();
        let scores = self.scores[rows.start * SCORE_ROW..].as_mut_ptr();
        let sink = Sink::plain(scores, SCORE_ROW, false);
        let columns = tile.keys_until(rows.end).next_multiple_of(M::COLUMNS);
        // SAFETY: packed keys and a row of scores have whole panels.
        #[allow(unsafe_code)]
        unsafe {
            panels::<M>(rows.len(), columns, sizes.head, queries, keys, sizes.head * M::COLUMNS, sink);
        }
    }

    /// Turns scores into weights and rescales what was summed with a smaller maximum. What is dropped counts for their sum.
    fn soften(&mut self, tile: Tile, rows: Range<usize>) {
        let mut numbers = [0; SCORE_ROW];
        let (scale, cap, width) = (self.sizes.scale(), self.sizes.attending.cap, self.sizes.padded_head());
        let until = tile.keys_until(rows.end).next_multiple_of(LANES);
        for row in rows {
            let scores = &mut self.scores[row * SCORE_ROW..row * SCORE_ROW + until];
            let seen = tile.hidden(row)..tile.keys_until(row + 1);
            if seen.is_empty() {
                scores.fill(0.0);
                continue;
            }
            let (largest, total) = (self.largest[row], self.total[row]);
            let (next, weight) = match cap {
                None => weights(self.level, scores, seen, scale, largest),
                Some(cap) => {
                    hold_within(self.level, &mut scores[seen.clone()], scale, cap);
                    weights(self.level, scores, seen, 1.0, largest)
                }
            };
            if let Some(chance) = self.chance {
                let (query, numbers) = (self.place.row + tile.query + row, &mut numbers[..until]);
                chance.numbers(self.level, self.place.sample, query, tile.key, numbers);
                chance.drop(self.level, scores, numbers);
            }
            let mut kept = 0.0;
            if !tile.is_first {
                kept = exp::<false>(largest - next);
                self.sums[row * width..(row + 1) * width].iter_mut().for_each(|sum| *sum *= kept);
            }
            (self.largest[row], self.total[row]) = (next, total * kept + weight);
        }
    }

    /// `sums += weights v`
    fn weigh<M: Micro>(&mut self, tile: Tile, rows: Range<usize>) {
        let sizes = self.sizes;
        let weights = self.scores[rows.start * SCORE_ROW..].as_ptr();
        let values = self.values[tile.key * M::COLUMNS..].as_ptr();
        let width = sizes.padded_head();
        let sums = self.sums[rows.start * width..].as_mut_ptr();
        let sink = Sink::plain(sums, width, !tile.is_first);
        let columns = sizes.head.next_multiple_of(M::COLUMNS);
        let left = Left { start: weights, row: SCORE_ROW, step: 1 };
        let keys = tile.keys_until(rows.end);
        // SAFETY: packed values and a row of sums have whole panels.
        #[allow(unsafe_code)]
        unsafe {
            panels::<M>(rows.len(), columns, keys, left, values, sizes.sequence * M::COLUMNS, sink);
        }
    }

    fn finish(&self, query: usize, out: &Parts<T>, lse: &Parts<f32>) {
        let (sizes, width) = (self.sizes, self.sizes.padded_head());
        let mut buffer = [0.0; BUFFER];
        for row in 0..QUERIES.min(sizes.sequence - query) {
            let position = query + row;
            let start = self.place.out + position * sizes.channels;
            // SAFETY: heads and positions do not overlap.
            #[allow(unsafe_code)]
            let (out, lse) = unsafe {
                let lse = lse.part(self.place.lse + position..self.place.lse + position + 1);
                (out.part(start..start + sizes.head), &mut lse[0])
            };
            let share = 1.0 / self.total[row];
            write(self.level, out, &mut buffer, |run, out| {
                for (out, sum) in out.iter_mut().zip(&self.sums[row * width + run.start..]) {
                    *out = sum * share;
                }
            });
            *lse = self.largest[row] + self.total[row].ln();
        }
    }
}

simd! {
    /// Turns scores into `e^(scale score - m)`, those that are not seen into zeros; returns m, the largest so far,
    /// and their sum. Whole vectors are computed.
    pub(super) fn weights(
        scores: &mut [f32], seen: Range<usize>, scale: f32, largest_before: f32,
    ) -> (f32, f32) {
        let (scores, unseen) = scores.split_at_mut(seen.end.next_multiple_of(LANES));
        unseen.fill(0.0);
        scores[..seen.start].fill(f32::NEG_INFINITY);
        scores[seen.end..].fill(f32::NEG_INFINITY);
        let largest = largest(scores) * scale;
        let largest = if largest > largest_before { largest } else { largest_before };
        // Those that are not seen add next to nothing.
        let sum = map_and_sum(scores, |score| exp::<FUSED>(multiply_add::<FUSED>(score, scale, -largest)));
        scores[..seen.start].fill(0.0);
        scores[seen.end..].fill(0.0);
        (largest, sum)
    }
}

simd! {
    /// `cap tanh(scale score / cap)`
    pub(super) fn hold_within(scores: &mut [f32], scale: f32, cap: f32) {
        for score in scores {
            *score = cap * tanh::<FUSED>(*score * (scale / cap));
        }
    }
}
