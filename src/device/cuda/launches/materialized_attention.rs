//! Self-attention that materialises its scores: batched matmuls over all heads, and a softmax between them.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{
    AttentionConfig, DType, Heads, MaterializedAttention, MaterializedAttentionBackward, Operation,
    TensorType,
};

use super::attention::attention_range;
use super::dropout::drop_elements;
use super::sizes::{BLOCK, blocks, by_dtype, count, optional, size, size_argument};

/// Rows and columns of a block's result tile.
const TILE: usize = 64;
/// Softmax rows (queries) per block: one per warp.
const SOFTMAX_ROWS: usize = BLOCK as usize / 32;

/// Each step reads the stored (rounded) result of the previous one.
pub(super) fn forward(
    op: &MaterializedAttention,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let sizes = Sizes::new(op.name(), &op.attending, &inputs[0].ty)?;
    let [queries, keys, values] = sizes.qkv_matrices(&inputs[0]);
    let [out, probabilities, scores] = [
        sizes.out_matrices(&outputs[0]),
        sizes.score_matrices(&outputs[1]),
        sizes.score_matrices(&outputs[2]),
    ];
    let capped = BatchedMatmul { factor: sizes.scale(), cap: op.attending.cap, ..sizes.per_query_head() };
    sizes.multiply(&capped, scores, queries, keys.transposed(), launcher)?;
    let [starts, seeds] = op.attending.places(1).map(|place| Some(&inputs[place?]));
    let starts = optional(starts.map(|starts| starts.address));
    let heads = size_argument(sizes.heads.queries)?;
    launcher.kernel(
        by_dtype(sizes.dtype, ["attention_softmax_f32", "attention_softmax_bf16", "attention_softmax_f16"])?,
        [blocks(sizes.queries(), SOFTMAX_ROWS)?, 1, 1],
        BLOCK,
        0,
        &[
            probabilities.pointer(),
            scores.pointer(),
            count(sizes.queries()),
            sizes.range_argument()?,
            starts,
            heads,
        ],
    )?;
    let left = match op.attending.dropped.zip(seeds) {
        Some((dropped, seeds)) => {
            drop_elements(dropped, [&outputs[1], seeds, &outputs[3]], None, launcher)?;
            sizes.score_matrices(&outputs[3])
        }
        None => probabilities,
    };
    sizes.multiply(&sizes.per_query_head(), out, left, values, launcher)
}

pub(super) fn backward(
    op: &MaterializedAttentionBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let sizes = Sizes::new(op.name(), &op.attending, &inputs[1].ty)?;
    let (dout, probabilities) = (sizes.out_matrices(&inputs[0]), sizes.score_matrices(&inputs[2]));
    let [queries, keys, values] = sizes.qkv_matrices(&inputs[1]);
    let [dqueries, dkeys, dvalues] = sizes.qkv_matrices(&outputs[0]);
    let (dprobabilities, dscores) = (sizes.score_matrices(&outputs[1]), sizes.score_matrices(&outputs[2]));
    let (per_query_head, per_key_head) = (sizes.per_query_head(), sizes.per_key_head());
    let (scores, others) = inputs[3..].split_at(usize::from(op.attending.cap.is_some()));
    if let (Some(dropped), [dropped_probabilities, seeds]) = (op.attending.dropped, others) {
        sizes.multiply(
            &per_key_head,
            dvalues,
            sizes.score_matrices(dropped_probabilities).transposed(),
            dout,
            launcher,
        )?;
        // `dscores` temporarily holds the gradients of the probabilities after dropout.
        sizes.multiply(&per_query_head, dscores, dout, values.transposed(), launcher)?;
        drop_elements(dropped, [&outputs[2], seeds, &outputs[1]], None, launcher)?;
    } else {
        sizes.multiply(&per_key_head, dvalues, probabilities.transposed(), dout, launcher)?;
        sizes.multiply(&per_query_head, dprobabilities, dout, values.transposed(), launcher)?;
    }
    let names = [
        "attention_softmax_backward_f32",
        "attention_softmax_backward_bf16",
        "attention_softmax_backward_f16",
    ];
    launcher.kernel(
        by_dtype(sizes.dtype, names)?,
        [blocks(sizes.queries(), SOFTMAX_ROWS)?, 1, 1],
        BLOCK,
        0,
        &[
            dscores.pointer(),
            dprobabilities.pointer(),
            probabilities.pointer(),
            optional(scores.first().map(|scores| scores.address)),
            count(sizes.queries()),
            sizes.range_argument()?,
            Argument::F32(sizes.scale()),
            Argument::F32(op.attending.cap.unwrap_or_default()),
        ],
    )?;
    sizes.multiply(&per_query_head, dqueries, dscores, keys, launcher)?;
    sizes.multiply(&per_key_head, dkeys, dscores.transposed(), queries, launcher)
}

/// One matrix per head: `Matrices` of `materialized_attention.cu`, and the address of the first.
#[derive(Clone, Copy, Debug)]
struct Matrices {
    address: u64,
    rows: usize,
    columns: usize,
    /// Strides in elements: batch element, matrix, row, column.
    strides: [usize; 4],
    /// Number of consecutive heads that share a matrix.
    shared: usize,
}

