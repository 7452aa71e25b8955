//! The linear layers of the library's attention, and its norms of queries and keys.

use super::class::Class;
use super::layers::{Linear, Maker};
use super::norm::{Norm, NormPlace};
use crate::functions::{self, Heads, Layout};
use crate::tensor::Tensor;
use crate::torch::Torch;
use ops::Shape;
use spec::Transformer;

pub(super) struct Projections {
    inputs: QkvLayers,
    pub(super) out: Linear,
}

enum QkvLayers {
    /// `q_proj`, `k_proj` and `v_proj`; `q_norm` and `k_norm`, [D].
    Separate(Box<[Linear; 3]>, Option<[Norm; 2]>),
    /// The same with norms of all heads together, [H*D] and [G*D] (OLMo 2 and 3).
    Normed(Box<[Linear; 3]>, [Norm; 2]),
    /// The same with norms of the transposed queries and keys, [D] (Gemma 3).
    NormedByHead(Box<[Linear; 3]>, [Norm; 2]),
    /// `qkv_proj` (Phi-3)
    Stacked(Linear),
}

/// Queries [B, H, T, D], keys and values [B, G, T, D].
pub(super) struct Projected {
    pub(super) parts: [Tensor; 3],
    /// The stacked parts, a variable of the attention layer.
    pub(super) _stacked: Option<Tensor>,
}

impl Projections {
    /// The modules are made in their order in the class.
    pub(super) fn new(maker: Maker<'_>, model: &Transformer, class: Class) -> Projections {
        let channels = model.d_model;
        let [queries, keys] = [model.heads, model.kv_heads].map(|heads| heads * model.head_dim);
        let out = || maker.linear("attention.out", queries, channels, model.bias);
        if class == Class::Phi3 {
            let out = out();
            let stacked = maker.linear("attention.qkv", channels, queries + 2 * keys, model.qkv_bias);
            return Projections { inputs: QkvLayers::Stacked(stacked), out };
        }
        let parts = [("attention.q", queries), ("attention.k", keys), ("attention.v", keys)];
        let linear = Box::new(parts.map(|(path, width)| maker.linear(path, channels, width, model.qkv_bias)));
        let out = out();
        let norms = |widths: [usize; 2]| {
            widths.map(|width| Norm::new(maker, class.norm(maker, NormPlace::Heads), width))
        };
        let inputs = match class {
            Class::Olmo2 => QkvLayers::Normed(linear, norms([queries, keys])),
            Class::Gemma if model.qk_norm => QkvLayers::NormedByHead(linear, norms([model.head_dim; 2])),
            _ => QkvLayers::Separate(linear, model.qk_norm.then(|| norms([model.head_dim; 2]))),
        };
        Projections { inputs, out }
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = Tensor> {
        let (separate, norms, stacked) = match &self.inputs {
            QkvLayers::Separate(linear, norms) => (&linear[..], norms.as_ref(), None),
            QkvLayers::Normed(linear, norms) | QkvLayers::NormedByHead(linear, norms) => {
                (&linear[..], Some(norms), None)
            }
            QkvLayers::Stacked(linear) => (&[][..], None, Some(linear)),
        };
        let linear = separate.iter().chain([&self.out]).chain(stacked).flat_map(Linear::parameters);
        linear.chain(norms.into_iter().flatten().flat_map(Norm::parameters))
    }

    /// x [B, T, C]. `layouts`: those of the gradients.
    pub(super) fn forward(
        &self,
        torch: &Torch,
        x: &Tensor,
        heads: Heads,
        layouts: [Layout; 3],
        trains: bool,
    ) -> Projected {
        let shapes = [0, 1, 2].map(|part| heads.part_shape(part));
        // y.view(B, T, -1, D).transpose(1, 2)
        let by_head =
            |part: usize, y: &Tensor| functions::heads(torch, y, shapes[part].dims(), layouts[part]);
        let each = [0, 1, 2];
        match &self.inputs {
            QkvLayers::Separate(linear, norms) => {
                let project = |part: usize| {
                    let y = linear[part].forward(torch, x, trains);
                    match norms.as_ref().and_then(|norms| norms.get(part)) {
                        None => by_head(part, &y),
                        Some(norm) => {
                            let y = by_head(part, &y);
                            let normed = norm.forward(torch, &y);
                            drop(y);
                            functions::heads(torch, &normed, shapes[part].dims(), Layout::Tokens)
                        }
                    }
                };
                Projected { parts: each.map(project), _stacked: None }
            }
            QkvLayers::Normed(linear, norms) => {
                let parts = each.map(|part| {
                    let y = linear[part].forward(torch, x, trains);
                    norms.get(part).map_or_else(|| y.clone(), |norm| norm.forward(torch, &y))
                });
                Projected { parts: each.map(|part| by_head(part, &parts[part])), _stacked: None }
            }
            QkvLayers::NormedByHead(linear, [q_norm, k_norm]) => {
                let project = |part: usize| by_head(part, &linear[part].forward(torch, x, trains));
                let [mut q, mut k, v] = each.map(project);
                q = q_norm.by_head(torch, &q);
                k = k_norm.by_head(torch, &k);
                Projected { parts: [q, k, v], _stacked: None }
            }
            QkvLayers::Stacked(linear) => {
                let stacked = linear.forward(torch, x, trains);
                let width = |shape: Shape| shape.dims()[1] * shape.last();
                let parts = shapes.map(|shape| functions::columns(torch, &stacked, width(shape)));
                let parts = each.map(|part| by_head(part, &parts[part]));
                Projected { parts, _stacked: Some(stacked) }
            }
        }
    }
}
