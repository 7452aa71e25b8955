//! Multi-head self-attention whose T x T scores are never stored (Dao et al. 2022), with as many heads of keys and values as
//! of queries or fewer (Ainslie et al. 2023).

use std::ops::Range;

use super::{
    DType, Dropped, Op, OpKind, Operation, Sizes, Tape, TensorType, TypeError, WorkspaceLimits, expect_float,
    expect_inputs, expect_type,
};

/// How queries attend to keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attending {
    /// Of queries: H.
    pub heads: usize,
    /// Of keys and values: G, which divides H. As many heads of queries in a row share one.
    pub kv_heads: usize,
    /// Whether position t sees no later ones.
    pub causal: bool,
    /// How many positions a query sees at most, its own and those right before it.
    pub window: Option<usize>,
    /// Scores go no further than this from 0, either way: `cap tanh(score / cap)`.
    pub cap: Option<f32>,
    /// What scores are multiplied by, if not by `1 / sqrt(D)`.
    pub scale: Option<f32>,
    /// Whether a query sees nothing before its own document: one more input, the starts i32[B,T], says of each position where
    /// in its sequence that begins. They never fall. Such attention is causal.
    pub documents: bool,
    /// Weights that are left out by chance: the last input, the seeds i32[B,2], says which. Those of a query of a head are the
    /// row `head * T + query` of its sample, and keys are its columns.
    pub dropped: Option<Dropped>,
}

/// Sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    pub batch: usize,
    pub sequence: usize,
    /// H.
    pub queries: usize,
    /// G.
    pub keys: usize,
    /// Channels of each: D.
    pub head: usize,
}

impl Attending {
    /// GPT-2's: each head has keys of its own, and sees what was before.
    pub const fn causal(heads: usize) -> Attending {
        Attending {
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

    /// What scores of heads of so many channels are multiplied by.
    pub fn scale(&self, head: usize) -> f32 {
        self.scale.unwrap_or_else(|| (1.0 / (head as f64).sqrt()) as f32)
    }

    /// The keys of a sequence that a query sees.
    pub fn seen(&self, query: usize, sequence: usize) -> Range<usize> {
        let first = self.window.map_or(0, |window| (query + 1).saturating_sub(window));
        first..if self.causal { query + 1 } else { sequence }
    }

    /// The inputs that are there beside others, behind them.
    pub(super) fn others(&self) -> usize {
        usize::from(self.documents) + usize::from(self.dropped.is_some())
    }

    /// The index of the starts, and that of the seeds, behind so many inputs.
    pub fn places(&self, inputs: usize) -> [Option<usize>; 2] {
        let starts = self.documents.then_some(inputs);
        [starts, self.dropped.map(|_| inputs + usize::from(self.documents))]
    }

    /// Whether the inputs behind so many are what is to be there.
    pub(super) fn expect_others(
        &self,
        operation: &'static str,
        heads: &Heads,
        inputs: &[TensorType],
        before: usize,
    ) -> Result<(), TypeError> {
        let [starts, seeds] = self.places(before);
        if let Some(starts) = starts {
            let expected = TensorType::i32(&[heads.batch, heads.sequence]);
            expect_type(operation, "the starts", &inputs[starts], expected)?;
        }
        let expected = Dropped::seeds(heads.batch);
        seeds.map_or(Ok(()), |seeds| expect_type(operation, "the seeds", &inputs[seeds], expected))
    }

    /// The sizes in a qkv num[B,T,(H+2G)D].
    ///
    /// # Errors
    /// It is none.
    pub fn heads(&self, operation: &'static str, qkv: &TensorType) -> Result<Heads, TypeError> {
        let side_by_side = self.heads + 2 * self.kv_heads;
        let wrong = || {
            let Attending { heads, kv_heads, .. } = self;
            let problem = format!("qkv is {qkv}, not [B, T, C] of {heads} heads and two times {kv_heads}");
            TypeError { operation, problem }
        };
        let [batch, sequence, row] = <[usize; 3]>::try_from(qkv.shape.dims()).map_err(|_| wrong())?;
        let fits = self.heads.is_multiple_of(self.kv_heads) && row.is_multiple_of(side_by_side);
        let head = row / side_by_side;
        let heads = Heads { batch, sequence, queries: self.heads, keys: self.kv_heads, head };
        fits.then_some(heads).ok_or_else(wrong)
    }

    /// Takes on the heads of another run.
    pub(super) fn resize(&mut self, heads: usize, qkv: &TensorType, out: &TensorType) {
        let (row, channels) = (qkv.shape.last(), out.shape.last());
        self.kv_heads = (row - channels) * heads / (2 * channels);
        self.heads = heads;
    }

    /// Half of the T x T scores are masked; the customary count (PaLM, Chowdhery et al. 2022, appendix B) still takes them
    /// whole, and so does this one, so that figures compare: so many products of an out [B,T,HD]. Of a window, it takes that.
    pub(super) fn flops(&self, products: u64, out: &TensorType) -> u64 {
        let sequence = out.shape.dims()[1];
        let seen = self.window.map_or(sequence, |window| window.min(sequence));
        products * 2 * (out.elements() * seen) as u64
    }
}

impl Heads {
    /// Of a result: HD.
    pub fn channels(&self) -> usize {
        self.queries * self.head
    }
}

/// `out = dropped(softmax(mask(cap(scale q k^T)))) v` for each head.
///
/// Inputs: qkv num[B,T,(H+2G)D], heads of queries, of keys and of values side by side, then the starts i32[B,T] of documents
/// that are told apart, and the seeds i32[B,2] of what is dropped. Outputs: out num[B,T,HD], and the
/// logarithm of each softmax's sum lse f32[B,H,T].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    pub attending: Attending,
}

/// Inputs: dout num[B,T,HD], qkv num[B,T,(H+2G)D], out num[B,T,HD], lse f32[B,H,T] and, as above, starts
/// and seeds. Output: dqkv num[B,T,(H+2G)D].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionBackward {
    pub attending: Attending,
}

