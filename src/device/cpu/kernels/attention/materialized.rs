//! Attention that stores its T x T scores and their softmax, one batch element's head and one tile of queries at a time.
//!
//! What is computed of a tile stays in f32 until the tile is done: what is stored is rounded, but not computed with.

use std::ops::Range;

use crate::cpu::kernels::dropout::Chance;
use crate::cpu::kernels::float::{BUFFER, Float, read, write};
use crate::cpu::kernels::math::{LANES, sum};
use crate::cpu::kernels::operands::Operands;
use crate::cpu::kernels::product::{Left, Micro, Sink, panels};
use crate::cpu::kernels::simd::{Level, simd};
use crate::cpu::kernels::workers::{Parts, Workers};
use ops::{MaterializedAttention, MaterializedAttentionBackward, Operation};

use super::forward::{hold_within, weights};
use super::sums::Sums;
use super::{
    Head, Member, QUERIES, Rows, Sizes, Starts, chance, each_group, each_head, pack_straight,
    pack_transposed, take,
};

pub(crate) fn forward<T: Float>(
    op: &MaterializedAttention,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    with_micro!(workers, forward_with::<T>(op, operands, scratch, workers));
}

pub(crate) fn backward<T: Float>(
    op: &MaterializedAttentionBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    with_micro!(workers, backward_with::<T>(op, operands, scratch, workers));
}

fn forward_with<M: Micro, T: Float>(
    op: &MaterializedAttention,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let sizes = Sizes::new(op.name(), op.attending, operands.input_type(0));
    let qkv = operands.input::<T>(0);
    let starts = Starts::of_all(op.attending, 1, operands);
    let chance = chance(op.attending, op.attending.places(1)[1], operands);
    let [out, probabilities, scores] = [0, 1, 2].map(|index| Parts::new(operands.output::<T>(index)));
    let left = chance.map(|chance| (chance, Parts::new(operands.output::<T>(3))));
    let scratch_len = MaterializedAttention::workspace_elements(T::DTYPE, sizes.sequence, sizes.head);
    each_head(sizes, scratch, scratch_len, workers, |place, mut scratch| {
        let head = ForwardHead {
            sizes,
            place,
            level: workers.level(),
            qkv,
            starts: starts.of(place, sizes),
            keys: take(&mut scratch, sizes.padded_sequence() * sizes.head),
            values: take(&mut scratch, sizes.sequence * sizes.padded_head()),
            tile: take(&mut scratch, QUERIES * sizes.score_row()),
            out: take(&mut scratch, QUERIES * sizes.padded_head()),
        };
        head.run::<M>(&out, [&probabilities, &scores], left.as_ref(), scratch);
    });
}

impl Sizes {
    fn score_row(&self) -> usize {
        MaterializedAttention::score_row(self.sequence)
    }

    /// The tiles of queries.
    fn tiles(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.sequence).step_by(QUERIES).map(move |query| query..self.sequence.min(query + QUERIES))
    }

    /// Keys that some queries see, up to the last one of all of them.
    fn keys_until(self, query_end: usize) -> usize {
        self.attending.seen(query_end - 1, self.sequence).end
    }

    /// Where a query's scores are in a tensor [B,H,T,T].
    fn scores_of(&self, place: Head, query: usize) -> Range<usize> {
        let start = (place.lse + query) * self.sequence;
        start..start + self.sequence
    }
}

/// The rows of a tile in groups of as many as a product takes.
fn groups<M: Micro>(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(M::ROWS).map(move |row| row..rows.min(row + M::ROWS))
}

struct ForwardHead<'a, T> {
    sizes: Sizes,
    place: Head,
    level: Level,
    qkv: &'a [T],
    starts: Starts<'a>,
    /// k^T in panels.
    keys: &'a mut [f32],
    /// v in panels.
    values: &'a mut [f32],
    /// Scores of a tile of queries, then probabilities, in rows of `score_row`.
    tile: &'a mut [f32],
    /// Output of these, in rows of `padded_head`.
    out: &'a mut [f32],
}

