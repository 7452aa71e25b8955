//! Norms with what they learn.

use crate::graph::{Graph, Initial, ScopeId};
use crate::ops::{DType, LayerNorm, Op, RmsNorm};
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
