//! The layers of `PhiModel`.

use super::attention::gradient_layout;
use super::body::{Arguments, Cache, Layer};
use super::layers::{Linear, Maker};
use super::norm::{Norm, NormClass};
use super::parallel::{Mlp, ParallelLayer, attend};
use crate::functions::{self, Heads, Layout};
use crate::tensor::Tensor;
use crate::torch::Torch;
use ops::Shape;
use spec::{Dropout, Transformer};

/// `PhiDecoderLayer`
pub(super) struct PhiLayer {
    attention: PhiAttention,
    mlp: Mlp,
    input_norm: Norm,
    dropout: Dropout,
}

/// `PhiAttention`
struct PhiAttention {
    q: Linear,
    k: Linear,
    v: Linear,
    dense: Linear,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    rotated: usize,
    has_dropout: bool,
}

impl ParallelLayer for PhiLayer {
    const ROTARY_BEFORE_NORM: bool = true;
    const REASSIGNS_EMBEDDINGS: bool = true;

    fn new(maker: Maker<'_>, model: &Transformer) -> PhiLayer {
        let channels = model.d_model;
        let (queries, keys) = (model.heads * model.head_dim, model.kv_heads * model.head_dim);
        PhiLayer {
            attention: PhiAttention {
                q: maker.linear("attention.q", channels, queries, true),
                k: maker.linear("attention.k", channels, keys, true),
                v: maker.linear("attention.v", channels, keys, true),
                dense: maker.linear("attention.out", queries, channels, true),
                heads: model.heads,
                kv_heads: model.kv_heads,
                head_dim: model.head_dim,
                rotated: model.rotated_channels(),
                has_dropout: model.dropout.attention > 0.0,
            },
            mlp: Mlp::new(maker, model),
            input_norm: Norm::new(maker, NormClass::Layer, channels),
            dropout: model.dropout,
        }
    }

    fn parameters(&self) -> Vec<Tensor> {
        let PhiAttention { q, k, v, dense, .. } = &self.attention;
        let attention = [q, k, v, dense].into_iter().flat_map(Linear::parameters);
        let norm = self.input_norm.parameters();
        attention.chain(self.mlp.parameters()).chain(norm).collect()
    }
}

impl Layer for PhiLayer {
    fn forward(
        &self,
        torch: &Torch,
        x: &Tensor,
        arguments: &Arguments,
        cache: Option<&mut Cache>,
        trains: bool,
    ) -> Tensor {
        let [cos, sin] = arguments.tables();
        let dropped = |x: Tensor| match trains && self.dropout.residual > 0.0 {
            true => functions::dropout(torch, &x),
            false => x,
        };
        let normed = self.input_norm.forward(torch, x);
        let attended = dropped(self.attention.forward(torch, &normed, [cos, sin], cache, trains));
        let output = dropped(self.mlp.forward(torch, &normed, trains));
        let sum = functions::add(torch, &attended, &output);
        functions::add(torch, &sum, x)
    }
}

impl PhiAttention {
    /// x [B, T, C]
    fn forward(
        &self,
        torch: &Torch,
        x: &Tensor,
        [cos, sin]: [&Tensor; 2],
        cache: Option<&mut Cache>,
        trains: bool,
    ) -> Tensor {
        let &[batch, sequence, _] = x.shape().dims() else { unreachable!("x is [B, T, C]") };
        let (queries, keys, head) = (self.heads, self.kv_heads, self.head_dim);
        let heads = Heads { batch, sequence, queries, keys, head, by_head: true };
        let project = |linear: &Linear, shape: Shape, gradient: Layout| {
            functions::heads(torch, &linear.forward(torch, x, trains), shape.dims(), gradient)
        };
        let layout = gradient_layout(torch, heads, cache.is_some(), x.dtype());
        let q = project(&self.q, heads.query_shape(), Layout::Heads);
        let k = project(&self.k, heads.key_shape(), Layout::Heads);
        let v = project(&self.v, heads.key_shape(), layout);
        let rotated = self.rotated;
        let [(q_rot, q_pass), (k_rot, k_pass)] = [q, k]
            .map(|x| (functions::columns(torch, &x, rotated), functions::columns(torch, &x, head - rotated)));
        // The variables live until the function returns.
        let [q_rot, k_rot] = [q_rot, k_rot].map(|x| functions::rotate(torch, &x, cos, sin));
        let q = functions::joined(torch, [&q_rot, &q_pass]);
        let k = functions::joined(torch, [&k_rot, &k_pass]);
        let [k, v] = match cache {
            None => [k, v],
            Some(cache) => cache.update(torch, [k, v], false),
        };
        let y = attend(torch, [&q, &k, &v], heads, trains && self.has_dropout);
        self.dense.forward(torch, &y, trains)
    }
}
