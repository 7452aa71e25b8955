//! Norms with what they learn.

use crate::{Graph, Initial, ScopeId};
use ops::{DType, LayerNorm, Op, QkNorm, QkNormHeads, RmsNorm};
use spec::{Norm, Transformer};

/// Where a norm is.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// Before what it normalises the residual stream for.
    Before,
    /// Of the stream itself, which it continues.
    Stream,
    /// Of what is added to the stream.
    After,
}

/// Rows num[B,T,C], normalised.
pub(super) fn build(graph: &mut Graph, model: &Transformer, scope: ScopeId, place: Place, x: usize) -> usize {
    let (channels, epsilon) = (model.d_model, model.norm_epsilon as f32);
    let (names, stream) = match place {
        Place::Before => (["norm.weight", "norm.bias"], false),
        Place::Stream => (["norm.weight", "norm.bias"], true),
        Place::After => (["out_norm.weight", "out_norm.bias"], true),
    };
    let output = if stream { "x" } else { "normed" };
    let mut learnt = |name, initial| graph.parameter(name, scope, &[channels], Initial::Constant(initial));
    match model.norm {
        Norm::Layer => {
            let (weight, bias) = (learnt(names[0], 1.0), learnt(names[1], 0.0));
            let op = Op::LayerNorm(LayerNorm { epsilon, stream, output: DType::F32 });
            let [y, _mean, _rstd] = graph.node(op, scope, vec![x, weight, bias], [output, "mean", "rstd"]);
            y
        }
        Norm::Rms | Norm::RmsZeroCentered => {
            let offset = offset(model.norm);
            let weight = learnt(names[0], 1.0 - offset);
            let op = Op::RmsNorm(RmsNorm { epsilon, offset, stream, output: DType::F32 });
            let [y, _rrms] = graph.node(op, scope, vec![x, weight], [output, "rrms"]);
            y
        }
    }
}

/// A qkv num[B,T,(H+2G)D] whose heads of queries and of keys are normalised.
pub(super) fn build_of_heads(graph: &mut Graph, model: &Transformer, scope: ScopeId, qkv: usize) -> usize {
    let offset = offset(model.norm);
    let weights = ["q_norm.weight", "k_norm.weight"]
        .map(|name| graph.parameter(name, scope, &[model.head_dim], Initial::Constant(1.0 - offset)));
    let heads = QkNormHeads { queries: model.heads, keys: model.kv_heads };
    let op = Op::QkNorm(QkNorm { heads, epsilon: model.norm_epsilon as f32, offset });
    let [normed, _rrms] =
        graph.node(op, scope, [vec![qkv], weights.to_vec()].concat(), ["normed_qkv", "qk_rrms"]);
    normed
}

/// What is added to weights.
fn offset(norm: Norm) -> f32 {
    if norm == Norm::RmsZeroCentered { 1.0 } else { 0.0 }
}
