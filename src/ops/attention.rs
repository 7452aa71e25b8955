//! Causal multi-head self-attention whose T x T scores are never stored (Dao et al. 2022).

use super::{
    DType, Op, OpKind, Operation, Sizes, Tape, TensorType, TypeError, WorkspaceLimits, expect_float,
    expect_inputs, expect_type,
};

/// `out = softmax(mask(q k^T / sqrt(C/H))) v` for each head, position t seeing positions 0 to t.
///
/// Input: qkv num[B,T,3C], queries, keys and values side by side, each with its heads side by side.
/// Outputs: out num[B,T,C], and the logarithm of each softmax's sum lse f32[B,H,T].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    pub heads: usize,
}

/// Inputs: dout num[B,T,C], qkv num[B,T,3C], out num[B,T,C], lse f32[B,H,T]. Output: dqkv num[B,T,3C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionBackward;

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
    pub(crate) fn workspace_elements(dtype: DType, sequence: usize, head: usize) -> usize {
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
    /// How many heads there are, as lse tells.
    pub(crate) fn heads(lse: &TensorType) -> usize {
        lse.shape.dims().get(1).copied().unwrap_or(1)
    }

    /// Scratch elements of one thread, all of them f32: k^T and v^T, then k, q and dout of one head in panels, and two
    /// tiles of scores; and, where they are stored otherwise, tiles of q, dout and dq, and a head's dk and dv.
    pub(crate) fn workspace_elements(dtype: DType, sequence: usize, head: usize) -> usize {
        let widened = if dtype == DType::F32 { 0 } else { (3 * Attention::QUERY_TILE + 2 * sequence) * head };
        2 * sequence.next_multiple_of(Attention::PANEL) * head
            + 3 * sequence * head.next_multiple_of(Attention::PANEL)
            + 2 * Attention::QUERY_TILE * Attention::SCORE_ROW
            + widened
    }
}

/// B, T, C of a qkv.
pub(super) fn dimensions(
    operation: &'static str,
    heads: usize,
    qkv: &TensorType,
) -> Result<[usize; 3], TypeError> {
    let wrong = || TypeError {
        operation,
        problem: format!("qkv is {qkv}, not [B, T, 3C] with C divisible by {heads} heads"),
    };
    let [batch, sequence, triple] = <[usize; 3]>::try_from(qkv.shape.dims()).map_err(|_| wrong())?;
    if triple % 3 == 0 && (triple / 3) % heads == 0 {
        Ok([batch, sequence, triple / 3])
    } else {
        Err(wrong())
    }
}

/// Half of the T x T scores are masked; the customary count (PaLM, Chowdhery et al. 2022, appendix B) still
/// takes them whole, and so does this one, so that figures compare: so many products of an out [B,T,C].
pub(super) fn scores_flops(products: u64, out: &TensorType) -> u64 {
    products * 2 * (out.elements() * out.shape.dims()[1]) as u64
}

impl Operation for Attention {
    fn kind(&self) -> Option<OpKind> {
        Some(OpKind::Attention)
    }

    fn name(&self) -> &'static str {
        "attention"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1)?;
        let dtype = expect_float(self.name(), "qkv", &inputs[0])?;
        let [batch, sequence, channels] = dimensions(self.name(), self.heads, &inputs[0])?;
        Ok(vec![
            TensorType::new(dtype, &[batch, sequence, channels]),
            TensorType::f32(&[batch, self.heads, sequence]),
        ])
    }

    fn flops(&self, _inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        scores_flops(2, &outputs[0])
    }

    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let TensorType { dtype, shape } = inputs[0];
        let (sequence, head) = (shape.dims()[1], shape.last() / 3 / self.heads);
        limits.scratch(Self::workspace_elements(dtype, sequence, head), 0)
    }

    /// lse has a row for each head.
    fn resize(&mut self, sizes: &Sizes) {
        self.heads = AttentionBackward::heads(&sizes.outputs[1]);
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let inputs = vec![tape.output_gradient(0), tape.input(0), tape.output(0), tape.output(1)];
        tape.contribute(Op::AttentionBackward(AttentionBackward), inputs, 0, 1, &[]);
    }
}

impl Operation for AttentionBackward {
    fn name(&self) -> &'static str {
        "attention-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 4)?;
        let heads = Self::heads(&inputs[3]);
        let [batch, sequence, channels] = dimensions(self.name(), heads, &inputs[1])?;
        let dtype = expect_float(self.name(), "qkv", &inputs[1])?;
        let out = TensorType::new(dtype, &[batch, sequence, channels]);
        expect_type(self.name(), "dout", &inputs[0], out)?;
        expect_type(self.name(), "out", &inputs[2], out)?;
        expect_type(self.name(), "lse", &inputs[3], TensorType::f32(&[batch, heads, sequence]))?;
        Ok(vec![inputs[1]])
    }

    /// Two for each of the forward's products. The scores computed again are the kernel's affair, not the
    /// model's, and are not counted.
    fn flops(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> u64 {
        scores_flops(4, &inputs[0])
    }

    /// On a card, the sum of dout times out of each row of each head, f32[B,H,T].
    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let TensorType { dtype, shape } = inputs[0];
        let (sequence, head) = (shape.dims()[1], shape.last() / Self::heads(&inputs[3]));
        limits.scratch(Self::workspace_elements(dtype, sequence, head), inputs[3].bytes())
    }
}
