//! GPT-2's decoder (Radford et al. 2019): pre-norm blocks, tanh GELU, learned positions, causal attention, head
//! tied to the token embedding.
//!
//! B micro-batch, T context, C d_model, H heads, V vocabulary.

use super::{Graph, Initial, ScopeId};
use crate::ops::{Activation, Attending, Attention, CrossEntropy, DType, Embedding, LayerNorm, Linear, Op};
use crate::spec::Transformer;

const DEVIATION: f32 = 0.02;
const EPSILON: f32 = 1e-5;
/// Width of the feed-forward layer over d_model.
const EXPANSION: usize = 4;

pub(super) fn build(model: &Transformer, micro_batch: usize) -> Graph {
    let mut graph = Graph::new();
    let (t, c, v) = (model.context, model.d_model, model.vocabulary);
    let embedding = graph.layer("embedding".to_owned(), false);
    let [tokens, targets] = model.parts().map(|part| graph.input(embedding, &part, micro_batch));
    let table = graph.parameter("table", embedding, &[v, c], Initial::Normal(DEVIATION));
    let positions = graph.parameter("positions", embedding, &[t, c], Initial::Normal(DEVIATION));
    let [mut x] = graph.node(
        Op::Embedding(Embedding { output: DType::F32 }),
        embedding,
        vec![tokens, table, positions],
        ["x"],
    );

    for layer in 0..model.layers {
        x = block(&mut graph, model, layer, x);
    }

    let head = graph.layer("head".to_owned(), false);
    let x = norm(&mut graph, head, c, x);
    let logits = Op::Linear(Linear { bias: false, activation: None, residual: false, tf32: false });
    let [logits] = graph.node(logits, head, vec![x, table], ["logits"]);
    graph.node(Op::CrossEntropy(CrossEntropy::PLAIN), head, vec![logits, targets], ["loss"]);
    graph
}

/// `x + attention(norm(x))`, then `x + mlp(norm(x))`. Projections into the residual stream start smaller by the
/// square root of their number, as GPT-2's do.
fn block(graph: &mut Graph, model: &Transformer, layer: usize, x: usize) -> usize {
    let c = model.d_model;
    let into_residual = Initial::Normal(DEVIATION / (2.0 * model.layers as f32).sqrt());
    let block = graph.layer(format!("blocks.{layer}"), true);

    let attention = graph.part(block, "attention");
    let y = norm(graph, attention, c, x);
    let [qkv] = linear(graph, attention, "qkv", [3 * c, c], Initial::Normal(DEVIATION), y, None);
    let attending = Attending::causal(model.heads);
    let [out, _lse] =
        graph.node(Op::Attention(Attention { attending }), attention, vec![qkv], ["out", "lse"]);
    let [x] = linear(graph, attention, "x", [c, c], into_residual, out, Some(x));

    let mlp = graph.part(block, "mlp");
    let y = norm(graph, mlp, c, x);
    let weight = graph.parameter("up.weight", mlp, &[EXPANSION * c, c], Initial::Normal(DEVIATION));
    let bias = graph.parameter("up.bias", mlp, &[EXPANSION * c], Initial::Constant(0.0));
    let up = Linear { bias: true, activation: Some(Activation::GeluTanh), residual: false, tf32: false };
    let [hidden, _before] = graph.node(Op::Linear(up), mlp, vec![y, weight, bias], ["hidden", "before_gelu"]);
    let [x] = linear(graph, mlp, "x", [c, EXPANSION * c], into_residual, hidden, Some(x));
    x
}

/// A layer norm with its weight and bias.
fn norm(graph: &mut Graph, scope: ScopeId, channels: usize, x: usize) -> usize {
    let weight = graph.parameter("norm.weight", scope, &[channels], Initial::Constant(1.0));
    let bias = graph.parameter("norm.bias", scope, &[channels], Initial::Constant(0.0));
    let op = Op::LayerNorm(LayerNorm { epsilon: EPSILON, output: DType::F32 });
    let [y, _mean, _rstd] = graph.node(op, scope, vec![x, weight, bias], ["normed", "mean", "rstd"]);
    y
}

/// A linear layer with bias, and the residual stream added where it is given.
fn linear(
    graph: &mut Graph,
    scope: ScopeId,
    output: &'static str,
    weight: [usize; 2],
    initial: Initial,
    x: usize,
    residual: Option<usize>,
) -> [usize; 1] {
    let (weight_name, bias_name) = match residual {
        None => ("qkv.weight", "qkv.bias"),
        Some(_) => ("out.weight", "out.bias"),
    };
    let w = graph.parameter(weight_name, scope, &weight, initial);
    let b = graph.parameter(bias_name, scope, &weight[..1], Initial::Constant(0.0));
    let mut inputs = vec![x, w, b];
    inputs.extend(residual);
    let op = Linear { bias: true, activation: None, residual: residual.is_some(), tf32: false };
    graph.node(Op::Linear(op), scope, inputs, [output])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpt2_has_its_parameters() {
        let model = Transformer {
            layers: 12,
            d_model: 768,
            heads: 12,
            context: 1024,
            vocabulary: 50257,
            weights: None,
        };
        assert_eq!(build(&model, 1).parameters(), 124_439_808);
    }
}
