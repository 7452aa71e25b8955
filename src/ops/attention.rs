//! Fused multi-head self-attention that never stores the T x T scores (Dao et al. 2022), optionally with fewer key and
//! value heads than query heads (grouped-query attention, Ainslie et al. 2023).

use std::ops::Range;

use super::{
    DType, DropoutMask, Op, OpKind, Operation, Sizes, Tape, TensorType, TypeError, WorkspaceLimits,
    expect_float, expect_inputs, expect_type,
};

/// Parameters of attention: heads, masks, scale and dropout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Query heads: H.
    pub heads: usize,
    /// Key and value heads: G, which divides H. H/G consecutive query heads share one.
    pub kv_heads: usize,
    /// Whether later positions are masked.
    pub causal: bool,
    /// Sliding window: the number of positions that a query attends to, its own and those right before it.
    pub window: Option<usize>,
    /// Soft cap of the scores: `cap tanh(score / cap)`.
    pub cap: Option<f32>,
    /// Factor of the scores; the default is `1 / sqrt(D)`.
    pub scale: Option<f32>,
    /// Whether packed documents are masked from each other. An additional input, the document starts i32[B,T], holds
    /// for each position the start of its document in the sequence, in non-decreasing order. Requires causal attention.
    pub documents: bool,
    /// Dropout of the attention probabilities. The last input is then the seeds i32[B,2]. The probabilities of a query
    /// are row `head * T + query` of its sample; keys are the columns.
    pub dropped: Option<DropoutMask>,
}

/// Dimensions of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    pub batch: usize,
    pub sequence: usize,
    /// H.
    pub queries: usize,
    /// G.
    pub keys: usize,
    /// Channels per head: D.
    pub head: usize,
}

impl AttentionConfig {
    /// Plain causal attention, as in GPT-2: every query head has its own keys.
    pub const fn causal(heads: usize) -> AttentionConfig {
        AttentionConfig {
            heads,
            kv_heads: heads,
            causal: true,
            window: None,
            cap: None,
            scale: None,
            documents: false,
            dropped: None,
        }
    }

    /// The factor of the scores for heads of `head` channels.
    pub fn scale(&self, head: usize) -> f32 {
        self.scale.unwrap_or_else(|| (1.0 / (head as f64).sqrt()) as f32)
    }

    /// The keys that a query attends to.
    pub fn seen(&self, query: usize, sequence: usize) -> Range<usize> {
        let first = self.window.map_or(0, |window| (query + 1).saturating_sub(window));
        first..if self.causal { query + 1 } else { sequence }
    }

    /// The number of optional trailing inputs: document starts and seeds.
    pub(super) fn optional_inputs(&self) -> usize {
        usize::from(self.documents) + usize::from(self.dropped.is_some())
    }

    /// The input indices of document starts and seeds, which follow `inputs` other inputs.
    pub fn places(&self, inputs: usize) -> [Option<usize>; 2] {
        let starts = self.documents.then_some(inputs);
        [starts, self.dropped.map(|_| inputs + usize::from(self.documents))]
    }

    /// Checks the types of document starts and seeds, which follow `before` other inputs.
    pub(super) fn expect_optional_inputs(
        &self,
        operation: &'static str,
        heads: &Heads,
        inputs: &[TensorType],
        before: usize,
    ) -> Result<(), TypeError> {
        let [starts, seeds] = self.places(before);
        if let Some(starts) = starts {
            let expected = TensorType::i32(&[heads.batch, heads.sequence]);
            expect_type(operation, "the document starts", &inputs[starts], expected)?;
        }
        let expected = DropoutMask::seeds(heads.batch);
        seeds.map_or(Ok(()), |seeds| expect_type(operation, "the seeds", &inputs[seeds], expected))
    }

    /// The dimensions of a qkv num[B,T,(H+2G)D].
    ///
    /// # Errors
    /// The type is not a qkv of these heads.
    pub fn heads(&self, operation: &'static str, qkv: &TensorType) -> Result<Heads, TypeError> {
        let side_by_side = self.heads + 2 * self.kv_heads;
        let wrong = || {
            let AttentionConfig { heads, kv_heads, .. } = self;
            let problem = format!(
                "qkv is {qkv}, expected [B, T, C] with {heads} query heads and 2 x {kv_heads} key and value heads"
            );
            TypeError { operation, problem }
        };
        let [batch, sequence, row] = <[usize; 3]>::try_from(qkv.shape.dims()).map_err(|_| wrong())?;
        let fits = self.heads.is_multiple_of(self.kv_heads) && row.is_multiple_of(side_by_side);
        let head = row / side_by_side;
        let heads = Heads { batch, sequence, queries: self.heads, keys: self.kv_heads, head };
        fits.then_some(heads).ok_or_else(wrong)
    }

    /// Updates the head counts to those of another run.
    pub(super) fn resize(&mut self, heads: usize, qkv: &TensorType, out: &TensorType) {
        let (row, channels) = (qkv.shape.last(), out.shape.last());
        self.kv_heads = (row - channels) * heads / (2 * channels);
        self.heads = heads;
    }

    /// FLOPs of `products` matmuls with an out [B,T,HD]. A causal mask hides half of the T x T scores; the customary
    /// count (PaLM, Chowdhery et al. 2022, appendix B) still includes them, and so does this one, so that figures are
    /// comparable. Only a window reduces the count.
    pub(super) fn flops(&self, products: u64, out: &TensorType) -> u64 {
        let sequence = out.shape.dims()[1];
        let seen = self.window.map_or(sequence, |window| window.min(sequence));
        products * 2 * (out.elements() * seen) as u64
    }
}

impl Heads {
    /// Channels of the output: HD.
    pub fn channels(&self) -> usize {
        self.queries * self.head
    }
}

