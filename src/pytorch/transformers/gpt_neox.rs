//! The layers of `GPTNeoXModel`.

use super::body::{Arguments, Cache, Layer};
use super::layers::{Linear, Maker};
use super::norm::{Norm, NormClass};
use super::parallel::{Mlp, ParallelLayer, attend};
use crate::functions::{self, Heads, Layout};
use crate::tensor::Tensor;
use crate::torch::Torch;
use spec::{Dropout, SubLayers, Transformer};

/// `GPTNeoXLayer`
pub(super) struct GptNeoxLayer {
    input_norm: Norm,
    post_attention_norm: Norm,
    attention: GptNeoxAttention,
    mlp: Mlp,
    /// `use_parallel_residual`
    is_parallel: bool,
    dropout: Dropout,
}

/// `GPTNeoXAttention`
struct GptNeoxAttention {
    qkv: Linear,
    dense: Linear,
    heads: usize,
    head_dim: usize,
    rotated: usize,
    has_dropout: bool,
}

impl ParallelLayer for GptNeoxLayer {
    fn new(maker: Maker<'_>, model: &Transformer) -> GptNeoxLayer {
        let channels = model.d_model;
        GptNeoxLayer {
            input_norm: Norm::new(maker, NormClass::Layer, channels),
            post_attention_norm: Norm::new(maker, NormClass::Layer, channels),
            attention: GptNeoxAttention {
                qkv: maker.linear("attention.qkv", channels, 3 * channels, true),
                dense: maker.linear("attention.out", channels, channels, true),
                heads: model.heads,
                head_dim: model.head_dim,
                rotated: model.rotated_channels(),
                has_dropout: model.dropout.attention > 0.0,
            },
            mlp: Mlp::new(maker, model),
            is_parallel: model.sub_layers == SubLayers::Parallel,
            dropout: model.dropout,
        }
    }

    fn parameters(&self) -> Vec<Tensor> {
        let norms = [&self.input_norm, &self.post_attention_norm].into_iter().flat_map(Norm::parameters);
        let attention = [&self.attention.qkv, &self.attention.dense].into_iter().flat_map(Linear::parameters);
        norms.chain(attention).chain(self.mlp.parameters()).collect()
    }
}

impl Layer for GptNeoxLayer {
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
        let mlp = |x: &Tensor| {
            let output = {
                let normed = self.post_attention_norm.forward(torch, x);
                self.mlp.forward(torch, &normed, trains)
            };
            dropped(output)
        };
        let mut attended = dropped({
            let normed = self.input_norm.forward(torch, x);
            self.attention.forward(torch, &normed, [cos, sin], cache, trains)
        });
        if !self.is_parallel {
            attended = functions::add(torch, &attended, x);
            let output = mlp(&attended);
            return functions::add(torch, &output, &attended);
        }
        let output = mlp(x);
        let sum = functions::add(torch, &output, &attended);
        functions::add(torch, &sum, x)
    }
}

impl GptNeoxAttention {
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
        let (queries, head) = (self.heads, self.head_dim);
        let heads = Heads { batch, sequence, queries, keys: queries, head, by_head: true };
        let qkv = {
            let qkv = self.qkv.forward(torch, x, trains);
            functions::heads(torch, &qkv, &[batch, queries, sequence, 3 * head], Layout::Heads)
        };
        let parts = functions::split(torch, &qkv, 3);
        let [q, k] = self.rotated([&parts[0], &parts[1]], torch, [cos, sin]);
        let v = parts[2].clone();
        drop(parts);
        let [k, v] = match cache {
            None => [k, v],
            Some(cache) => cache.update(torch, [k, v], false),
        };
        let y = attend(torch, [&q, &k, &v], heads, trains && self.has_dropout);
        self.dense.forward(torch, &y, trains)
    }

    /// `apply_rotary_pos_emb`
    fn rotated(&self, [q, k]: [&Tensor; 2], torch: &Torch, [cos, sin]: [&Tensor; 2]) -> [Tensor; 2] {
        let rotated = self.rotated;
        let [(q_rot, q_pass), (k_rot, k_pass)] = [q, k].map(|x| {
            (functions::columns(torch, x, rotated), functions::columns(torch, x, self.head_dim - rotated))
        });
        let mut q = functions::rotate(torch, &q_rot, cos, sin);
        let mut k = functions::rotate(torch, &k_rot, cos, sin);
        q = functions::joined(torch, [&q, &q_pass]);
        k = functions::joined(torch, [&k, &k_pass]);
        [q, k]
    }
}