impl<T: Float> ForwardHead<'_, T> {
    /// `wide` is for a tile of queries in f32, where they are stored otherwise.
    fn run<M: Micro>(
        mut self,
        out: &Parts<T>,
        [probabilities, scores]: [&Parts<T>; 2],
        left: Option<&(Chance, Parts<T>)>,
        wide: &mut [f32],
    ) {
        let (sizes, row, level) = (self.sizes, self.sizes.row(), self.level);
        let [queries, keys, values] = self.place.qkv.map(|start| &self.qkv[start..]);
        pack_transposed::<M, T>(level, keys, row, sizes, self.keys);
        pack_straight::<M, T>(level, values, row, sizes, self.values);
        for tile in sizes.tiles() {
            let queries = &queries[tile.start * row..];
            let queries = Rows::new(level, queries, row, tile.len(), sizes.head, wide);
            for rows in groups::<M>(tile.len()) {
                self.score::<M>(rows, queries);
            }
            for query in tile.clone() {
                self.soften(query, query - tile.start, probabilities, scores);
                if let Some((chance, left)) = left {
                    self.drop(query, query - tile.start, chance, left);
                }
            }
            for rows in groups::<M>(tile.len()) {
                self.weigh::<M>(tile.start, rows);
            }
            self.store(tile, out);
        }
    }

    /// `tile = q k^T`, of all keys.
    fn score<M: Micro>(&mut self, rows: Range<usize>, queries: Rows) {
        let (sizes, score_row) = (self.sizes, self.sizes.score_row());
        let sink = Sink::plain(self.tile[rows.start * score_row..].as_mut_ptr(), score_row, false);
        let panel = sizes.head * M::COLUMNS;
        let left = queries.left(rows.start);
        // SAFETY: packed keys have whole panels, and a row of the tile has room for all keys.
        #[allow(unsafe_code)]
        unsafe {
            panels::<M>(rows.len(), sizes.sequence, sizes.head, left, self.keys.as_ptr(), panel, sink);
        }
    }

    /// Stores a query's scores, makes them probabilities and stores these.
    fn soften(&mut self, query: usize, row: usize, probabilities: &Parts<T>, scores: &Parts<T>) {
        let (sizes, level) = (self.sizes, self.level);
        let range = sizes.scores_of(self.place, query);
        // SAFETY: heads and queries do not overlap.
        #[allow(unsafe_code)]
        let (scores, probabilities) = unsafe { (scores.part(range.clone()), probabilities.part(range)) };
        let whole = sizes.sequence.next_multiple_of(LANES);
        let tile = &mut self.tile[row * sizes.score_row()..][..whole];
        let mut buffer = [0.0; BUFFER];
        let mut scale = sizes.scale();
        if let Some(cap) = sizes.attending.cap {
            hold_within(level, tile, scale, cap);
            scale = 1.0;
        }
        write(level, scores, &mut buffer, |run, scores| scaled(level, &tile[run], scale, scores));
        let seen = sizes.attending.seen(query, sizes.sequence);
        let seen = seen.start.max(self.starts.first(query))..seen.end;
        let (_, total) = weights(level, tile, seen.clone(), scale, f32::NEG_INFINITY);
        let share = 1.0 / total;
        share_out(level, &mut tile[seen], share);
        T::narrow(level, &tile[..sizes.sequence], probabilities);
    }

    /// Drops some of a query's probabilities and stores what is left of them.
    fn drop(&mut self, query: usize, row: usize, chance: &Chance, left: &Parts<T>) {
        let sizes = self.sizes;
        let tile = &mut self.tile[row * sizes.score_row()..][..sizes.sequence];
        drop_row(self.level, chance, self.place, query, tile);
        // SAFETY: heads and queries do not overlap.
        #[allow(unsafe_code)]
        let left = unsafe { left.part(sizes.scores_of(self.place, query)) };
        T::narrow(self.level, tile, left);
    }

    /// `out = probabilities v`, of the keys that are seen.
    fn weigh<M: Micro>(&mut self, first_query: usize, rows: Range<usize>) {
        let (sizes, score_row, width) = (self.sizes, self.sizes.score_row(), self.sizes.padded_head());
        let left = Left { start: self.tile[rows.start * score_row..].as_ptr(), row: score_row, step: 1 };
        let sink = Sink::plain(self.out[rows.start * width..].as_mut_ptr(), width, false);
        let (keys, panel) = (sizes.keys_until(first_query + rows.end), sizes.sequence * M::COLUMNS);
        // SAFETY: packed values have whole panels, and a row of the output has room for a head.
        #[allow(unsafe_code)]
        unsafe {
            panels::<M>(rows.len(), sizes.head, keys, left, self.values.as_ptr(), panel, sink);
        }
    }

    fn store(&self, tile: Range<usize>, out: &Parts<T>) {
        let (sizes, width) = (self.sizes, self.sizes.padded_head());
        for (query, row) in tile.zip(self.out.chunks_exact(width)) {
            let start = self.place.out + query * sizes.channels;
            // SAFETY: heads and queries do not overlap.
            #[allow(unsafe_code)]
            let out = unsafe { out.part(start..start + sizes.head) };
            T::narrow(self.level, &row[..sizes.head], out);
        }
    }
}

/// Drops what chance does of a query's weights for all keys.
fn drop_row(level: Level, chance: &Chance, place: Head, query: usize, weights: &mut [f32]) {
    let mut numbers = [0; BUFFER];
    for (run, weights) in weights.chunks_mut(BUFFER).enumerate() {
        let numbers = &mut numbers[..weights.len()];
        chance.numbers(level, place.sample, place.row + query, run * BUFFER, numbers);
        chance.drop(level, weights, numbers);
    }
}

