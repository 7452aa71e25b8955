//! Causal self-attention that stores its scores: products of all heads at a time, and the softmax between them.

use crate::device::DeviceError;
use crate::device::cuda::launcher::{Argument, Launcher, Operand};
use crate::ops::{
    Attending, DType, Heads, MaterializedAttention, MaterializedAttentionBackward, Operation, TensorType,
};

use super::attention::known;
use super::sizes::{BLOCK, blocks, by_dtype, count, size, size_argument};

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
    sizes.multiply(scores, queries, keys.transposed(), sizes.scale(), launcher)?;
    launcher.kernel(
        by_dtype(sizes.dtype, ["attention_softmax_f32", "attention_softmax_bf16", "attention_softmax_f16"])?,
        [blocks(sizes.queries(), SOFTMAX_ROWS)?, 1, 1],
        BLOCK,
        0,
        &[probabilities.pointer(), scores.pointer(), count(sizes.queries()), size_argument(sizes.sequence)?],
    )?;
    sizes.multiply(out, probabilities, values, 1.0, launcher)
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
    sizes.multiply(dvalues, probabilities.transposed(), dout, 1.0, launcher)?;
    sizes.multiply(dprobabilities, dout, values.transposed(), 1.0, launcher)?;
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
            count(sizes.queries()),
            size_argument(sizes.sequence)?,
            Argument::F32(sizes.scale()),
        ],
    )?;
    sizes.multiply(dqueries, dscores, keys, 1.0, launcher)?;
    sizes.multiply(dkeys, dscores.transposed(), queries, 1.0, launcher)
}

/// A matrix of each head: `Matrices` of `materialized_attention.cu`, and where the first one begins.
#[derive(Clone, Copy, Debug)]
struct Matrices {
    address: u64,
    rows: usize,
    columns: usize,
    /// Elements from one batch element, head, row and column to the next.
    strides: [usize; 4],
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

#[derive(Clone, Copy, Debug)]
struct Sizes {
    dtype: DType,
    batch: usize,
    heads: usize,
    sequence: usize,
    head: usize,
}

impl Sizes {
    /// # Errors
    /// What no kernel does.
    fn new(operation: &'static str, attending: &Attending, qkv: &TensorType) -> Result<Sizes, DeviceError> {
        let Heads { batch, sequence, queries: heads, head, .. } = known(operation, attending, qkv)?;
        Ok(Sizes { dtype: qkv.dtype, batch, heads, sequence, head })
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head as f32).sqrt()
    }

    /// Of all heads.
    fn queries(&self) -> usize {
        self.batch * self.heads * self.sequence
    }

    /// Rows of so many channels in all, a head's from an address on.
    fn matrices(&self, address: u64, channels: usize) -> Matrices {
        let strides = [self.sequence * channels, self.head, channels, 1];
        Matrices { address, rows: self.sequence, columns: self.head, strides }
    }

    /// An out [B,T,C], or its gradient.
    fn rows(&self, out: &Operand) -> Matrices {
        self.matrices(out.address, self.heads * self.head)
    }

    /// Queries, keys and values of a qkv [B,T,3C], or their gradients.
    fn parts(&self, qkv: &Operand) -> [Matrices; 3] {
        let channels = self.heads * self.head;
        let part_bytes = channels as u64 * self.dtype.bytes();
        [0, 1, 2].map(|part| self.matrices(qkv.address + part * part_bytes, 3 * channels))
    }

    /// Scores [B,H,T,T], what is made of them, or their gradients.
    fn square(&self, scores: &Operand) -> Matrices {
        let Sizes { heads, sequence, .. } = *self;
        let square = sequence * sequence;
        let strides = [heads * square, square, sequence, 1];
        Matrices { address: scores.address, rows: sequence, columns: sequence, strides }
    }

    /// `out = factor left right` for each head.
    fn multiply(
        &self,
        out: Matrices,
        left: Matrices,
        right: Matrices,
        factor: f32,
        launcher: &mut Launcher,
    ) -> Result<(), DeviceError> {
        let tiles = out.rows.div_ceil(TILE) * out.columns.div_ceil(TILE);
        let names = ["attention_product_f32", "attention_product_bf16", "attention_product_f16"];
        let strides = [out, left, right].into_iter().flat_map(|matrices| matrices.strides);
        let sizes = [size(out.rows)?, size(left.columns)?, size(out.columns)?, size(self.heads)?];
        let numbers = [sizes[0], sizes[1], sizes[2], sizes[3], factor.to_bits(), 0];
        let numbers = numbers.chunks_exact(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32);
        let product = strides.map(|stride| stride as u64).chain(numbers).collect();
        launcher.kernel(
            by_dtype(self.dtype, names)?,
            [size(self.batch * self.heads * tiles)?, 1, 1],
            BLOCK,
            0,
            &[out.pointer(), left.pointer(), right.pointer(), Argument::Words(product)],
        )
    }
}
