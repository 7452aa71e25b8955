//! The gradient of attention: recomputes the weights from the scores and the stored log-sum-exp (lse).

use std::ops::Range;

use crate::cpu::kernels::dropout::SeededDropout;
use crate::cpu::kernels::elementwise::dot;
use crate::cpu::kernels::float::{BUFFER, Float, read};
use crate::cpu::kernels::math::{LANES, exp, multiply_add, tanh};
use crate::cpu::kernels::matmul::{LeftRows, MicroKernel, Sink, panels};
use crate::cpu::kernels::operands::Operands;
use crate::cpu::kernels::simd::{Level, simd};
use crate::cpu::kernels::workers::{SharedSlice, Workers};
use ops::{AttentionBackward, Operation};

use super::gradient_sums::GradientSums;
use super::{
    DocumentStarts, GroupHead, KEYS, QUERIES, SCORE_ROW, Sizes, Tile, TileRows, dropout_of, for_each_group,
    pack_transposed, pack_untransposed, take,
};

pub(crate) fn run<T: Float>(
    op: &AttentionBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    with_micro_kernel!(workers, run_with::<T>(op, operands, scratch, workers));
}

fn run_with<M: MicroKernel, T: Float>(
    op: &AttentionBackward,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let sizes = Sizes::new(op.name(), op.attending, operands.input_type(1));
    let [dout, qkv, out] = [0, 1, 2].map(|index| operands.input::<T>(index));
    let lse = operands.input::<f32>(3);
    let starts = DocumentStarts::new(op.attending, 4, operands);
    let dropout = dropout_of(op.attending, op.attending.places(4)[1], operands);
    let dqkv = SharedSlice::new(operands.output::<T>(0));
    let scratch_len = AttentionBackward::workspace_elements(T::DTYPE, sizes.sequence, sizes.head);
    for_each_group(sizes, scratch, scratch_len, workers, |heads, mut scratch| {
        let transposed = sizes.padded_sequence() * sizes.head;
        let untransposed = sizes.sequence * sizes.padded_head();
        let [keys_transposed, values_transposed] = [(); 2].map(|()| take(&mut scratch, transposed));
        let [keys, queries, douts] = [(); 3].map(|()| take(&mut scratch, untransposed));
        let [weights, dscores] = [(); 2].map(|()| take(&mut scratch, QUERIES * SCORE_ROW));
        for group_head in heads {
            let offsets = group_head.offsets;
            let head = BackwardHead {
                sizes,
                group_head,
                level: workers.level(),
                dout: &dout[offsets.out..],
                qkv: offsets.qkv.map(|start| &qkv[start..]),
                out: &out[offsets.out..],
                lse: &lse[offsets.lse..offsets.lse + sizes.sequence],
                starts: starts.for_head(offsets, sizes),
                dropout,
                keys_transposed: &mut *keys_transposed,
                values_transposed: &mut *values_transposed,
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
    group_head: GroupHead,
    level: Level,
    dout: &'a [T],
    /// Queries, keys and values.
    qkv: [&'a [T]; 3],
    out: &'a [T],
    lse: &'a [f32],
    starts: DocumentStarts<'a>,
    dropout: Option<SeededDropout<'a>>,
    /// k^T and v^T in panels.
    keys_transposed: &'a mut [f32],
    values_transposed: &'a mut [f32],
    /// k, q and dout in panels.
    keys: &'a mut [f32],
    queries: &'a mut [f32],
    douts: &'a mut [f32],
    /// A tile of the softmax, and of the gradient of the scores, in rows of `SCORE_ROW` elements.
    weights: &'a mut [f32],
    dscores: &'a mut [f32],
}

impl<T: Float> BackwardHead<'_, T> {
    /// `wide` holds tiles of q, dout and dq, and dk and dv, in f32; it is empty if they are stored in f32.
    fn run<M: MicroKernel>(mut self, dqkv: &SharedSlice<T>, mut wide: &mut [f32]) {
        self.pack::<M>();
        let (sizes, level) = (self.sizes, self.level);
        let tile_len = if wide.is_empty() { 0 } else { QUERIES * sizes.head };
        let [wide_queries, wide_douts] = [(); 2].map(|()| take(&mut wide, tile_len));
        let sums = GradientSums::new(dqkv, wide, self.group_head.offsets, sizes);
        if self.group_head.is_first {
            sums.clear();
        }
        let mut buffer = [0.0; BUFFER];
        for query in (0..sizes.sequence).step_by(QUERIES) {
            let count = QUERIES.min(sizes.sequence - query);
            let (queries, dout) =
                (&self.qkv[0][query * sizes.qkv_stride()..], &self.dout[query * sizes.channels..]);
            let queries = TileRows::new(level, queries, sizes.qkv_stride(), count, sizes.head, wide_queries);
            let douts = TileRows::new(level, dout, sizes.channels, count, sizes.head, wide_douts);
            let mut row_dots = [0.0; QUERIES];
            for (row, row_dot) in row_dots[..count].iter_mut().enumerate() {
                let start = (query + row) * sizes.channels;
                let dout = douts.row(row);
                read(level, &self.out[start..start + sizes.head], &mut buffer, |run, out| {
                    *row_dot += dot(level, &dout[run], out);
                });
            }
            for tile in Tile::for_queries(query, sizes, self.starts) {
                for rows in tile.query_groups(M::ROWS) {
                    self.compute_scores::<M>(tile, rows.clone(), [queries, douts]);
                    self.softmax_gradients::<M>(tile, rows.clone(), &row_dots);
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
        for part in (1..3).filter(|_| self.group_head.is_last) {
            sums.store(level, part, 0..sizes.sequence, dqkv);
        }
    }

    fn pack<M: MicroKernel>(&mut self) {
        let (sizes, stride, level) = (self.sizes, self.sizes.qkv_stride(), self.level);
        let [queries, keys, values] = self.qkv;
        if self.group_head.is_first {
            pack_transposed::<M, T>(level, keys, stride, sizes, self.keys_transposed);
            pack_transposed::<M, T>(level, values, stride, sizes, self.values_transposed);
            pack_untransposed::<M, T>(level, keys, stride, sizes, self.keys);
        }
        pack_untransposed::<M, T>(level, queries, stride, sizes, self.queries);
        pack_untransposed::<M, T>(level, self.dout, sizes.channels, sizes, self.douts);
    }

    /// Stores `q k^T` in `weights` (the scores) and `dout v^T` in `dscores` (the gradient of the weights).
    fn compute_scores<M: MicroKernel>(&mut self, tile: Tile, rows: Range<usize>, left: [TileRows; 2]) {
        let sizes = self.sizes;
        let columns = tile.keys_until(rows.end).next_multiple_of(M::COLUMNS);
        let right = [
            &self.keys_transposed[tile.key * sizes.head..],
            &self.values_transposed[tile.key * sizes.head..],
        ];
        let results =
            [&mut self.weights[rows.start * SCORE_ROW..], &mut self.dscores[rows.start * SCORE_ROW..]];
        for ((left, right), result) in left.into_iter().zip(right).zip(results) {
            let sink = Sink::plain(result.as_mut_ptr(), SCORE_ROW, false);
            let left = left.left(rows.start);
            // SAFETY: the packed operands and the rows of scores hold whole panels.
            #[allow(unsafe_code)]
            unsafe {
                let panel = sizes.head * M::COLUMNS;
                panels::<M>(rows.len(), columns, sizes.head, left, right.as_ptr(), panel, sink);
            }
        }
    }

    /// `weights = softmax(scores)`, `dscores = weights * (dweights - row_dot) * scale`, zero where masked. Dropout is
    /// then applied to the weights.
    fn softmax_gradients<M: MicroKernel>(
        &mut self,
        tile: Tile,
        rows: Range<usize>,
        row_dots: &[f32; QUERIES],
    ) {
        // `add_key_gradients` reads groups of `M::ROWS` keys, which may extend past the keys visible to these queries.
        let until = SCORE_ROW.min(tile.keys_until(rows.end) + M::ROWS);
        let (offsets, mut random) = (self.group_head.offsets, [0; SCORE_ROW]);
        let random = &mut random[..until];
        for row in rows {
            let visible = tile.hidden_before(row)..tile.keys_until(row + 1);
            let range = row * SCORE_ROW..row * SCORE_ROW + until;
            let (weights, dscores) = (&mut self.weights[range.clone()], &mut self.dscores[range]);
            let (lse, row_dot) = (self.lse[tile.query + row], row_dots[row]);
            let (scale, level) = (self.sizes.scale(), self.level);
            if let Some(dropout) = self.dropout {
                let query = offsets.dropout_row + tile.query + row;
                dropout.random_row(level, offsets.sample, query, tile.key, random);
                dropout.apply(level, dscores, random);
            }
            match self.sizes.attending.cap {
                None => softmax_backward(level, weights, dscores, visible, scale, (lse, row_dot)),
                Some(cap) => {
                    capped_softmax_backward(level, weights, dscores, visible, (scale, cap), (lse, row_dot));
                }
            }
            if let Some(dropout) = self.dropout {
                dropout.apply(level, weights, random);
            }
        }
    }

    /// `dq += dscores k`
    fn query_gradients<M: MicroKernel>(&mut self, tile: Tile, rows: Range<usize>, sums: &GradientSums) {
        let sizes = self.sizes;
        let sink = Sink::plain(sums.row_ptr(0, tile.query + rows.start), sums.stride, !tile.is_first);
        let start = self.dscores[rows.start * SCORE_ROW..].as_ptr();
        let left = LeftRows { start, row_stride: SCORE_ROW, inner_stride: 1 };
        let right = self.keys[tile.key * M::COLUMNS..].as_ptr();
        let keys = tile.keys_until(rows.end);
        // SAFETY: no other thread writes this head's gradients.
        #[allow(unsafe_code)]
        unsafe {
            let panel = sizes.sequence * M::COLUMNS;
            panels::<M>(rows.len(), sizes.head, keys, left, right, panel, sink);
        }
    }
}

const _: () =
    assert!(KEYS + 12 <= SCORE_ROW, "a row of scores has room for the last group of keys of a tile");

simd! {
    /// In: scores and the gradient of their softmax. Out: the softmax and the gradient of the scores, zero where
    /// masked. Computes whole vectors.
    fn softmax_backward(
        scores: &mut [f32], dscores: &mut [f32], visible: Range<usize>, scale: f32, row: (f32, f32),
    ) {
        let (lse, row_dot) = row;
        let whole = visible.end.next_multiple_of(LANES).min(scores.len());
        for (score, dscore) in scores[..whole].iter_mut().zip(&mut dscores[..whole]) {
            let weight = exp::<FUSED>(multiply_add::<FUSED>(*score, scale, -lse));
            *score = weight;
            *dscore = weight * (*dscore - row_dot) * scale;
        }
        for values in [scores, dscores] {
            values[..visible.start.min(visible.end)].fill(0.0);
            values[visible.end..].fill(0.0);
        }
    }
}

simd! {
    /// The same with soft-capped scores.
    fn capped_softmax_backward(
        scores: &mut [f32], dscores: &mut [f32], visible: Range<usize>, capping: (f32, f32), row: (f32, f32),
    ) {
        let ((scale, cap), (lse, row_dot)) = (capping, row);
        let whole = visible.end.next_multiple_of(LANES).min(scores.len());
        for (score, dscore) in scores[..whole].iter_mut().zip(&mut dscores[..whole]) {
            let ratio = tanh::<FUSED>(*score * (scale / cap));
            let weight = exp::<FUSED>(multiply_add::<FUSED>(ratio, cap, -lse));
            *score = weight;
            *dscore = weight * (*dscore - row_dot) * (1.0 - ratio * ratio) * scale;
        }
        for values in [scores, dscores] {
            values[..visible.start.min(visible.end)].fill(0.0);
            values[visible.end..].fill(0.0);
        }
    }
}