fn backward_with<M: Micro, T: Float>(
    op: &MaterializedAttentionBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let sizes = Sizes::new(op.name(), op.attending, operands.input_type(1));
    let [dout, qkv, probabilities] = [0, 1, 2].map(|index| operands.input::<T>(index));
    let scores = sizes.attending.cap.map(|_| operands.input::<T>(3));
    let left = 3 + usize::from(scores.is_some());
    let left =
        chance(op.attending, Some(left + 1), operands).map(|chance| (chance, operands.input::<T>(left)));
    let [dqkv, dprobabilities, dscores] = [0, 1, 2].map(|index| Parts::new(operands.output::<T>(index)));
    let scratch_len = MaterializedAttentionBackward::workspace_elements(T::DTYPE, sizes.sequence, sizes.head);
    each_group(sizes, scratch, scratch_len, workers, |members, mut scratch| {
        let straight = sizes.sequence * sizes.padded_head();
        let values_across = take(&mut scratch, sizes.padded_sequence() * sizes.head);
        let [keys, queries, douts] = [(); 3].map(|()| take(&mut scratch, straight));
        let [of_softmax, of_scores] = [(); 2].map(|()| take(&mut scratch, QUERIES * sizes.score_row()));
        for member in members {
            let head = BackwardHead {
                sizes,
                member,
                level: workers.level(),
                dout: &dout[member.place.out..],
                qkv: member.place.qkv.map(|start| &qkv[start..]),
                given: probabilities,
                scores,
                left,
                values_across: &mut *values_across,
                keys: &mut *keys,
                queries: &mut *queries,
                douts: &mut *douts,
                probabilities: &mut *of_softmax,
                dscores: &mut *of_scores,
            };
            head.run::<M>(&dqkv, &dprobabilities, &dscores, &mut *scratch);
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
    /// Probabilities of all heads.
    given: &'a [T],
    /// Scores of all heads, if they are held within a cap.
    scores: Option<&'a [T]>,
    /// Where some are dropped: those that are left, of all heads.
    left: Option<(Chance<'a>, &'a [T])>,
    /// v^T in panels.
    values_across: &'a mut [f32],
    /// k, q and dout in panels.
    keys: &'a mut [f32],
    queries: &'a mut [f32],
    douts: &'a mut [f32],
    /// Of a tile of queries, in rows of `score_row`: probabilities, and their gradient, then that of q k^T.
    probabilities: &'a mut [f32],
    dscores: &'a mut [f32],
}

impl<T: Float> BackwardHead<'_, T> {
    /// `wide` is for tiles of dout and dq and for dk and dv in f32, where they are stored otherwise.
    fn run<M: Micro>(
        mut self,
        dqkv: &Parts<T>,
        dprobabilities: &Parts<T>,
        dscores: &Parts<T>,
        mut wide: &mut [f32],
    ) {
        self.pack::<M>();
        let (sizes, level) = (self.sizes, self.level);
        let tile_len = if wide.is_empty() { 0 } else { QUERIES * sizes.head };
        let wide_douts = take(&mut wide, tile_len);
        let sums = Sums::new(dqkv, wide, self.member.place, sizes);
        if self.member.is_first {
            sums.clear();
        }
        for tile in sizes.tiles() {
            let dout = &self.dout[tile.start * sizes.channels..];
            let douts = Rows::new(level, dout, sizes.channels, tile.len(), sizes.head, wide_douts);
            for rows in groups::<M>(tile.len()) {
                self.probability_gradients::<M>(rows, douts);
            }
            for query in tile.clone() {
                self.differentiate(query, query - tile.start, dprobabilities, dscores);
            }
            for rows in groups::<M>(tile.len()) {
                self.query_gradients::<M>(tile.start, rows, &sums);
            }
            let operands = [(&*self.dscores, &*self.queries), (&*self.probabilities, &*self.douts)];
            let keys = 0..sizes.keys_until(tile.end);
            sums.add_key_gradients::<M>(tile.clone(), keys, sizes.score_row(), operands);
            sums.store(level, 0, tile, dqkv);
        }
        for part in (1..3).filter(|_| self.member.is_last) {
            sums.store(level, part, 0..sizes.sequence, dqkv);
        }
    }

    fn pack<M: Micro>(&mut self) {
        let (sizes, row, level) = (self.sizes, self.sizes.row(), self.level);
        let [queries, keys, values] = self.qkv;
        if self.member.is_first {
            pack_transposed::<M, T>(level, values, row, sizes, self.values_across);
            pack_straight::<M, T>(level, keys, row, sizes, self.keys);
        }
        pack_straight::<M, T>(level, queries, row, sizes, self.queries);
        pack_straight::<M, T>(level, self.dout, sizes.channels, sizes, self.douts);
    }

    /// `dprobabilities = dout v^T`, of all keys.
    fn probability_gradients<M: Micro>(&mut self, rows: Range<usize>, douts: Rows) {
        let (sizes, score_row) = (self.sizes, self.sizes.score_row());
        let sink = Sink::plain(self.dscores[rows.start * score_row..].as_mut_ptr(), score_row, false);
        let (left, right) = (douts.left(rows.start), self.values_across.as_ptr());
        // SAFETY: packed values have whole panels, and a row of the tile has room for all keys.
        #[allow(unsafe_code)]
        unsafe {
            let panel = sizes.head * M::COLUMNS;
            panels::<M>(rows.len(), sizes.sequence, sizes.head, left, right, panel, sink);
        }
    }

    /// Stores a query's dprobabilities, makes them dscores and stores these. Of probabilities, those that are left remain.
    fn differentiate(&mut self, query: usize, row: usize, dprobabilities: &Parts<T>, stored: &Parts<T>) {
        let (sizes, level) = (self.sizes, self.level);
        let range = sizes.scores_of(self.member.place, query);
        // SAFETY: heads and queries do not overlap.
        #[allow(unsafe_code)]
        let (dprobabilities, stored) =
            unsafe { (dprobabilities.part(range.clone()), stored.part(range.clone())) };
        let tile = row * sizes.score_row()..row * sizes.score_row() + sizes.sequence;
        let (probabilities, dscores) = (&mut self.probabilities[tile.clone()], &mut self.dscores[tile]);
        T::widen(level, &self.given[range.clone()], probabilities);
        if let Some((chance, _)) = &self.left {
            drop_row(level, chance, self.member.place, query, dscores);
        }
        T::narrow(level, dscores, dprobabilities);
        let seen = sizes.attending.seen(query, sizes.sequence);
        dscores[..seen.start].fill(0.0);
        dscores[seen.end..].fill(0.0);
        softmax_backward(level, &probabilities[seen.clone()], &mut dscores[seen], sizes.scale());
        if let Some((_, left)) = self.left {
            T::widen(level, &left[range.clone()], probabilities);
        }
        if let (Some(cap), Some(scores)) = (sizes.attending.cap, self.scores) {
            read(level, &scores[range], &mut [0.0; BUFFER], |run, scores| {
                scale_by_cap_slope(level, &mut dscores[run], scores, cap);
            });
        }
        T::narrow(level, dscores, stored);
    }

    /// `dq = dscores k`, of the keys that are seen.
    fn query_gradients<M: Micro>(&mut self, first_query: usize, rows: Range<usize>, sums: &Sums) {
        let (sizes, score_row) = (self.sizes, self.sizes.score_row());
        let sink = Sink::plain(sums.at(0, first_query + rows.start), sums.row, false);
        let left = Left { start: self.dscores[rows.start * score_row..].as_ptr(), row: score_row, step: 1 };
        let (keys, panel) = (sizes.keys_until(first_query + rows.end), sizes.sequence * M::COLUMNS);
        // SAFETY: nobody else writes this head's gradients.
        #[allow(unsafe_code)]
        unsafe {
            panels::<M>(rows.len(), sizes.head, keys, left, self.keys.as_ptr(), panel, sink);
        }
    }
}

simd! {
    fn scaled(values: &[f32], scale: f32, result: &mut [f32]) {
        for (result, value) in result.iter_mut().zip(values) {
            *result = value * scale;
        }
    }
}

simd! {
    /// Multiplies weights. What is too small for full precision becomes zero: products slow down many times over with it.
    fn share_out(weights: &mut [f32], share: f32) {
        for weight in weights {
            let shared = *weight * share;
            *weight = if shared < f32::MIN_POSITIVE { 0.0 } else { shared };
        }
    }
}

simd! {
    /// In: the gradient of a softmax, and the softmax. Out: the gradient of what it was made of, times `scale`.
    fn softmax_backward(softmax: &[f32], gradient: &mut [f32], scale: f32) {
        let softmax = &softmax[..gradient.len()];
        let along = sum(softmax.len(), |i| softmax[i] * gradient[i]);
        for (gradient, weight) in gradient.iter_mut().zip(softmax) {
            *gradient = weight * (*gradient - along) * scale;
        }
    }
}

simd! {
    /// `dscore *= 1 - (score / cap)^2`, the slope of what held the score within the cap.
    fn scale_by_cap_slope(dscores: &mut [f32], scores: &[f32], cap: f32) {
        for (dscore, score) in dscores.iter_mut().zip(scores) {
            let share = score / cap;
            *dscore *= 1.0 - share * share;
        }
    }
}
