//! Attention that stores its T x T scores and their softmax. It computes one tile of queries of one head at a time.
//!
//! The computation of a tile uses f32 intermediates; the stored tensors are rounded copies of them.

use std::ops::Range;

use crate::cpu::kernels::dropout::SeededDropout;
use crate::cpu::kernels::float::{BUFFER, Float, read, write};
use crate::cpu::kernels::math::{LANES, sum};
use crate::cpu::kernels::matmul::{LeftRows, MicroKernel, Sink, panels};
use crate::cpu::kernels::operands::Operands;
use crate::cpu::kernels::simd::{Level, simd};
use crate::cpu::kernels::workers::{SharedSlice, Workers};
use ops::{MaterializedAttention, MaterializedAttentionBackward, Operation};

use super::forward::{exp_scores, soft_cap};
use super::gradient_sums::GradientSums;
use super::{
    DocumentStarts, GroupHead, HeadOffsets, QUERIES, Sizes, TileRows, dropout_of, for_each_group,
    for_each_head, pack_transposed, pack_untransposed, take,
};

pub(crate) fn forward<T: Float>(
    op: &MaterializedAttention,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    with_micro_kernel!(workers, forward_with::<T>(op, operands, scratch, workers));
}

pub(crate) fn backward<T: Float>(
    op: &MaterializedAttentionBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    with_micro_kernel!(workers, backward_with::<T>(op, operands, scratch, workers));
}

