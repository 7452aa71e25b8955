//! The gradient of attention: weights are computed again from the scores and their logarithm sums.

use std::ops::Range;

use crate::cpu::kernels::dropout::Chance;
use crate::cpu::kernels::float::{BUFFER, Float, read};
use crate::cpu::kernels::math::{LANES, exp, multiply_add, sum, tanh};
use crate::cpu::kernels::operands::Operands;
use crate::cpu::kernels::product::{Left, Micro, Sink, panels};
use crate::cpu::kernels::simd::{Level, simd};
use crate::cpu::kernels::workers::{Parts, Workers};
use ops::{AttentionBackward, Operation};

use super::sums::Sums;
use super::{
    KEYS, Member, QUERIES, Rows, SCORE_ROW, Sizes, Starts, Tile, chance, each_group, pack_straight,
    pack_transposed, take,
};

pub(crate) fn run<T: Float>(
    op: &AttentionBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    with_micro!(workers, run_with::<T>(op, operands, scratch, workers));
}

fn run_with<M: Micro, T: Float>(
    op: &AttentionBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let sizes = Sizes::new(op.name(), op.attending, operands.input_type(1));
    let [dout, qkv, out] = [0, 1, 2].map(|index| operands.input::<T>(index));
    let lse = operands.input::<f32>(3);
    let starts = Starts::of_all(op.attending, 4, operands);
    let chance = chance(op.attending, op.attending.places(4)[1], operands);
    let dqkv = Parts::new(operands.output::<T>(0));
    let scratch_len = AttentionBackward::workspace_elements(T::DTYPE, sizes.sequence, sizes.head);
    each_group(sizes, scratch, scratch_len, workers, |members, mut scratch| {
        let transposed = sizes.padded_sequence() * sizes.head;
        let straight = sizes.sequence * sizes.padded_head();
        let [keys_across, values_across] = [(); 2].map(|()| take(&mut scratch, transposed));
        let [keys, queries, douts] = [(); 3].map(|()| take(&mut scratch, straight));
        let [weights, dscores] = [(); 2].map(|()| take(&mut scratch, QUERIES * SCORE_ROW));
        for member in members {
            let place = member.place;
            let head = BackwardHead {
                sizes,
                member,
                level: workers.level(),
                dout: &dout[place.out..],
                qkv: place.qkv.map(|start| &qkv[start..]),
                out: &out[place.out..],
                lse: &lse[place.lse..place.lse + sizes.sequence],
                starts: starts.of(place, sizes),
                chance,
                keys_across: &mut *keys_across,
                values_across: &mut *values_across,
                keys: &mut *keys,
                queries: &mut *queries,
                douts: &mut *douts,
                weights: &mut *weights,
                dscores: &mut *dscores,
            };
            head.run::<M>(&dqkv, &mut *scratch);
        }
    });
}

struct BackwardHead<'a, T> {
    sizes: Sizes,
    member: Member,
    level: Level,
    dout: &'a [T],
    /// Queries, keys and values.
    qkv: [&'a [T]; 3],
    out: &'a [T],
    lse: &'a [f32],
    starts: Starts<'a>,
    chance: Option<Chance<'a>>,
    /// k^T and v^T in panels.
    keys_across: &'a mut [f32],
    values_across: &'a mut [f32],
    /// k, q and dout in panels.
    keys: &'a mut [f32],
    queries: &'a mut [f32],
    douts: &'a mut [f32],
    /// A tile of the softmax, and of the gradient of the scores.
    weights: &'a mut [f32],
    dscores: &'a mut [f32],
}