/// `out = dropout(softmax(mask(cap(scale q k^T)))) v` for each head.
///
/// Inputs: qkv num[B,T,(H+2G)D], the query, key and value heads side by side; with `documents` the document starts
/// i32[B,T]; with dropout the seeds i32[B,2]. Outputs: out num[B,T,HD] and lse f32[B,H,T], the logarithm of each
/// softmax's sum of exponentials.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    pub attending: AttentionConfig,
}

/// Gradient of [`Attention`].
///
/// Inputs: dout num[B,T,HD], qkv num[B,T,(H+2G)D], out num[B,T,HD], lse f32[B,H,T] and, as in forward, document starts
/// and seeds. Output: dqkv num[B,T,(H+2G)D].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionBackward {
    pub attending: AttentionConfig,
}

impl Attention {
    /// Queries and keys per tile.
    pub const QUERY_TILE: usize = 96;
    pub const KEY_TILE: usize = 256;
    /// Row stride of a score tile in elements: not a power of two, so that a column is spread over the cache sets.
    pub const SCORE_ROW: usize = Self::KEY_TILE + 16;
    /// Operands are packed in panels of this many columns.
    pub const PANEL: usize = 32;

    /// Scratch f32 elements per thread: k^T and v of one head in panels, one score tile and one output tile; for other
    /// dtypes than f32 also a query tile.
    pub fn workspace_elements(dtype: DType, sequence: usize, head: usize) -> usize {
        Self::elements_with_rows(dtype, sequence, head, Self::SCORE_ROW)
    }

    /// Like `workspace_elements`, with this row stride of the score tile.
    pub(super) fn elements_with_rows(dtype: DType, sequence: usize, head: usize, score_row: usize) -> usize {
        let padded_head = head.next_multiple_of(Self::PANEL);
        let widened = if dtype == DType::F32 { 0 } else { Self::QUERY_TILE * head };
        sequence.next_multiple_of(Self::PANEL) * head
            + sequence * padded_head
            + Self::QUERY_TILE * (score_row + padded_head)
            + widened
    }
}

impl AttentionBackward {
    /// Scratch f32 elements per thread: k^T and v^T, then k, q and dout of one head in panels, and two score tiles; for
    /// other dtypes than f32 also tiles of q, dout and dq, and dk and dv of one head.
    pub fn workspace_elements(dtype: DType, sequence: usize, head: usize) -> usize {
        let widened = if dtype == DType::F32 { 0 } else { (3 * Attention::QUERY_TILE + 2 * sequence) * head };
        2 * sequence.next_multiple_of(Attention::PANEL) * head
            + 3 * sequence * head.next_multiple_of(Attention::PANEL)
            + 2 * Attention::QUERY_TILE * Attention::SCORE_ROW
            + widened
    }
}

impl Operation for Attention {
    fn kind(&self) -> Option<OpKind> {
        Some(OpKind::Attention)
    }

    fn name(&self) -> &'static str {
        "attention"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1 + self.attending.optional_inputs())?;
        let dtype = expect_float(self.name(), "qkv", &inputs[0])?;
        let heads = self.attending.heads(self.name(), &inputs[0])?;
        self.attending.expect_optional_inputs(self.name(), &heads, inputs, 1)?;
        Ok(vec![heads.out(dtype), heads.lse()])
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

    /// The number of heads comes from lse.
    fn resize(&mut self, sizes: &Sizes) {
        self.attending.resize(sizes.outputs[1].shape.dims()[1], &sizes.inputs[0], &sizes.outputs[0]);
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let mut inputs = vec![tape.output_gradient(0), tape.input(0), tape.output(0), tape.output(1)];
        inputs.extend((1..=self.attending.optional_inputs()).map(|input| tape.input(input)));
        let op = Op::AttentionBackward(AttentionBackward { attending: self.attending });
        tape.contribute(op, inputs, 0, 1, &[]);
    }
}

impl Heads {
    /// The type of out and of its gradient.
    pub(super) fn out(&self, dtype: DType) -> TensorType {
        TensorType::new(dtype, &[self.batch, self.sequence, self.channels()])
    }

    fn lse(&self) -> TensorType {
        TensorType::f32(&[self.batch, self.queries, self.sequence])
    }
}

impl Operation for AttentionBackward {
    fn name(&self) -> &'static str {
        "attention-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 4 + self.attending.optional_inputs())?;
        let heads = self.attending.heads(self.name(), &inputs[1])?;
        self.attending.expect_optional_inputs(self.name(), &heads, inputs, 4)?;
        let dtype = expect_float(self.name(), "qkv", &inputs[1])?;
        expect_type(self.name(), "dout", &inputs[0], heads.out(dtype))?;
        expect_type(self.name(), "out", &inputs[2], heads.out(dtype))?;
        expect_type(self.name(), "lse", &inputs[3], heads.lse())?;
        Ok(vec![inputs[1]])
    }

    fn drops(&self) -> Option<DropoutMask> {
        self.attending.dropped
    }

    /// Two matmuls for each of the forward pass. The kernel recomputes the scores; that is an implementation detail and
    /// not counted.
    fn flops(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> u64 {
        self.attending.flops(4, &inputs[0])
    }

    /// On a GPU, the dot products of the rows of dout and out, f32[B,H,T].
    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let TensorType { dtype, shape } = inputs[0];
        let (sequence, head) = (shape.dims()[1], shape.last() / self.attending.heads);
        limits.scratch(Self::workspace_elements(dtype, sequence, head), inputs[3].bytes())
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.attending.resize(sizes.inputs[3].shape.dims()[1], &sizes.inputs[1], &sizes.inputs[0]);
    }
}
