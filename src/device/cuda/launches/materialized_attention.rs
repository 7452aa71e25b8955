//! Self-attention that stores its scores: products of all heads at a time, and the softmax between them.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{
    Attending, DType, Heads, MaterializedAttention, MaterializedAttentionBackward, Operation, TensorType,
};

use super::attention::seen;
use super::dropout::drop_elements;
use super::sizes::{BLOCK, blocks, by_dtype, count, optional, size, size_argument};

/// Rows and columns of a result that one block computes.
const TILE: usize = 64;
/// Queries whose softmax one block computes: a warp each.
const SOFTMAX_ROWS: usize = BLOCK as usize / 32;

/// Scores and probabilities are computed from what is stored of the step before.
pub(super) fn forward(
    op: &MaterializedAttention,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let sizes = Sizes::new(op.name(), &op.attending, &inputs[0].ty)?;
    let [queries, keys, values] = sizes.parts(&inputs[0]);
    let [out, probabilities, scores] =
        [sizes.rows(&outputs[0]), sizes.square(&outputs[1]), sizes.square(&outputs[2])];
    let capped = Product { factor: sizes.scale(), cap: op.attending.cap, ..sizes.of_queries() };
    sizes.multiply(&capped, scores, queries, keys.transposed(), launcher)?;
    let [starts, seeds] = op.attending.places(1).map(|place| Some(&inputs[place?]));
    let starts = optional(starts.map(|starts| starts.address));
    let heads = size_argument(sizes.heads.queries)?;
    launcher.kernel(
        by_dtype(sizes.dtype, ["attention_softmax_f32", "attention_softmax_bf16", "attention_softmax_f16"])?,
        [blocks(sizes.queries(), SOFTMAX_ROWS)?, 1, 1],
        BLOCK,
        0,
        &[probabilities.pointer(), scores.pointer(), count(sizes.queries()), sizes.seen()?, starts, heads],
    )?;
    let left = match op.attending.dropped.zip(seeds) {
        Some((dropped, seeds)) => {
            drop_elements(dropped, [&outputs[1], seeds, &outputs[3]], None, launcher)?;
            sizes.square(&outputs[3])
        }
        None => probabilities,
    };
    sizes.multiply(&sizes.of_queries(), out, left, values, launcher)
}

pub(super) fn backward(
    op: &MaterializedAttentionBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let sizes = Sizes::new(op.name(), &op.attending, &inputs[1].ty)?;
    let (dout, probabilities) = (sizes.rows(&inputs[0]), sizes.square(&inputs[2]));
    let [queries, keys, values] = sizes.parts(&inputs[1]);
    let [dqueries, dkeys, dvalues] = sizes.parts(&outputs[0]);
    let (dprobabilities, dscores) = (sizes.square(&outputs[1]), sizes.square(&outputs[2]));
    let (of_queries, of_keys) = (sizes.of_queries(), sizes.of_keys());
    let (scores, others) = inputs[3..].split_at(usize::from(op.attending.cap.is_some()));
    if let (Some(dropped), [left, seeds]) = (op.attending.dropped, others) {
        sizes.multiply(&of_keys, dvalues, sizes.square(left).transposed(), dout, launcher)?;
        // The gradients of what is left, before they are those of scores.
        sizes.multiply(&of_queries, dscores, dout, values.transposed(), launcher)?;
        drop_elements(dropped, [&outputs[2], seeds, &outputs[1]], None, launcher)?;
    } else {
        sizes.multiply(&of_keys, dvalues, probabilities.transposed(), dout, launcher)?;
        sizes.multiply(&of_queries, dprobabilities, dout, values.transposed(), launcher)?;
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
            sizes.seen()?,
            Argument::F32(sizes.scale()),
            Argument::F32(op.attending.cap.unwrap_or_default()),
        ],
    )?;
    sizes.multiply(&of_queries, dqueries, dscores, keys, launcher)?;
    sizes.multiply(&of_keys, dkeys, dscores.transposed(), queries, launcher)
}