impl Attention {
    /// Queries and keys that a kernel takes at a time.
    pub const QUERY_TILE: usize = 96;
    pub const KEY_TILE: usize = 256;
    /// Elements between rows of a tile of scores: not a power of two, so that columns of it spread over a cache.
    pub const SCORE_ROW: usize = Self::KEY_TILE + 16;
    /// Operands are packed in multiples of this many columns.
    pub const PANEL: usize = 32;

    /// Scratch elements of one thread, all of them f32: k^T and v of one head in panels, one tile of scores and one
    /// of output; and a tile of queries, where they are stored otherwise.
    pub fn workspace_elements(dtype: DType, sequence: usize, head: usize) -> usize {
        Self::elements_with_rows(dtype, sequence, head, Self::SCORE_ROW)
    }

    /// The same, where a tile's scores are in rows of so many.
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
    /// Scratch elements of one thread, all of them f32: k^T and v^T, then k, q and dout of one head in panels, and two
    /// tiles of scores; and, where they are stored otherwise, tiles of q, dout and dq, and a head's dk and dv.
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
        expect_inputs(self.name(), inputs, 1 + self.attending.others())?;
        let dtype = expect_float(self.name(), "qkv", &inputs[0])?;
        let heads = self.attending.heads(self.name(), &inputs[0])?;
        self.attending.expect_others(self.name(), &heads, inputs, 1)?;
        Ok(vec![heads.out(dtype), heads.lse()])
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

    /// lse has a row for each head.
    fn resize(&mut self, sizes: &Sizes) {
        self.attending.resize(sizes.outputs[1].shape.dims()[1], &sizes.inputs[0], &sizes.outputs[0]);
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let mut inputs = vec![tape.output_gradient(0), tape.input(0), tape.output(0), tape.output(1)];
        inputs.extend((1..=self.attending.others()).map(|input| tape.input(input)));
        let op = Op::AttentionBackward(AttentionBackward { attending: self.attending });
        tape.contribute(op, inputs, 0, 1, &[]);
    }
}

impl Heads {
    /// An out, or its gradient.
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
        expect_inputs(self.name(), inputs, 4 + self.attending.others())?;
        let heads = self.attending.heads(self.name(), &inputs[1])?;
        self.attending.expect_others(self.name(), &heads, inputs, 4)?;
        let dtype = expect_float(self.name(), "qkv", &inputs[1])?;
        expect_type(self.name(), "dout", &inputs[0], heads.out(dtype))?;
        expect_type(self.name(), "out", &inputs[2], heads.out(dtype))?;
        expect_type(self.name(), "lse", &inputs[3], heads.lse())?;
        Ok(vec![inputs[1]])
    }

    fn drops(&self) -> Option<Dropped> {
        self.attending.dropped
    }

    /// Two for each of the forward's products. The scores computed again are the kernel's affair, not the
    /// model's, and are not counted.
    fn flops(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> u64 {
        self.attending.flops(4, &inputs[0])
    }

    /// On a card, the sum of dout times out of each row of each head, f32[B,H,T].
    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let TensorType { dtype, shape } = inputs[0];
        let (sequence, head) = (shape.dims()[1], shape.last() / self.attending.heads);
        limits.scratch(Self::workspace_elements(dtype, sequence, head), inputs[3].bytes())
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.attending.resize(sizes.inputs[3].shape.dims()[1], &sizes.inputs[1], &sizes.inputs[0]);
    }
}
