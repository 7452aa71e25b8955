//! Norms with what they learn.

use crate::graph::{Graph, Initial, ScopeId};
use crate::ops::{DType, HeadNorm, LayerNorm, NormedHeads, Op, RmsNorm};
use crate::spec::{Norm, Transformer};

/// The rows of the residual stream x num[B,T,C], normalised.
pub(super) fn build(graph: &mut Graph, model: &Transformer, scope: ScopeId, x: usize) -> usize {
    let (channels, epsilon) = (model.d_model, model.norm_epsilon as f32);
    let weight = graph.parameter("norm.weight", scope, &[channels], Initial::Constant(1.0));
    match model.norm {
        Norm::Layer => {
            let bias = graph.parameter("norm.bias", scope, &[channels], Initial::Constant(0.0));
            let op = Op::LayerNorm(LayerNorm { epsilon, output: DType::F32 });
            let names = ["normed", "mean", "rstd"];
            let [y, _mean, _rstd] = graph.node(op, scope, vec![x, weight, bias], names);
            y
        }
        Norm::Rms => {
            let op = Op::RmsNorm(RmsNorm { epsilon, output: DType::F32 });
            let [y, _rrms] = graph.node(op, scope, vec![x, weight], ["normed", "rrms"]);
            y
        }
    }
}

/// A qkv num[B,T,(H+2G)D] whose heads of queries and of keys are normalised.
pub(super) fn build_of_heads(graph: &mut Graph, model: &Transformer, scope: ScopeId, qkv: usize) -> usize {
    let weights = ["q_norm.weight", "k_norm.weight"]
        .map(|name| graph.parameter(name, scope, &[model.head_dim], Initial::Constant(1.0)));
    let heads = NormedHeads { queries: model.heads, keys: model.kv_heads };
    let op = Op::HeadNorm(HeadNorm { heads, epsilon: model.norm_epsilon as f32 });
    let [normed, _rrms] =
        graph.node(op, scope, [vec![qkv], weights.to_vec()].concat(), ["normed_qkv", "qk_rrms"]);
    normed
}