fn forward_with<M: MicroKernel, T: Float>(
    op: &MaterializedAttention,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let sizes = Sizes::new(op.name(), op.attending, operands.input_type(0));
    let qkv = operands.input::<T>(0);
    let starts = DocumentStarts::new(op.attending, 1, operands);
    let dropout = dropout_of(op.attending, op.attending.places(1)[1], operands);
    let [out, probabilities, scores] = [0, 1, 2].map(|index| SharedSlice::new(operands.output::<T>(index)));
    let dropped = dropout.map(|dropout| (dropout, SharedSlice::new(operands.output::<T>(3))));
    let scratch_len = MaterializedAttention::workspace_elements(T::DTYPE, sizes.sequence, sizes.head);
    for_each_head(sizes, scratch, scratch_len, workers, |offsets, mut scratch| {
        let head = ForwardHead {
            sizes,
            offsets,
            level: workers.level(),
            qkv,
            starts: starts.for_head(offsets, sizes),
            keys: take(&mut scratch, sizes.padded_sequence() * sizes.head),
            values: take(&mut scratch, sizes.sequence * sizes.padded_head()),
            tile: take(&mut scratch, QUERIES * sizes.score_row()),
            out: take(&mut scratch, QUERIES * sizes.padded_head()),
        };
        head.run::<M>(&out, [&probabilities, &scores], dropped.as_ref(), scratch);
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

    /// The number of keys up to the last one visible to the queries before `query_end`.
    fn keys_until(self, query_end: usize) -> usize {
        self.attending.seen(query_end - 1, self.sequence).end
    }

    /// The range of a query's scores in a tensor [B,H,T,T].
    fn scores_of(&self, offsets: HeadOffsets, query: usize) -> Range<usize> {
        let start = (offsets.lse + query) * self.sequence;
        start..start + self.sequence
    }
}

/// The rows of a tile in groups of the micro-kernel's size.
fn groups<M: MicroKernel>(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(M::ROWS).map(move |row| row..rows.min(row + M::ROWS))
}

struct ForwardHead<'a, T> {
    sizes: Sizes,
    offsets: HeadOffsets,
    level: Level,
    qkv: &'a [T],
    starts: DocumentStarts<'a>,
    /// k^T in panels.
    keys: &'a mut [f32],
    /// v in panels.
    values: &'a mut [f32],
    /// Scores of a tile of queries, then probabilities, in rows of `score_row` elements.
    tile: &'a mut [f32],
    /// The outputs of these queries, in rows of `padded_head` elements.
    out: &'a mut [f32],
}

impl<T: Float> ForwardHead<'_, T> {
    /// `wide` holds a tile of queries in f32; it is empty if they are stored in f32.
    fn run<M: MicroKernel>(
        mut self,
        out: &SharedSlice<T>,
        [probabilities, scores]: [&SharedSlice<T>; 2],
        dropped: Option<&(SeededDropout, SharedSlice<T>)>,
        wide: &mut [f32],
    ) {
        let (sizes, stride, level) = (self.sizes, self.sizes.qkv_stride(), self.level);
        let [queries, keys, values] = self.offsets.qkv.map(|start| &self.qkv[start..]);
        pack_transposed::<M, T>(level, keys, stride, sizes, self.keys);
        pack_untransposed::<M, T>(level, values, stride, sizes, self.values);
        for tile in sizes.tiles() {
            let queries = &queries[tile.start * stride..];
            let queries = TileRows::new(level, queries, stride, tile.len(), sizes.head, wide);
            for rows in groups::<M>(tile.len()) {
                self.compute_scores::<M>(rows, queries);
            }
            for query in tile.clone() {
                self.apply_softmax(query, query - tile.start, probabilities, scores);
                if let Some((dropout, dropped)) = dropped {
                    self.apply_dropout(query, query - tile.start, dropout, dropped);
                }
            }
            for rows in groups::<M>(tile.len()) {
                self.compute_outputs::<M>(tile.start, rows);
            }
            self.store_outputs(tile, out);
        }
    }

    /// `tile = q k^T`, for all keys.
    fn compute_scores<M: MicroKernel>(&mut self, rows: Range<usize>, queries: TileRows) {
        let (sizes, score_row) = (self.sizes, self.sizes.score_row());
        let sink = Sink::plain(self.tile[rows.start * score_row..].as_mut_ptr(), score_row, false);
        let panel = sizes.head * M::COLUMNS;
        let left = queries.left(rows.start);
        // SAFETY: the packed keys hold whole panels, and a row of the tile has room for all keys.
        #[allow(unsafe_code)]
        unsafe {
            panels::<M>(rows.len(), sizes.sequence, sizes.head, left, self.keys.as_ptr(), panel, sink);
        }
    }

    /// Stores a query's scores, computes their softmax and stores it.
    fn apply_softmax(
        &mut self,
        query: usize,
        row: usize,
        probabilities: &SharedSlice<T>,
        scores: &SharedSlice<T>,
    ) {
        let (sizes, level) = (self.sizes, self.level);
        let range = sizes.scores_of(self.offsets, query);
        // SAFETY: heads and queries do not overlap.
        #[allow(unsafe_code)]
        let (scores, probabilities) =
            unsafe { (scores.range_mut(range.clone()), probabilities.range_mut(range)) };
        let whole = sizes.sequence.next_multiple_of(LANES);
        let tile = &mut self.tile[row * sizes.score_row()..][..whole];
        let mut buffer = [0.0; BUFFER];
        let mut scale = sizes.scale();
        if let Some(cap) = sizes.attending.cap {
            soft_cap(level, tile, scale, cap);
            scale = 1.0;
        }
        write(level, scores, &mut buffer, |run, scores| scaled(level, &tile[run], scale, scores));
        let visible = sizes.attending.seen(query, sizes.sequence);
        let visible = visible.start.max(self.starts.first_key(query))..visible.end;
        let (_, total) = exp_scores(level, tile, visible.clone(), scale, f32::NEG_INFINITY);
        let reciprocal = 1.0 / total;
        normalize(level, &mut tile[visible], reciprocal);
        T::narrow(level, &tile[..sizes.sequence], probabilities);
    }

    /// Applies dropout to a query's probabilities and stores the result.
    fn apply_dropout(&mut self, query: usize, row: usize, dropout: &SeededDropout, dropped: &SharedSlice<T>) {
        let sizes = self.sizes;
        let tile = &mut self.tile[row * sizes.score_row()..][..sizes.sequence];
        drop_row(self.level, dropout, self.offsets, query, tile);
        // SAFETY: heads and queries do not overlap.
        #[allow(unsafe_code)]
        let dropped = unsafe { dropped.range_mut(sizes.scores_of(self.offsets, query)) };
        T::narrow(self.level, tile, dropped);
    }

    /// `out = probabilities v`, for the visible keys.
    fn compute_outputs<M: MicroKernel>(&mut self, first_query: usize, rows: Range<usize>) {
        let (sizes, score_row, width) = (self.sizes, self.sizes.score_row(), self.sizes.padded_head());
        let start = self.tile[rows.start * score_row..].as_ptr();
        let left = LeftRows { start, row_stride: score_row, inner_stride: 1 };
        let sink = Sink::plain(self.out[rows.start * width..].as_mut_ptr(), width, false);
        let (keys, panel) = (sizes.keys_until(first_query + rows.end), sizes.sequence * M::COLUMNS);
        // SAFETY: the packed values hold whole panels, and a row of the output has room for a head.
        #[allow(unsafe_code)]
        unsafe {
            panels::<M>(rows.len(), sizes.head, keys, left, self.values.as_ptr(), panel, sink);
        }
    }

    fn store_outputs(&self, tile: Range<usize>, out: &SharedSlice<T>) {
        let (sizes, width) = (self.sizes, self.sizes.padded_head());
        for (query, row) in tile.zip(self.out.chunks_exact(width)) {
            let start = self.offsets.out + query * sizes.channels;
            // SAFETY: heads and queries do not overlap.
            #[allow(unsafe_code)]
            let out = unsafe { out.range_mut(start..start + sizes.head) };
            T::narrow(self.level, &row[..sizes.head], out);
        }
    }
}

