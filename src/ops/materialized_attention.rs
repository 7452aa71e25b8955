//! Multi-head self-attention that stores the T x T scores and their softmax.
//!
//! Scores and probabilities have the dtype of the activations; softmax and sums are computed in f32. Nothing runs in
//! place, as in straightforward implementations: scores and probabilities are live at the same time, and in backward so
//! are the gradients of both.
//!
//! The CPU kernels continue with the unrounded scores and probabilities, the GPU kernels with the stored, rounded ones.

use super::{
    Attention, AttentionConfig, DType, DropoutMask, Heads, Op, OpKind, Operation, OutputRole, Sizes, Tape,
    TensorType, TypeError, WorkspaceLimits, expect_float, expect_inputs, expect_type,
};

/// `scores = cap(scale q k^T)`, `probabilities = softmax(mask(scores))`, `out = dropout(probabilities) v` for each
/// head.
///
/// Inputs: qkv num[B,T,(H+2G)D], the query, key and value heads side by side; with `documents` the document starts
/// i32[B,T] (backward needs no mask: masked probabilities are 0); with dropout the seeds i32[B,2]. Outputs: out
/// num[B,T,HD], probabilities num[B,H,T,T], scores num[B,H,T,T], which backward needs only with a cap; with dropout
/// also the probabilities after dropout num[B,H,T,T].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaterializedAttention {
    pub attending: AttentionConfig,
}

/// Gradient of [`MaterializedAttention`].
///
/// Inputs: dout num[B,T,HD], qkv num[B,T,(H+2G)D], probabilities num[B,H,T,T]; with a cap the scores num[B,H,T,T]; with
/// dropout the probabilities after dropout num[B,H,T,T] and the seeds i32[B,2]. Outputs: dqkv num[B,T,(H+2G)D],
/// dprobabilities num[B,H,T,T] and dscores num[B,H,T,T], the gradient of q k^T.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaterializedAttentionBackward {
    pub attending: AttentionConfig,
}

impl MaterializedAttention {
    /// Row stride of the scores in scratch memory, in elements: not a power of two, so that a column is spread over the
    /// cache sets.
    pub fn score_row(sequence: usize) -> usize {
        sequence.next_multiple_of(Attention::PANEL) + 16
    }

    /// Scratch f32 elements per thread: k^T and v of one head in panels, scores and output of a query tile; for other
    /// dtypes than f32 also the query tile.
    pub fn workspace_elements(dtype: DType, sequence: usize, head: usize) -> usize {
        Attention::elements_with_rows(dtype, sequence, head, Self::score_row(sequence))
    }
}

impl MaterializedAttentionBackward {
    /// Scratch f32 elements per thread: v^T, then k, q and dout of one head in panels, probabilities and dscores of a
    /// query tile; for other dtypes than f32 also that tile of dout and dq, and dk and dv of one head.
    pub fn workspace_elements(dtype: DType, sequence: usize, head: usize) -> usize {
        let widened = if dtype == DType::F32 { 0 } else { (2 * Attention::QUERY_TILE + 2 * sequence) * head };
        sequence.next_multiple_of(Attention::PANEL) * head
            + 3 * sequence * head.next_multiple_of(Attention::PANEL)
            + 2 * Attention::QUERY_TILE * MaterializedAttention::score_row(sequence)
            + widened
    }
}

/// The type of scores and probabilities, [B,H,T,T].
fn square(dtype: DType, heads: &Heads) -> TensorType {
    TensorType::new(dtype, &[heads.batch, heads.queries, heads.sequence, heads.sequence])
}

impl Operation for MaterializedAttention {
    fn kind(&self) -> Option<OpKind> {
        Some(OpKind::Attention)
    }

    fn name(&self) -> &'static str {
        "materialized-attention"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1 + self.attending.optional_inputs())?;
        let dtype = expect_float(self.name(), "qkv", &inputs[0])?;
        let heads = self.attending.heads(self.name(), &inputs[0])?;
        self.attending.expect_optional_inputs(self.name(), &heads, inputs, 1)?;
        let squares = vec![square(dtype, &heads); 2 + usize::from(self.attending.dropped.is_some())];
        Ok([vec![heads.out(dtype)], squares].concat())
    }

    fn drops(&self) -> Option<DropoutMask> {
        self.attending.dropped
    }

    fn flops(&self, _inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        self.attending.flops(2, &outputs[0])
    }

    fn workspace(&self, inputs: &[TensorType], outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let (sequence, head) = (inputs[0].shape.dims()[1], outputs[0].shape.last() / self.attending.heads);
        limits.scratch(Self::workspace_elements(inputs[0].dtype, sequence, head), 0)
    }

    /// The number of heads comes from the probabilities.
    fn resize(&mut self, sizes: &Sizes) {
        self.attending.resize(sizes.outputs[1].shape.dims()[1], &sizes.inputs[0], &sizes.outputs[0]);
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let mut inputs = vec![tape.output_gradient(0), tape.input(0), tape.output(1)];
        inputs.extend(self.attending.cap.map(|_| tape.output(2)));
        if let [_, Some(seeds)] = self.attending.places(1) {
            inputs.extend([tape.output(3), tape.input(seeds)]);
        }
        let squares = [1, 2].map(OutputRole::OutputGradient);
        let attending = self.attending;
        let op = Op::MaterializedAttentionBackward(MaterializedAttentionBackward { attending });
        tape.contribute(op, inputs, 0, 1, &squares);
    }
}

impl Operation for MaterializedAttentionBackward {
    fn name(&self) -> &'static str {
        "materialized-attention-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let (capped, dropped) = (self.attending.cap.is_some(), self.attending.dropped.is_some());
        let after_dropout = 3 + usize::from(capped);
        expect_inputs(self.name(), inputs, after_dropout + 2 * usize::from(dropped))?;
        let heads = self.attending.heads(self.name(), &inputs[1])?;
        let dtype = expect_float(self.name(), "qkv", &inputs[1])?;
        let square = square(dtype, &heads);
        expect_type(self.name(), "dout", &inputs[0], heads.out(dtype))?;
        expect_type(self.name(), "probabilities", &inputs[2], square)?;
        for scores in &inputs[3..after_dropout] {
            expect_type(self.name(), "scores", scores, square)?;
        }
        if dropped {
            expect_type(self.name(), "the probabilities after dropout", &inputs[after_dropout], square)?;
            expect_type(
                self.name(),
                "the seeds",
                &inputs[after_dropout + 1],
                DropoutMask::seeds(heads.batch),
            )?;
        }
        Ok(vec![inputs[1], square, square])
    }

    fn drops(&self) -> Option<DropoutMask> {
        self.attending.dropped
    }

    /// Two matmuls for each of the forward pass.
    fn flops(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> u64 {
        self.attending.flops(4, &inputs[0])
    }

    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let TensorType { dtype, shape } = inputs[0];
        let (sequence, head) = (shape.dims()[1], shape.last() / self.attending.heads);
        limits.scratch(Self::workspace_elements(dtype, sequence, head), 0)
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.attending.resize(sizes.inputs[2].shape.dims()[1], &sizes.inputs[1], &sizes.inputs[0]);
    }
}
