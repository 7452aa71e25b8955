//! The layers of `GPTNeoXModel`.

use super::attention::Attending;
use super::body::{Arguments, Cache, Layer};
use super::layers::{Linear, Maker};
use super::mlp::Mlp;
use super::norm::{Norm, NormClass};
use super::parallel::ParallelLayer;
use crate::functions::{self, Layout};
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
    attending: Attending,
    rotated: usize,
}

impl ParallelLayer for GptNeoxLayer {
    fn new(maker: Maker<'_>, model: &Transformer, index: usize) -> GptNeoxLayer {
        let channels = model.d_model;
        GptNeoxLayer {
            input_norm: Norm::new(maker, NormClass::Layer, channels),
            post_attention_norm: Norm::new(maker, NormClass::Layer, channels),
            attention: GptNeoxAttention {
                qkv: maker.linear("attention.qkv", channels, 3 * channels, true),
                dense: maker.linear("attention.out", channels, channels, true),
                attending: Attending::new(maker.config(), model, index).with_layout_by_head(true),
                rotated: model.rotated_channels(),
            },
            mlp: Mlp::plain(maker, model, false),
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
        let dropped = |x| functions::dropout_if(torch, x, trains && self.dropout.residual > 0.0);
        let mlp = |x: &Tensor| {
            let output = {
                let normed = self.post_attention_norm.forward(torch, x);
                self.mlp.forward(torch, &normed, trains)
            };
            dropped(output)
        };
        let (output, _weights) = {
            let normed = self.input_norm.forward(torch, x);
            self.attention.forward(torch, &normed, arguments, cache, trains)
        };
        let mut attended = dropped(output);
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
    /// The output for x [B, T, C], and the weights of values that eager attention returns.
    fn forward(
        &self,
        torch: &Torch,
        x: &Tensor,
        arguments: &Arguments,
        cache: Option<&mut Cache>,
        trains: bool,
    ) -> (Tensor, Option<Tensor>) {
        let heads = self.attending.heads(x.shape());
        let qkv = {
            let qkv = self.qkv.forward(torch, x, trains);
            let stacked = heads.query_shape().with_last(3 * heads.head);
            functions::heads(torch, &qkv, stacked.dims(), Layout::Heads)
        };
        let [q, k, v] = &functions::split(torch, &qkv, 3)[..] else { unreachable!("three parts") };
        let [q, k] = self.rotated(torch, [q, k], arguments.tables());
        let is_cached = cache.is_some();
        let qkv = self.attending.cached(torch, [q, k, v.clone()], cache);
        let (y, weights) = self.attending.forward(torch, &qkv, arguments.mask.as_ref(), is_cached, trains);
        (self.dense.forward(torch, &y, trains), weights)
    }

    /// `apply_rotary_pos_emb`
    fn rotated(&self, torch: &Torch, qk: [&Tensor; 2], [cos, sin]: &[Tensor; 2]) -> [Tensor; 2] {
        let [[q_rot, q_pass], [k_rot, k_pass]] =
            qk.map(|x| functions::divided_columns(torch, x, self.rotated));
        let mut q = functions::rotate(torch, &q_rot, cos, sin);
        let mut k = functions::rotate(torch, &k_rot, cos, sin);
        q = functions::joined(torch, [&q, &q_pass]);
        k = functions::joined(torch, [&k, &k_pass]);
        [q, k]
    }
}
