//! `out = softmax(mask(cap(scale q k^T))) v`, with an online softmax: a running maximum and sum per query.

use std::ops::Range;

use crate::cpu::kernels::dropout::SeededDropout;
use crate::cpu::kernels::float::{BUFFER, Float, write};
use crate::cpu::kernels::math::{LANES, exp, largest, map_and_sum, multiply_add, tanh};
use crate::cpu::kernels::matmul::{LeftRows, MicroKernel, Sink, panels};
use crate::cpu::kernels::operands::Operands;
use crate::cpu::kernels::simd::{Level, simd};
use crate::cpu::kernels::workers::{SharedSlice, Workers};
use ops::{Attention, Operation};

use super::{
    DocumentStarts, HeadOffsets, QUERIES, SCORE_ROW, Sizes, Tile, TileRows, dropout_of, for_each_head,
    pack_transposed, pack_untransposed, take,
};

pub(crate) fn run<T: Float>(op: &Attention, operands: &mut Operands, scratch: &mut [f32], workers: &Workers) {
    with_micro_kernel!(workers, run_with::<T>(op, operands, scratch, workers));
}

fn run_with<M: MicroKernel, T: Float>(
    op: &Attention,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let sizes = Sizes::new(op.name(), op.attending, operands.input_type(0));
    let qkv = operands.input::<T>(0);
    let starts = DocumentStarts::new(op.attending, 1, operands);
    let dropout = dropout_of(op.attending, op.attending.places(1)[1], operands);
    let (out, lse) = (SharedSlice::new(operands.output::<T>(0)), SharedSlice::new(operands.output(1)));
    let scratch_len = Attention::workspace_elements(T::DTYPE, sizes.sequence, sizes.head);
    for_each_head(sizes, scratch, scratch_len, workers, |offsets, mut scratch| {
        let head = ForwardHead {
            sizes,
            offsets,
            level: workers.level(),
            qkv,
            starts: starts.for_head(offsets, sizes),
            dropout,
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
    offsets: HeadOffsets,
    level: Level,
    qkv: &'a [T],
    starts: DocumentStarts<'a>,
    dropout: Option<SeededDropout<'a>>,
    /// k^T in panels.
    keys: &'a mut [f32],
    /// v in panels.
    values: &'a mut [f32],
    scores: &'a mut [f32],
    /// Weighted sums of values per query, in rows of `padded_head` elements.
    sums: &'a mut [f32],
    largest: [f32; QUERIES],
    total: [f32; QUERIES],
    /// A tile of queries in f32, if they are not stored in f32.
    queries: &'a mut [f32],
}

impl<T: Float> ForwardHead<'_, T> {
    fn run<M: MicroKernel>(mut self, out: &SharedSlice<T>, lse: &SharedSlice<f32>) {
        let (sizes, stride, level) = (self.sizes, self.sizes.qkv_stride(), self.level);
        let [queries, keys, values] = self.offsets.qkv.map(|start| &self.qkv[start..]);
        pack_transposed::<M, T>(level, keys, stride, sizes, self.keys);
        pack_untransposed::<M, T>(level, values, stride, sizes, self.values);
        let wide = std::mem::take(&mut self.queries);
        for query in (0..sizes.sequence).step_by(QUERIES) {
            self.largest.fill(f32::NEG_INFINITY);
            self.total.fill(0.0);
            let count = QUERIES.min(sizes.sequence - query);
            let queries = TileRows::new(level, &queries[query * stride..], stride, count, sizes.head, wide);
            for tile in Tile::for_queries(query, sizes, self.starts) {
                for rows in tile.query_groups(M::ROWS) {
                    self.compute_scores::<M>(tile, rows.clone(), queries);
                    self.apply_softmax(tile, rows.clone());
                    self.add_values::<M>(tile, rows);
                }
            }
            self.store_output(query, out, lse);
        }
    }

    /// `scores = q k^T` for a group of queries and whole panels of keys, including masked scores.
    fn compute_scores<M: MicroKernel>(&mut self, tile: Tile, rows: Range<usize>, queries: TileRows) {
        let sizes = self.sizes;
        let queries = queries.left(rows.start);
        let keys = self.keys[tile.key * sizes.head..].as_ptr();
        let scores = self.scores[rows.start * SCORE_ROW..].as_mut_ptr();
        let sink = Sink::plain(scores, SCORE_ROW, false);
        let columns = tile.keys_until(rows.end).next_multiple_of(M::COLUMNS);
        // SAFETY: the packed keys and the rows of scores hold whole panels.
        #[allow(unsafe_code)]
        unsafe {
            panels::<M>(rows.len(), columns, sizes.head, queries, keys, sizes.head * M::COLUMNS, sink);
        }
    }

    /// Replaces scores by unnormalized weights, and rescales the sums to the new maximum. Dropped weights count in the
    /// total weight.
    fn apply_softmax(&mut self, tile: Tile, rows: Range<usize>) {
        let mut random = [0; SCORE_ROW];
        let (scale, cap, width) = (self.sizes.scale(), self.sizes.attending.cap, self.sizes.padded_head());
        let until = tile.keys_until(rows.end).next_multiple_of(LANES);
        for row in rows {
            let scores = &mut self.scores[row * SCORE_ROW..row * SCORE_ROW + until];
            let visible = tile.hidden_before(row)..tile.keys_until(row + 1);
            if visible.is_empty() {
                scores.fill(0.0);
                continue;
            }
            let (largest, total) = (self.largest[row], self.total[row]);
            let (next, weight) = match cap {
                None => exp_scores(self.level, scores, visible, scale, largest),
                Some(cap) => {
                    soft_cap(self.level, &mut scores[visible.clone()], scale, cap);
                    exp_scores(self.level, scores, visible, 1.0, largest)
                }
            };
            if let Some(dropout) = self.dropout {
                let (query, random) = (self.offsets.dropout_row + tile.query + row, &mut random[..until]);
                dropout.random_row(self.level, self.offsets.sample, query, tile.key, random);
                dropout.apply(self.level, scores, random);
            }
            let mut rescale = 0.0;
            if !tile.is_first {
                rescale = exp::<false>(largest - next);
                self.sums[row * width..(row + 1) * width].iter_mut().for_each(|sum| *sum *= rescale);
            }
            (self.largest[row], self.total[row]) = (next, total * rescale + weight);
        }
    }

    /// `sums += weights v`
    fn add_values<M: MicroKernel>(&mut self, tile: Tile, rows: Range<usize>) {
        let sizes = self.sizes;
        let weights = self.scores[rows.start * SCORE_ROW..].as_ptr();
        let values = self.values[tile.key * M::COLUMNS..].as_ptr();
        let width = sizes.padded_head();
        let sums = self.sums[rows.start * width..].as_mut_ptr();
        let sink = Sink::plain(sums, width, !tile.is_first);
        let columns = sizes.head.next_multiple_of(M::COLUMNS);
        let left = LeftRows { start: weights, row_stride: SCORE_ROW, inner_stride: 1 };
        let keys = tile.keys_until(rows.end);
        // SAFETY: the packed values and the rows of sums hold whole panels.
        #[allow(unsafe_code)]
        unsafe {
            panels::<M>(rows.len(), columns, keys, left, values, sizes.sequence * M::COLUMNS, sink);
        }
    }

    fn store_output(&self, query: usize, out: &SharedSlice<T>, lse: &SharedSlice<f32>) {
        let (sizes, width) = (self.sizes, self.sizes.padded_head());
        let mut buffer = [0.0; BUFFER];
        for row in 0..QUERIES.min(sizes.sequence - query) {
            let position = query + row;
            let start = self.offsets.out + position * sizes.channels;
            // SAFETY: heads and positions do not overlap.
            #[allow(unsafe_code)]
            let (out, lse) = unsafe {
                let lse = lse.range_mut(self.offsets.lse + position..self.offsets.lse + position + 1);
                (out.range_mut(start..start + sizes.head), &mut lse[0])
            };
            let reciprocal = 1.0 / self.total[row];
            write(self.level, out, &mut buffer, |run, out| {
                for (out, sum) in out.iter_mut().zip(&self.sums[row * width + run.start..]) {
                    *out = sum * reciprocal;
                }
            });
            *lse = self.largest[row] + self.total[row].ln();
        }
    }
}

simd! {
    /// Replaces visible scores by `e^(scale score - m)` and the others by zeros; returns m, the running maximum, and
    /// the sum. Computes whole vectors.
    pub(super) fn exp_scores(
        scores: &mut [f32], visible: Range<usize>, scale: f32, largest_before: f32,
    ) -> (f32, f32) {
        let (scores, masked) = scores.split_at_mut(visible.end.next_multiple_of(LANES));
        masked.fill(0.0);
        scores[..visible.start].fill(f32::NEG_INFINITY);
        scores[visible.end..].fill(f32::NEG_INFINITY);
        let largest = largest(scores) * scale;
        let largest = if largest > largest_before { largest } else { largest_before };
        // Each masked score adds only e^-87, because `exp` clamps its argument.
        let sum = map_and_sum(scores, |score| exp::<FUSED>(multiply_add::<FUSED>(score, scale, -largest)));
        scores[..visible.start].fill(0.0);
        scores[visible.end..].fill(0.0);
        (largest, sum)
    }
}

simd! {
    /// `cap tanh(scale score / cap)`
    pub(super) fn soft_cap(scores: &mut [f32], scale: f32, cap: f32) {
        for score in scores {
            *score = cap * tanh::<FUSED>(*score * (scale / cap));
        }
    }
}