impl<T: Float> BackwardHead<'_, T> {
    /// `wide` is for tiles of q, dout and dq and for dk and dv in f32, where they are stored otherwise.
    fn run<M: Micro>(mut self, dqkv: &Parts<T>, mut wide: &mut [f32]) {
        self.pack::<M>();
        let (sizes, level) = (self.sizes, self.level);
        let tile_len = if wide.is_empty() { 0 } else { QUERIES * sizes.head };
        let [wide_queries, wide_douts] = [(); 2].map(|()| take(&mut wide, tile_len));
        let sums = Sums::new(dqkv, wide, self.member.place, sizes);
        if self.member.is_first {
            sums.clear();
        }
        let mut buffer = [0.0; BUFFER];
        for query in (0..sizes.sequence).step_by(QUERIES) {
            let count = QUERIES.min(sizes.sequence - query);
            let (queries, dout) = (&self.qkv[0][query * sizes.row()..], &self.dout[query * sizes.channels..]);
            let queries = Rows::new(level, queries, sizes.row(), count, sizes.head, wide_queries);
            let douts = Rows::new(level, dout, sizes.channels, count, sizes.head, wide_douts);
            let mut along = [0.0; QUERIES];
            for (row, along) in along[..count].iter_mut().enumerate() {
                let start = (query + row) * sizes.channels;
                let dout = douts.row(row);
                read(level, &self.out[start..start + sizes.head], &mut buffer, |run, out| {
                    *along += dot(level, &dout[run], out);
                });
            }
            for tile in Tile::of_queries(query, sizes, self.starts) {
                for rows in tile.query_groups(M::ROWS) {
                    self.scores::<M>(tile, rows.clone(), [queries, douts]);
                    self.differentiate::<M>(tile, rows.clone(), &along);
                    self.query_gradients::<M>(tile, rows, &sums);
                }
                let operands = [(&*self.dscores, &*self.queries), (&*self.weights, &*self.douts)];
                sums.add_key_gradients::<M>(
                    tile.query..tile.query_end,
                    tile.key..tile.key_end,
                    SCORE_ROW,
                    operands,
                );
            }
            sums.store(level, 0, query..query + count, dqkv);
        }
        for part in (1..3).filter(|_| self.member.is_last) {
            sums.store(level, part, 0..sizes.sequence, dqkv);
        }
    }

    fn pack<M: Micro>(&mut self) {
        let (sizes, row, level) = (self.sizes, self.sizes.row(), self.level);
        let [queries, keys, values] = self.qkv;
        if self.member.is_first {
            pack_transposed::<M, T>(level, keys, row, sizes, self.keys_across);
            pack_transposed::<M, T>(level, values, row, sizes, self.values_across);
            pack_straight::<M, T>(level, keys, row, sizes, self.keys);
        }
        pack_straight::<M, T>(level, queries, row, sizes, self.queries);
        pack_straight::<M, T>(level, self.dout, sizes.channels, sizes, self.douts);
    }

    /// `weights = q k^T` (not yet softened) and `dscores = dout v^T` (not yet differentiated).
    fn scores<M: Micro>(&mut self, tile: Tile, rows: Range<usize>, left: [Rows; 2]) {
        let sizes = self.sizes;
        let columns = tile.keys_until(rows.end).next_multiple_of(M::COLUMNS);
        let right =
            [&self.keys_across[tile.key * sizes.head..], &self.values_across[tile.key * sizes.head..]];
        let results =
            [&mut self.weights[rows.start * SCORE_ROW..], &mut self.dscores[rows.start * SCORE_ROW..]];
        for ((left, right), result) in left.into_iter().zip(right).zip(results) {
            let sink = Sink::plain(result.as_mut_ptr(), SCORE_ROW, false);
            let left = left.left(rows.start);
            // SAFETY: packed operands and a row of scores have whole panels.
            #[allow(unsafe_code)]
            unsafe {
                let panel = sizes.head * M::COLUMNS;
                panels::<M>(rows.len(), columns, sizes.head, left, right.as_ptr(), panel, sink);
            }
        }
    }

    /// `weights = softmax(scores)`, `dscores = weights * (dweights - along) * scale`, zero where masked. Of weights, what is
    /// left of them.
    fn differentiate<M: Micro>(&mut self, tile: Tile, rows: Range<usize>, along: &[f32; QUERIES]) {
        // Keys are taken in groups that may reach past the last query of this one.
        let until = SCORE_ROW.min(tile.keys_until(rows.end) + M::ROWS);
        let (place, mut numbers) = (self.member.place, [0; SCORE_ROW]);
        let numbers = &mut numbers[..until];
        for row in rows {
            let seen = tile.hidden(row)..tile.keys_until(row + 1);
            let range = row * SCORE_ROW..row * SCORE_ROW + until;
            let (weights, dscores) = (&mut self.weights[range.clone()], &mut self.dscores[range]);
            let (lse, along) = (self.lse[tile.query + row], along[row]);
            let (scale, level) = (self.sizes.scale(), self.level);
            if let Some(chance) = self.chance {
                chance.numbers(level, place.sample, place.row + tile.query + row, tile.key, numbers);
                chance.drop(level, dscores, numbers);
            }
            match self.sizes.attending.cap {
                None => softmax_backward(level, weights, dscores, seen, scale, (lse, along)),
                Some(cap) => {
                    capped_softmax_backward(level, weights, dscores, seen, (scale, cap), (lse, along));
                }
            }
            if let Some(chance) = self.chance {
                chance.drop(level, weights, numbers);
            }
        }
    }

    /// `dq += dscores k`
    fn query_gradients<M: Micro>(&mut self, tile: Tile, rows: Range<usize>, sums: &Sums) {
        let sizes = self.sizes;
        let sink = Sink::plain(sums.at(0, tile.query + rows.start), sums.row, !tile.is_first);
        let start = self.dscores[rows.start * SCORE_ROW..].as_ptr();
        let left = Left { start, row: SCORE_ROW, step: 1 };
        let right = self.keys[tile.key * M::COLUMNS..].as_ptr();
        let keys = tile.keys_until(rows.end);
        // SAFETY: nobody else writes this head's gradients.
        #[allow(unsafe_code)]
        unsafe {
            let panel = sizes.sequence * M::COLUMNS;
            panels::<M>(rows.len(), sizes.head, keys, left, right, panel, sink);
        }
    }
}

