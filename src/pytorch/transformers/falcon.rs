//! The layers of `FalconModel`, which always makes a mask, so that its attention is never FlashAttention.

use super::body::{Arguments, Cache, Layer};
use super::layers::{Linear, Maker};
use super::mlp::Mlp;
use super::norm::{Norm, NormClass};
use super::parallel::ParallelLayer;
use crate::functions::{self, Heads, Layout};
use crate::tensor::Tensor;
use crate::torch::Torch;
use ops::Shape;
use spec::{SubLayers, Transformer};

/// `FalconDecoderLayer`
pub(super) struct FalconLayer {
    attention: FalconAttention,
    mlp: Mlp,
    norms: Norms,
}

/// The layer's norms, in the order of its modules.
enum Norms {
    Shared(Norm),
    Parallel { attention: Norm, mlp: Norm },
    Sequential { mlp: Norm, attention: Norm },
}

/// `FalconAttention`
struct FalconAttention {
    qkv: Linear,
    dense: Linear,
    stacking: Stacking,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

/// The order of the rows of the stacked layer.
enum Stacking {
    /// `new_decoder_architecture`: queries that share a key, their key and their value. Keys are copied for each query head.
    Groups,
    /// All queries, the key and the value.
    MultiQuery,
    /// Each head's query, key and value.
    Heads,
}

impl ParallelLayer for FalconLayer {
    fn new(maker: Maker<'_>, model: &Transformer, _index: usize) -> FalconLayer {
        let (channels, head_dim) = (model.d_model, model.head_dim);
        let stacking = match (model.is_new_falcon(), model.kv_heads) {
            (true, _) => Stacking::Groups,
            (false, 1) => Stacking::MultiQuery,
            (false, _) => Stacking::Heads,
        };
        let rows = (model.heads + 2 * model.kv_heads) * head_dim;
        let attention = FalconAttention {
            qkv: maker.linear("attention.qkv", channels, rows, model.bias),
            dense: maker.linear("attention.out", channels, channels, model.bias),
            stacking,
            heads: model.heads,
            kv_heads: model.kv_heads,
            head_dim,
        };
        let mlp = Mlp::plain(maker, model, false);
        let norm = || Norm::new(maker, NormClass::Layer, channels);
        let norms = match model.sub_layers {
            SubLayers::ParallelSharedNorm => Norms::Shared(norm()),
            SubLayers::Parallel => Norms::Parallel { attention: norm(), mlp: norm() },
            SubLayers::Sequential => Norms::Sequential { mlp: norm(), attention: norm() },
        };
        FalconLayer { attention, mlp, norms }
    }

    fn parameters(&self) -> Vec<Tensor> {
        let attention = [&self.attention.qkv, &self.attention.dense].into_iter().flat_map(Linear::parameters);
        let norms = match &self.norms {
            Norms::Shared(norm) => vec![norm],
            Norms::Parallel { attention: first, mlp: second }
            | Norms::Sequential { mlp: first, attention: second } => vec![first, second],
        };
        let norms = norms.into_iter().flat_map(Norm::parameters);
        attention.chain(self.mlp.parameters()).chain(norms).collect()
    }
}

impl Layer for FalconLayer {
    fn forward(
        &self,
        torch: &Torch,
        x: &Tensor,
        arguments: &Arguments,
        cache: Option<&mut Cache>,
        trains: bool,
    ) -> Tensor {
        let attend = |normed: &Tensor| self.attention.forward(torch, normed, arguments, cache, trains);
        let (attention_norm, mlp_norm) = match &self.norms {
            Norms::Shared(norm) => (norm, None),
            Norms::Parallel { attention, mlp } => (attention, Some(mlp)),
            Norms::Sequential { mlp, attention } => {
                let normed = attention.forward(torch, x);
                let attended = attend(&normed);
                let residual = functions::add(torch, x, &attended);
                let normed = mlp.forward(torch, &residual);
                let output = self.mlp.forward(torch, &normed, trains);
                return functions::add(torch, &residual, &output);
            }
        };
        let attention_normed = attention_norm.forward(torch, x);
        let mlp_normed = match mlp_norm {
            Some(norm) => norm.forward(torch, x),
            None => attention_normed.clone(),
        };
        let attended = attend(&attention_normed);
        let output = self.mlp.forward(torch, &mlp_normed, trains);
        let sum = functions::add_in_place(torch, &output, &attended);
        functions::add(torch, x, &sum)
    }
}

impl FalconAttention {
    /// x [B, T, C]
    fn forward(
        &self,
        torch: &Torch,
        x: &Tensor,
        arguments: &Arguments,
        cache: Option<&mut Cache>,
        trains: bool,
    ) -> Tensor {
        let [cos, sin] = arguments.tables();
        let mask = arguments.mask.as_ref().map(Tensor::shape);
        let &[batch, sequence, channels] = x.shape().dims() else { unreachable!("x is [B, T, C]") };
        let (queries, head) = (self.heads, self.head_dim);
        let keys = if matches!(self.stacking, Stacking::MultiQuery) { 1 } else { queries };
        let heads = Heads { batch, sequence, queries, keys, head, by_head: false, is_sliced: false };
        let qkv = self.qkv.forward(torch, x, trains);
        let by_head = |x: &Tensor, shape: Shape| functions::heads(torch, x, shape.dims(), Layout::Tokens);
        let [q, k, v] = {
            let [q, k, v] = self.split(torch, &qkv);
            [by_head(&q, heads.query_shape()), by_head(&k, heads.key_shape()), by_head(&v, heads.key_shape())]
        };
        let [q, k] = {
            let unrotated = [q, k];
            unrotated.each_ref().map(|x| functions::rotate(torch, x, cos, sin))
        };
        let [k, v] = match cache {
            None => [k, v],
            Some(cache) => cache.update(torch, [k, v], false),
        };
        let y = functions::scaled_dot_product_attention(torch, [&q, &k, &v], mask, heads, false, false);
        let y = functions::heads(torch, &y, &[batch, sequence, channels], Layout::Tokens);
        self.dense.forward(torch, &y, trains)
    }

    /// `_split_heads`: queries, keys and values, [B*T, H, D] each.
    fn split(&self, torch: &Torch, qkv: &Tensor) -> [Tensor; 3] {
        let (queries, groups, head) = (self.heads, self.kv_heads, self.head_dim);
        let rows = qkv.shape().rows();
        let per_group = queries / groups;
        let all = [rows, groups, per_group + 2, head];
        let qkv = functions::heads(torch, qkv, &all, Layout::Tokens);
        let slice = |count: usize| functions::slice(torch, &qkv, Shape::new(&[rows, groups, count, head]));
        let listed =
            |copies: bool| functions::listed(torch, &qkv, Shape::new(&[rows, groups, 1, head]), copies);
        match self.stacking {
            Stacking::Heads => [(); 3].map(|()| slice(1)),
            Stacking::MultiQuery => [slice(per_group), listed(false), listed(false)],
            Stacking::Groups => {
                // The gradient of rotated keys lies in memory by head.
                let copies = per_group == 1 && groups > 1;
                let parts = [slice(per_group), listed(copies), listed(false)];
                // [torch.broadcast_to(x, query.shape).flatten(2, 3) for x in ..]
                let is_copied = per_group > 1 && groups > 1;
                let q = if is_copied { functions::copied(torch, &parts[0]) } else { parts[0].clone() };
                let [k, v] = [&parts[1], &parts[2]].map(|x| functions::expanded(torch, x, q.shape()));
                [q, k, v]
            }
        }
    }
}
