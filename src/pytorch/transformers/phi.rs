//! The layers of `PhiModel`.

use super::attention::{Attending, Projection};
use super::body::{Arguments, Cache, Layer};
use super::layers::{Linear, Maker};
use super::mlp::Mlp;
use super::norm::{Norm, NormClass};
use super::parallel::ParallelLayer;
use crate::functions;
use crate::tensor::Tensor;
use crate::torch::Torch;
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
    attending: Attending,
    rotated: usize,
}

impl ParallelLayer for PhiLayer {
    const ROTARY_BEFORE_NORM: bool = true;
    const REASSIGNS_EMBEDDINGS: bool = true;

    fn new(maker: Maker<'_>, model: &Transformer, index: usize) -> PhiLayer {
        let channels = model.d_model;
        let (queries, keys) = (model.heads * model.head_dim, model.kv_heads * model.head_dim);
        PhiLayer {
            attention: PhiAttention {
                q: maker.linear("attention.q", channels, queries, true),
                k: maker.linear("attention.k", channels, keys, true),
                v: maker.linear("attention.v", channels, keys, true),
                dense: maker.linear("attention.out", queries, channels, true),
                attending: Attending::new(maker.config(), model, index).with_layout_by_head(true),
                rotated: model.rotated_channels(),
            },
            mlp: Mlp::plain(maker, model, false),
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
        let dropped = |x| functions::dropout_if(torch, x, trains && self.dropout.residual > 0.0);
        let normed = self.input_norm.forward(torch, x);
        let (output, _weights) = self.attention.forward(torch, &normed, arguments, cache, trains);
        let attended = dropped(output);
        let output = dropped(self.mlp.forward(torch, &normed, trains));
        let sum = functions::add(torch, &attended, &output);
        functions::add(torch, &sum, x)
    }
}

impl PhiAttention {
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
        let mask = arguments.mask.as_ref();
        let is_cached = cache.is_some();
        let project = |part: usize, linear: &Linear| {
            let projection = Projection { part, is_rotated: part < 2 };
            let (shape, is_cached_masked) = (heads.part_shape(part), [is_cached, mask.is_some()]);
            let layout = self.attending.layout(torch, projection, heads, is_cached_masked, x.dtype());
            functions::heads(torch, &linear.forward(torch, x, trains), shape.dims(), layout)
        };
        let [q, k, v] = [project(0, &self.q), project(1, &self.k), project(2, &self.v)];
        let [[q_rot, q_pass], [k_rot, k_pass]] =
            [q, k].map(|x| functions::divided_columns(torch, &x, self.rotated));
        // The variables live until the function returns.
        let [cos, sin] = arguments.tables();
        let [q_rot, k_rot] = [q_rot, k_rot].map(|x| functions::rotate(torch, &x, cos, sin));
        let q = functions::joined(torch, [&q_rot, &q_pass]);
        let k = functions::joined(torch, [&k_rot, &k_pass]);
        let qkv = self.attending.cached(torch, [q, k, v], cache);
        let (y, weights) = self.attending.forward(torch, &qkv, mask, is_cached, trains);
        (self.dense.forward(torch, &y, trains), weights)
    }
}