const _: () = assert!(KEYS + 12 <= SCORE_ROW, "a group of keys that begins in a tile ends in its row");

simd! {
    fn dot(a: &[f32], b: &[f32]) -> f32 {
        let b = &b[..a.len()];
        sum(a.len(), |i| a[i] * b[i])
    }
}

simd! {
    /// In: scores and the gradient of their softmax. Out: their softmax and the gradient of the scores, zero where
    /// they are not seen. Whole vectors are computed.
    fn softmax_backward(
        scores: &mut [f32], dscores: &mut [f32], seen: Range<usize>, scale: f32, row: (f32, f32),
    ) {
        let (lse, along) = row;
        let whole = seen.end.next_multiple_of(LANES).min(scores.len());
        for (score, dscore) in scores[..whole].iter_mut().zip(&mut dscores[..whole]) {
            let weight = exp::<FUSED>(multiply_add::<FUSED>(*score, scale, -lse));
            *score = weight;
            *dscore = weight * (*dscore - along) * scale;
        }
        for values in [scores, dscores] {
            values[..seen.start.min(seen.end)].fill(0.0);
            values[seen.end..].fill(0.0);
        }
    }
}

simd! {
    /// The same of scores that are held within a cap.
    fn capped_softmax_backward(
        scores: &mut [f32], dscores: &mut [f32], seen: Range<usize>, held: (f32, f32), row: (f32, f32),
    ) {
        let ((scale, cap), (lse, along)) = (held, row);
        let whole = seen.end.next_multiple_of(LANES).min(scores.len());
        for (score, dscore) in scores[..whole].iter_mut().zip(&mut dscores[..whole]) {
            let share = tanh::<FUSED>(*score * (scale / cap));
            let weight = exp::<FUSED>(multiply_add::<FUSED>(share, cap, -lse));
            *score = weight;
            *dscore = weight * (*dscore - along) * (1.0 - share * share) * scale;
        }
        for values in [scores, dscores] {
            values[..seen.start.min(seen.end)].fill(0.0);
            values[seen.end..].fill(0.0);
        }
    }
}