/// Applies dropout to a query's weights of all keys.
fn drop_row(level: Level, dropout: &SeededDropout, offsets: HeadOffsets, query: usize, weights: &mut [f32]) {
    let mut random = [0; BUFFER];
    for (chunk, weights) in weights.chunks_mut(BUFFER).enumerate() {
        let random = &mut random[..weights.len()];
        dropout.random_row(level, offsets.sample, offsets.dropout_row + query, chunk * BUFFER, random);
        dropout.apply(level, weights, random);
    }
}

fn backward_with<M: MicroKernel, T: Float>(
    op: &MaterializedAttentionBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let sizes = Sizes::new(op.name(), op.attending, operands.input_type(1));
    let [dout, qkv, probabilities] = [0, 1, 2].map(|index| operands.input::<T>(index));
    let scores = sizes.attending.cap.map(|_| operands.input::<T>(3));
    let index = 3 + usize::from(scores.is_some());
    let dropped = dropout_of(op.attending, Some(index + 1), operands)
        .map(|dropout| (dropout, operands.input::<T>(index)));
    let [dqkv, dprobabilities, dscores] =
        [0, 1, 2].map(|index| SharedSlice::new(operands.output::<T>(index)));
    let scratch_len = MaterializedAttentionBackward::workspace_elements(T::DTYPE, sizes.sequence, sizes.head);
    for_each_group(sizes, scratch, scratch_len, workers, |heads, mut scratch| {
        let untransposed = sizes.sequence * sizes.padded_head();
        let values_transposed = take(&mut scratch, sizes.padded_sequence() * sizes.head);
        let [keys, queries, douts] = [(); 3].map(|()| take(&mut scratch, untransposed));
        let [softmax_tile, dscores_tile] = [(); 2].map(|()| take(&mut scratch, QUERIES * sizes.score_row()));
        for group_head in heads {
            let head = BackwardHead {
                sizes,
                group_head,
                level: workers.level(),
                dout: &dout[group_head.offsets.out..],
                qkv: group_head.offsets.qkv.map(|start| &qkv[start..]),
                stored_probabilities: probabilities,
                scores,
                dropped,
                values_transposed: &mut *values_transposed,
                keys: &mut *keys,
                queries: &mut *queries,
                douts: &mut *douts,
                probabilities: &mut *softmax_tile,
                dscores: &mut *dscores_tile,
            };
            head.run::<M>(&dqkv, &dprobabilities, &dscores, &mut *scratch);
        }
    });
}