impl Matrices {
    fn transposed(self) -> Matrices {
        let [batch, head, row, column] = self.strides;
        Matrices { rows: self.columns, columns: self.rows, strides: [batch, head, column, row], ..self }
    }

    fn pointer(&self) -> Argument {
        Argument::Pointer(self.address)
    }
}

/// A batched matmul over heads.
#[derive(Clone, Copy, Debug)]
struct BatchedMatmul {
    /// Heads of the result.
    heads: usize,
    /// Number of consecutive heads whose results are summed.
    summed: usize,
    factor: f32,
    cap: Option<f32>,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    dtype: DType,
    attending: AttentionConfig,
    heads: Heads,
}

impl Sizes {
    fn new(
        operation: &'static str,
        attending: &AttentionConfig,
        qkv: &TensorType,
    ) -> Result<Sizes, DeviceError> {
        let heads = attending.heads(operation, qkv)?;
        Ok(Sizes { dtype: qkv.dtype, attending: *attending, heads })
    }

    fn scale(&self) -> f32 {
        self.attending.scale(self.heads.head)
    }

    /// Query heads per key head.
    fn shared(&self) -> usize {
        self.heads.queries / self.heads.keys
    }

    /// Queries of all heads.
    fn queries(&self) -> usize {
        self.heads.batch * self.heads.queries * self.heads.sequence
    }

    /// One result per query head.
    fn per_query_head(&self) -> BatchedMatmul {
        BatchedMatmul { heads: self.heads.queries, summed: 1, factor: 1.0, cap: None }
    }

    /// One result per key head: the sum over the query heads that share it.
    fn per_key_head(&self) -> BatchedMatmul {
        BatchedMatmul { heads: self.heads.keys, summed: self.shared(), factor: 1.0, cap: None }
    }

    /// The kernels' struct `Seen`.
    fn range_argument(&self) -> Result<Argument, DeviceError> {
        let sequence = self.heads.sequence;
        let [ahead, window] = attention_range(&self.attending, sequence);
        let [sequence, ahead, window] = [size(sequence)?, size(ahead)?, size(window)?].map(u64::from);
        Ok(Argument::Words(vec![sequence | ahead << 32, window]))
    }

    /// Matrices within rows of `channels` elements; the first head begins at `address`.
    fn matrices(&self, address: u64, channels: usize, shared: usize) -> Matrices {
        let Heads { sequence, head, .. } = self.heads;
        let strides = [sequence * channels, head, channels, 1];
        Matrices { address, rows: sequence, columns: head, strides, shared }
    }

    /// The matrices of out [B,T,HD], or of its gradient.
    fn out_matrices(&self, out: &Operand) -> Matrices {
        self.matrices(out.address, self.heads.channels(), 1)
    }

    /// The query, key and value matrices of qkv [B,T,(H+2G)D], or of its gradient.
    fn qkv_matrices(&self, qkv: &Operand) -> [Matrices; 3] {
        let Heads { queries, keys, head, .. } = self.heads;
        let part = |heads: usize, shared: usize| {
            let address = qkv.address + (heads * head) as u64 * self.dtype.bytes();
            self.matrices(address, (queries + 2 * keys) * head, shared)
        };
        [part(0, 1), part(queries, self.shared()), part(queries + keys, self.shared())]
    }

    /// The matrices of scores [B,H,T,T], probabilities, or their gradients.
    fn score_matrices(&self, scores: &Operand) -> Matrices {
        let Heads { sequence, queries, .. } = self.heads;
        let square = sequence * sequence;
        let strides = [queries * square, square, sequence, 1];
        Matrices { address: scores.address, rows: sequence, columns: sequence, strides, shared: 1 }
    }

    /// `out = cap(factor left right)` for each head of the result.
    fn multiply(
        &self,
        matmul: &BatchedMatmul,
        out: Matrices,
        left: Matrices,
        right: Matrices,
        launcher: &mut Launcher,
    ) -> Result<(), DeviceError> {
        let tiles = out.rows.div_ceil(TILE) * out.columns.div_ceil(TILE);
        let names = ["attention_product_f32", "attention_product_bf16", "attention_product_f16"];
        let strides = [out, left, right].into_iter().flat_map(|Matrices { strides, shared, .. }| {
            strides.into_iter().chain([shared]).map(|stride| stride as u64)
        });
        let numbers = [
            size(out.rows)?,
            size(left.columns)?,
            size(out.columns)?,
            size(matmul.heads)?,
            size(matmul.summed)?,
            matmul.factor.to_bits(),
            matmul.cap.unwrap_or_default().to_bits(),
            0,
        ];
        let numbers = numbers.chunks_exact(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32);
        let words = strides.chain(numbers).collect();
        launcher.kernel(
            by_dtype(self.dtype, names)?,
            [size(self.heads.batch * matmul.heads * tiles)?, 1, 1],
            BLOCK,
            0,
            &[out.pointer(), left.pointer(), right.pointer(), Argument::Words(words)],
        )
    }
}
