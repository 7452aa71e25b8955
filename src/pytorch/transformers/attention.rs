//! Attention as `attn_implementation` selects it, between the projections.
//!
//! B batch, T sequence, C channels, H query heads, G key and value heads, D channels per head.

use super::body::Cache;
use crate::functions::{self, Eager, Heads, Layout};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;
use spec::{Attention, RunConfig, Transformer, TransformersVersion};

/// The attention of a layer.
#[derive(Clone, Copy)]
pub(super) struct Attending {
    /// `attn_implementation="eager"`, not `"sdpa"`.
    is_eager: bool,
    /// Whether the class caps scores (`softcap`).
    cap: bool,
    /// Whether the softmax of eager attention is in fp32 even outside autocast.
    upcasts: bool,
    /// Whether eager attention hides later keys itself, too.
    hides_later_keys: bool,
    has_dropout: bool,
    /// The window of the layer's cache.
    window: Option<usize>,
    queries: usize,
    keys: usize,
    head: usize,
    /// Whether queries lie in memory by head, [B, H, T, D].
    by_head: bool,
}

/// The properties of a projection that determine the layout of its gradient.
#[derive(Clone, Copy)]
pub(super) struct Projection {
    /// 0, 1 or 2: queries, keys, values.
    pub(super) part: usize,
    pub(super) is_rotated: bool,
}

impl Attending {
    /// `layer`: its number.
    pub(super) fn new(config: &RunConfig, model: &Transformer, layer: usize) -> Attending {
        Attending {
            is_eager: config.strategy.attention == Attention::Materialized,
            cap: model.attention_softcap.is_some(),
            upcasts: true,
            hides_later_keys: false,
            has_dropout: model.dropout.attention > 0.0,
            window: model.window_of(layer),
            queries: model.heads,
            keys: model.kv_heads,
            head: model.head_dim,
            by_head: false,
        }
    }

    /// That of GPT-2, with the softmax in the dtype of the scores.
    pub(super) fn of_gpt2(self, version: TransformersVersion) -> Attending {
        let hides_later_keys = match version {
            TransformersVersion::V5_24 => false,
            TransformersVersion::V4_57 => true,
        };
        Attending { upcasts: false, hides_later_keys, ..self }
    }

    /// With queries that lie in memory by head, or not.
    pub(super) fn with_layout_by_head(self, by_head: bool) -> Attending {
        Attending { by_head, ..self }
    }

    /// The sizes for x [B, T, C].
    pub(super) fn heads(&self, x: Shape) -> Heads {
        let &[batch, sequence, _] = x.dims() else { unreachable!("x is [B, T, C]") };
        Heads {
            batch,
            sequence,
            queries: self.queries,
            keys: self.keys,
            head: self.head,
            by_head: self.by_head,
            is_sliced: false,
        }
    }

    /// The layout of the gradient of a projection to [B, heads, T, D] of this dtype.
    pub(super) fn layout(
        &self,
        torch: &Torch,
        projection: Projection,
        heads: Heads,
        [is_cached, is_masked]: [bool; 2],
        dtype: DType,
    ) -> Layout {
        let Projection { part, is_rotated } = projection;
        let is_grouped = heads.keys != heads.queries;
        let dtype = torch.autocast().unwrap_or(dtype);
        match part {
            _ if is_rotated => Layout::Heads,
            // The gradient of `k.transpose(2, 3)`, unless that of repeated heads is summed.
            1 if self.is_eager && !is_grouped => Layout::Channels,
            _ if self.is_eager => Layout::Heads,
            1 | 2 if is_masked && is_grouped => Layout::Heads,
            _ if is_masked => Layout::Tokens,
            // FlashAttention's gradients have the layout of its arguments, which are contiguous once cached.
            1 | 2 if is_cached && functions::is_flash(torch, dtype) => Layout::Heads,
            _ if functions::is_unfused(torch, heads, dtype) => Layout::Heads,
            _ => Layout::Tokens,
        }
    }

    /// q, k and v after the layer's cache has taken k and v.
    pub(super) fn cached(
        &self,
        torch: &Torch,
        [q, k, v]: [Tensor; 3],
        cache: Option<&mut Cache>,
    ) -> [Tensor; 3] {
        let Some(cache) = cache else { return [q, k, v] };
        let [k, v] = cache.update(torch, [k, v], self.window.is_some());
        [q, k, v]
    }

    /// The output [B, T, H*D] for q [B, H, T, D] with k and v [B, G, T, D], and the weights of values that eager attention
    /// returns.
    pub(super) fn forward(
        &self,
        torch: &Torch,
        [q, k, v]: &[Tensor; 3],
        mask: Option<&Tensor>,
        is_cached: bool,
        trains: bool,
    ) -> (Tensor, Option<Tensor>) {
        let &[batch, _, sequence, _] = q.shape().dims() else { unreachable!("q is [B, H, T, D]") };
        let heads = self.heads(Shape::new(&[batch, sequence, self.queries * self.head]));
        let has_dropout = trains && self.has_dropout;
        if self.is_eager {
            let mask = mask.expect("eager attention has a mask");
            let Attending { cap, upcasts, hides_later_keys, .. } = *self;
            let eager = Eager { cap, upcasts, hides_later_keys, has_dropout, is_cached };
            let [output, weights] = functions::eager_attention(torch, [q, k, v], mask, heads, eager);
            return (output, Some(weights));
        }
        let is_causal = mask.is_none();
        let mut repeated = Vec::new();
        let (arguments, heads) = match mask {
            // Without a fused kernel for grouped heads with a mask.
            Some(_) if heads.keys != heads.queries => {
                repeated.extend([k, v].map(|x| functions::repeated(torch, x, heads, 4)));
                ([q, &repeated[0], &repeated[1]], Heads { keys: heads.queries, ..heads })
            }
            _ => ([q, k, v], heads),
        };
        let mask = mask.map(Tensor::shape);
        let mut y =
            functions::scaled_dot_product_attention(torch, arguments, mask, heads, is_causal, has_dropout);
        if heads.copies_flash_output() && is_causal && functions::is_flash(torch, y.dtype()) {
            // y.transpose(1, 2).contiguous()
            y = functions::copied(torch, &y);
        }
        let joined = [heads.batch, heads.sequence, heads.queries * heads.head];
        (functions::heads(torch, &y, &joined, Layout::Tokens), None)
    }
}