struct BackwardHead<'a, T> {
    sizes: Sizes,
    group_head: GroupHead,
    level: Level,
    dout: &'a [T],
    /// Queries, keys and values.
    qkv: [&'a [T]; 3],
    /// Probabilities of all heads.
    stored_probabilities: &'a [T],
    /// Scores of all heads, if they are soft-capped.
    scores: Option<&'a [T]>,
    /// With dropout: the probabilities of all heads after it.
    dropped: Option<(SeededDropout<'a>, &'a [T])>,
    /// v^T in panels.
    values_transposed: &'a mut [f32],
    /// k, q and dout in panels.
    keys: &'a mut [f32],
    queries: &'a mut [f32],
    douts: &'a mut [f32],
    /// For a tile of queries, in rows of `score_row` elements: the probabilities, and first their gradient, then that
    /// of q k^T.
    probabilities: &'a mut [f32],
    dscores: &'a mut [f32],
}

impl<T: Float> BackwardHead<'_, T> {
    /// `wide` holds tiles of dout and dq, and dk and dv, in f32; it is empty if they are stored in f32.
    fn run<M: MicroKernel>(
        mut self,
        dqkv: &SharedSlice<T>,
        dprobabilities: &SharedSlice<T>,
        dscores: &SharedSlice<T>,
        mut wide: &mut [f32],
    ) {
        self.pack::<M>();
        let (sizes, level) = (self.sizes, self.level);
        let tile_len = if wide.is_empty() { 0 } else { QUERIES * sizes.head };
        let wide_douts = take(&mut wide, tile_len);
        let sums = GradientSums::new(dqkv, wide, self.group_head.offsets, sizes);
        if self.group_head.is_first {
            sums.clear();
        }
        for tile in sizes.tiles() {
            let dout = &self.dout[tile.start * sizes.channels..];
            let douts = TileRows::new(level, dout, sizes.channels, tile.len(), sizes.head, wide_douts);
            for rows in groups::<M>(tile.len()) {
                self.probability_gradients::<M>(rows, douts);
            }
            for query in tile.clone() {
                self.softmax_gradients(query, query - tile.start, dprobabilities, dscores);
            }
            for rows in groups::<M>(tile.len()) {
                self.query_gradients::<M>(tile.start, rows, &sums);
            }
            let operands = [(&*self.dscores, &*self.queries), (&*self.probabilities, &*self.douts)];
            let keys = 0..sizes.keys_until(tile.end);
            sums.add_key_gradients::<M>(tile.clone(), keys, sizes.score_row(), operands);
            sums.store(level, 0, tile, dqkv);
        }
        for part in (1..3).filter(|_| self.group_head.is_last) {
            sums.store(level, part, 0..sizes.sequence, dqkv);
        }
    }

    fn pack<M: MicroKernel>(&mut self) {
        let (sizes, stride, level) = (self.sizes, self.sizes.qkv_stride(), self.level);
        let [queries, keys, values] = self.qkv;
        if self.group_head.is_first {
            pack_transposed::<M, T>(level, values, stride, sizes, self.values_transposed);
            pack_untransposed::<M, T>(level, keys, stride, sizes, self.keys);
        }
        pack_untransposed::<M, T>(level, queries, stride, sizes, self.queries);
        pack_untransposed::<M, T>(level, self.dout, sizes.channels, sizes, self.douts);
    }

    /// `dprobabilities = dout v^T`, for all keys.
    fn probability_gradients<M: MicroKernel>(&mut self, rows: Range<usize>, douts: TileRows) {
        let (sizes, score_row) = (self.sizes, self.sizes.score_row());
        let sink = Sink::plain(self.dscores[rows.start * score_row..].as_mut_ptr(), score_row, false);
        let (left, right) = (douts.left(rows.start), self.values_transposed.as_ptr());
        // SAFETY: the packed values hold whole panels, and a row of the tile has room for all keys.
        #[allow(unsafe_code)]
        unsafe {
            let panel = sizes.head * M::COLUMNS;
            panels::<M>(rows.len(), sizes.sequence, sizes.head, left, right, panel, sink);
        }
    }

    /// Stores a query's dprobabilities, computes dscores from them and stores these. Afterwards `probabilities` holds
    /// the probabilities after dropout.
    fn softmax_gradients(
        &mut self,
        query: usize,
        row: usize,
        dprobabilities: &SharedSlice<T>,
        stored: &SharedSlice<T>,
    ) {
        let (sizes, level) = (self.sizes, self.level);
        let range = sizes.scores_of(self.group_head.offsets, query);
        // SAFETY: heads and queries do not overlap.
        #[allow(unsafe_code)]
        let (dprobabilities, stored) =
            unsafe { (dprobabilities.range_mut(range.clone()), stored.range_mut(range.clone())) };
        let tile = row * sizes.score_row()..row * sizes.score_row() + sizes.sequence;
        let (probabilities, dscores) = (&mut self.probabilities[tile.clone()], &mut self.dscores[tile]);
        T::widen(level, &self.stored_probabilities[range.clone()], probabilities);
        if let Some((dropout, _)) = &self.dropped {
            drop_row(level, dropout, self.group_head.offsets, query, dscores);
        }
        T::narrow(level, dscores, dprobabilities);
        let visible = sizes.attending.seen(query, sizes.sequence);
        dscores[..visible.start].fill(0.0);
        dscores[visible.end..].fill(0.0);
        softmax_backward(level, &probabilities[visible.clone()], &mut dscores[visible], sizes.scale());
        if let Some((_, dropped)) = self.dropped {
            T::widen(level, &dropped[range.clone()], probabilities);
        }
        if let (Some(cap), Some(scores)) = (sizes.attending.cap, self.scores) {
            read(level, &scores[range], &mut [0.0; BUFFER], |run, scores| {
                scale_by_cap_slope(level, &mut dscores[run], scores, cap);
            });
        }
        T::narrow(level, dscores, stored);
    }

    /// `dq = dscores k`, for the visible keys.
    fn query_gradients<M: MicroKernel>(
        &mut self,
        first_query: usize,
        rows: Range<usize>,
        sums: &GradientSums,
    ) {
        let (sizes, score_row) = (self.sizes, self.sizes.score_row());
        let sink = Sink::plain(sums.row_ptr(0, first_query + rows.start), sums.stride, false);
        let start = self.dscores[rows.start * score_row..].as_ptr();
        let left = LeftRows { start, row_stride: score_row, inner_stride: 1 };
        let (keys, panel) = (sizes.keys_until(first_query + rows.end), sizes.sequence * M::COLUMNS);
        // SAFETY: no other thread writes this head's gradients.
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
    /// Multiplies weights by a factor. Subnormal results become zero, because they slow down matmuls many times.
    fn normalize(weights: &mut [f32], factor: f32) {
        for weight in weights {
            let product = *weight * factor;
            *weight = if product < f32::MIN_POSITIVE { 0.0 } else { product };
        }
    }
}

simd! {
    /// In: a softmax and its gradient. Out: the gradient of the softmax's input, times `scale`.
    fn softmax_backward(softmax: &[f32], gradient: &mut [f32], scale: f32) {
        let softmax = &softmax[..gradient.len()];
        let row_dot = sum(softmax.len(), |i| softmax[i] * gradient[i]);
        for (gradient, weight) in gradient.iter_mut().zip(softmax) {
            *gradient = weight * (*gradient - row_dot) * scale;
        }
    }
}

simd! {
    /// `dscore *= 1 - (score / cap)^2`: the derivative of the soft cap.
    fn scale_by_cap_slope(dscores: &mut [f32], scores: &[f32], cap: f32) {
        for (dscore, score) in dscores.iter_mut().zip(scores) {
            let ratio = score / cap;
            *dscore *= 1.0 - ratio * ratio;
        }
    }
}