/// A matrix of each head: `Matrices` of `materialized_attention.cu`, and where the first one begins.
#[derive(Clone, Copy, Debug)]
struct Matrices {
    address: u64,
    rows: usize,
    columns: usize,
    /// Elements from one batch element, matrix, row and column to the next.
    strides: [usize; 4],
    /// Heads in a row that share one.
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

/// What is done with the products of two matrices.
#[derive(Clone, Copy, Debug)]
struct Product {
    /// Heads of the result.
    heads: usize,
    /// Products of so many heads in a row are added up.
    summed: usize,
    factor: f32,
    cap: Option<f32>,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    dtype: DType,
    attending: Attending,
    heads: Heads,
}

impl Sizes {
    fn new(operation: &'static str, attending: &Attending, qkv: &TensorType) -> Result<Sizes, DeviceError> {
        let heads = attending.heads(operation, qkv)?;
        Ok(Sizes { dtype: qkv.dtype, attending: *attending, heads })
    }

    fn scale(&self) -> f32 {
        self.attending.scale(self.heads.head)
    }

    /// Heads of queries that share keys and values.
    fn shared(&self) -> usize {
        self.heads.queries / self.heads.keys
    }

    /// Of all heads.
    fn queries(&self) -> usize {
        self.heads.batch * self.heads.queries * self.heads.sequence
    }

    /// A result of each head of queries.
    fn of_queries(&self) -> Product {
        Product { heads: self.heads.queries, summed: 1, factor: 1.0, cap: None }
    }

    /// A result of each head of keys: of the heads that share it.
    fn of_keys(&self) -> Product {
        Product { heads: self.heads.keys, summed: self.shared(), factor: 1.0, cap: None }
    }

    /// `Seen` of the kernels.
    fn seen(&self) -> Result<Argument, DeviceError> {
        let sequence = self.heads.sequence;
        let [ahead, window] = seen(&self.attending, sequence);
        let [sequence, ahead, window] = [size(sequence)?, size(ahead)?, size(window)?].map(u64::from);
        Ok(Argument::Words(vec![sequence | ahead << 32, window]))
    }

    /// Rows of so many channels in all, a head's from an address on.
    fn matrices(&self, address: u64, channels: usize, shared: usize) -> Matrices {
        let Heads { sequence, head, .. } = self.heads;
        let strides = [sequence * channels, head, channels, 1];
        Matrices { address, rows: sequence, columns: head, strides, shared }
    }

    /// An out [B,T,HD], or its gradient.
    fn rows(&self, out: &Operand) -> Matrices {
        self.matrices(out.address, self.heads.channels(), 1)
    }

    /// Queries, keys and values of a qkv [B,T,(H+2G)D], or their gradients.
    fn parts(&self, qkv: &Operand) -> [Matrices; 3] {
        let Heads { queries, keys, head, .. } = self.heads;
        let part = |heads: usize, shared: usize| {
            let address = qkv.address + (heads * head) as u64 * self.dtype.bytes();
            self.matrices(address, (queries + 2 * keys) * head, shared)
        };
        [part(0, 1), part(queries, self.shared()), part(queries + keys, self.shared())]
    }

    /// Scores [B,H,T,T], what is made of them, or their gradients.
    fn square(&self, scores: &Operand) -> Matrices {
        let Heads { sequence, queries, .. } = self.heads;
        let square = sequence * sequence;
        let strides = [queries * square, square, sequence, 1];
        Matrices { address: scores.address, rows: sequence, columns: sequence, strides, shared: 1 }
    }

    /// `out = cap(factor left right)` for each head of the result.
    fn multiply(
        &self,
        product: &Product,
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
            size(product.heads)?,
            size(product.summed)?,
            product.factor.to_bits(),
            product.cap.unwrap_or_default().to_bits(),
            0,
        ];
        let numbers = numbers.chunks_exact(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32);
        let words = strides.chain(numbers).collect();
        launcher.kernel(
            by_dtype(self.dtype, names)?,
            [size(self.heads.batch * product.heads * tiles)?, 1, 1],
            BLOCK,
            0,
            &[out.pointer(), left.pointer(), right.pointer(), Argument::Words(words)],
        )
    }
}
