//! Multi-head self-attention as textbooks write it: the T x T scores and their softmax are stored whole.
//!
//! They are stored as the activations are, softmax and sums are computed in f32. Nothing is done in place, for textbook
//! code does not: the scores are there while their softmax is made, and in backward the gradients of both beside it.
//!
//! Whether what follows is computed from what is stored, or from what that was before it was rounded, is the kernel's affair:
//! the CPU's compute from the latter, a card's from the former.

use super::{
    Attending, Attention, DType, Dropped, Emitted, Heads, Op, OpKind, Operation, Sizes, Tape, TensorType,
    TypeError, WorkspaceLimits, expect_float, expect_inputs, expect_type,
};

/// `scores = cap(scale q k^T)`, `probabilities = softmax(mask(scores))`, `out = dropped(probabilities) v` for each head.
///
/// Inputs: qkv num[B,T,(H+2G)D], heads of queries, of keys and of values side by side, then the starts i32[B,T] of documents
/// that are told apart (backward sees in probabilities what was not seen), and the seeds i32[B,2] of what is dropped.
/// Outputs: out num[B,T,HD], probabilities num[B,H,T,T], scores num[B,H,T,T], which backward needs only of a cap, and, where
/// some are dropped, the probabilities that are left num[B,H,T,T].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaterializedAttention {
    pub attending: Attending,
}

/// Inputs: dout num[B,T,HD], qkv num[B,T,(H+2G)D], probabilities num[B,H,T,T], with a cap scores num[B,H,T,T] and, where some
/// are dropped, the probabilities that are left num[B,H,T,T] and the seeds i32[B,2].
/// Outputs: dqkv num[B,T,(H+2G)D], dprobabilities num[B,H,T,T], and that of q k^T, dscores num[B,H,T,T].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaterializedAttentionBackward {
    pub attending: Attending,
}

impl MaterializedAttention {
    /// Elements between rows of scores in scratch memory: not a power of two, so that columns of them spread over a cache.
    pub fn score_row(sequence: usize) -> usize {
        sequence.next_multiple_of(Attention::PANEL) + 16
    }

    /// Scratch elements of one thread, all of them f32: k^T and v of one head in panels, scores and output of a tile of
    /// queries; and these queries, where they are stored otherwise.
    pub fn workspace_elements(dtype: DType, sequence: usize, head: usize) -> usize {
        Attention::elements_with_rows(dtype, sequence, head, Self::score_row(sequence))
    }
}

impl MaterializedAttentionBackward {
    /// Scratch elements of one thread, all of them f32: v^T, then k, q and dout of one head in panels, probabilities and
    /// dscores of a tile of queries; and, where they are stored otherwise, that tile of dout and dq, and a head's dk and dv.
    pub fn workspace_elements(dtype: DType, sequence: usize, head: usize) -> usize {
        let widened = if dtype == DType::F32 { 0 } else { (2 * Attention::QUERY_TILE + 2 * sequence) * head };
        sequence.next_multiple_of(Attention::PANEL) * head
            + 3 * sequence * head.next_multiple_of(Attention::PANEL)
            + 2 * Attention::QUERY_TILE * MaterializedAttention::score_row(sequence)
            + widened
    }
}

/// What is there of each head for each query and key.
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
        expect_inputs(self.name(), inputs, 1 + self.attending.others())?;
        let dtype = expect_float(self.name(), "qkv", &inputs[0])?;
        let heads = self.attending.heads(self.name(), &inputs[0])?;
        self.attending.expect_others(self.name(), &heads, inputs, 1)?;
        let squares = vec![square(dtype, &heads); 2 + usize::from(self.attending.dropped.is_some())];
        Ok([vec![heads.out(dtype)], squares].concat())
    }

    fn drops(&self) -> Option<Dropped> {
        self.attending.dropped
    }

    fn flops(&self, _inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        self.attending.flops(2, &outputs[0])
    }

    fn workspace(&self, inputs: &[TensorType], outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let (sequence, head) = (inputs[0].shape.dims()[1], outputs[0].shape.last() / self.attending.heads);
        limits.scratch(Self::workspace_elements(inputs[0].dtype, sequence, head), 0)
    }

    /// Probabilities have a square for each head.
    fn resize(&mut self, sizes: &Sizes) {
        self.attending.resize(sizes.outputs[1].shape.dims()[1], &sizes.inputs[0], &sizes.outputs[0]);
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let mut inputs = vec![tape.output_gradient(0), tape.input(0), tape.output(1)];
        inputs.extend(self.attending.cap.map(|_| tape.output(2)));
        if let [_, Some(seeds)] = self.attending.places(1) {
            inputs.extend([tape.output(3), tape.input(seeds)]);
        }
        let squares = [1, 2].map(Emitted::OutputGradient);
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
        let left = 3 + usize::from(capped);
        expect_inputs(self.name(), inputs, left + 2 * usize::from(dropped))?;
        let heads = self.attending.heads(self.name(), &inputs[1])?;
        let dtype = expect_float(self.name(), "qkv", &inputs[1])?;
        let square = square(dtype, &heads);
        expect_type(self.name(), "dout", &inputs[0], heads.out(dtype))?;
        expect_type(self.name(), "probabilities", &inputs[2], square)?;
        for scores in &inputs[3..left] {
            expect_type(self.name(), "scores", scores, square)?;
        }
        if dropped {
            expect_type(self.name(), "the probabilities that are left", &inputs[left], square)?;
            expect_type(self.name(), "the seeds", &inputs[left + 1], Dropped::seeds(heads.batch))?;
        }
        Ok(vec![inputs[1], square, square])
    }

    fn drops(&self) -> Option<Dropped> {
        self.attending.dropped
    }

    /// Two for each of the forward's products.
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
