//! Norms and their parameters.

use crate::{Graph, Initial, ScopeId};
use ops::{DType, LayerNorm, Op, QkNorm, QkNormHeads, RmsNorm};
use spec::{Norm, QkNormOver, Transformer};

/// The position of a norm in a block.
#[derive(Clone, Copy)]
pub(super) enum NormPosition {
    /// On the input of a sub-layer.
    Before,
    /// On the residual stream itself.
    Stream,
    /// On the output of a sub-layer, before it is added to the residual stream.
    After,
}

/// Normalises rows num[B,T,C].
pub(super) fn build(
    graph: &mut Graph,
    model: &Transformer,
    scope: ScopeId,
    position: NormPosition,
    x: usize,
) -> usize {
    let (channels, epsilon) = (model.d_model, model.norm_epsilon as f32);
    let (names, stream) = match position {
        NormPosition::Before => (["norm.weight", "norm.bias"], false),
        NormPosition::Stream => (["norm.weight", "norm.bias"], true),
        NormPosition::After => (["out_norm.weight", "out_norm.bias"], true),
    };
    let output = if stream { "x" } else { "normed" };
    let mut parameter = |name, initial| graph.parameter(name, scope, &[channels], Initial::Constant(initial));
    match model.norm {
        Norm::Layer => {
            let (weight, bias) = (parameter(names[0], 1.0), parameter(names[1], 0.0));
            let op = Op::LayerNorm(LayerNorm { epsilon, stream, output: DType::F32 });
            let [y, _mean, _rstd] = graph.node(op, scope, vec![x, weight, bias], [output, "mean", "rstd"]);
            y
        }
        Norm::Rms | Norm::RmsZeroCentered => {
            let offset = offset(model.norm);
            let weight = parameter(names[0], 1.0 - offset);
            let op = Op::RmsNorm(RmsNorm { epsilon, offset, stream, output: DType::F32 });
            let [y, _rrms] = graph.node(op, scope, vec![x, weight], [output, "rrms"]);
            y
        }
    }
}

/// Normalises the query and key heads of a qkv num[B,T,(H+2G)D].
pub(super) fn build_qk_norm(graph: &mut Graph, model: &Transformer, scope: ScopeId, qkv: usize) -> usize {
    let offset = offset(model.norm);
    let heads = [model.heads, model.kv_heads];
    // All heads together are one head.
    let groups = match model.qk_norm_over {
        QkNormOver::Head => heads,
        QkNormOver::AllHeads => [1, 1],
    };
    let weights = [("q_norm.weight", 0), ("k_norm.weight", 1)].map(|(name, index)| {
        let channels = heads[index] / groups[index] * model.head_dim;
        graph.parameter(name, scope, &[channels], Initial::Constant(1.0 - offset))
    });
    let heads = QkNormHeads { queries: groups[0], keys: groups[1] };
    let op = Op::QkNorm(QkNorm { heads, epsilon: model.norm_epsilon as f32, offset });
    let [normed, _rrms] =
        graph.node(op, scope, [vec![qkv], weights.to_vec()].concat(), ["normed_qkv", "qk_rrms"]);
    normed
}

/// The offset of the weights.
fn offset(norm: Norm) -> f32 {
    if norm == Norm::RmsZeroCentered { 1.0 } else { 0.0 }
}
