//! The output layer and the loss.

use super::embedding::BatchInputs;
use super::norm::{self, NormPosition};
use super::normal;
use crate::{Graph, Initial};
use ops::{CrossEntropy, Linear, LossTerms, Op, Scale};
use spec::{NormPlacement, Transformer};

/// Builds the loss: logits of the next tokens from the residual stream, with the token embedding as weight if they are
/// tied.
pub(super) fn build(graph: &mut Graph, model: &Transformer, x: usize, table: usize, batch: &BatchInputs) {
    let scope = graph.layer("head".to_owned(), false);
    let x = match model.norm_placement {
        NormPlacement::Pre | NormPlacement::Sandwich | NormPlacement::Output => {
            norm::build(graph, model, scope, NormPosition::Before, x)
        }
        // The last block ends with a norm.
        NormPlacement::Post => x,
    };
    // Scaling the input scales the logits, of which there are more. A bias is not scaled.
    let x = match model.logit_scale {
        Some(scale) => graph.node(Op::Scale(Scale { factor: scale as f32 }), scope, vec![x], ["scaled"])[0],
        None => x,
    };
    let weight = if model.tied {
        table
    } else {
        graph.parameter("weight", scope, &[model.vocabulary, model.d_model], normal(model))
    };
    let mut inputs = vec![x, weight];
    if model.head_bias {
        inputs.push(graph.parameter("bias", scope, &[model.vocabulary], Initial::Constant(0.0)));
    }
    let linear = Linear { bias: model.head_bias, activation: None, residual: false, tf32: false };
    let [logits] = graph.node(Op::Linear(linear), scope, inputs, ["logits"]);
    let cap = model.logit_softcap.map(|cap| cap as f32);
    let terms = LossTerms { weighted: batch.weights.is_some(), ..LossTerms::PLAIN };
    let loss = CrossEntropy { cap, ..CrossEntropy::of(terms) };
    let inputs = [Some(logits), Some(batch.targets), batch.weights].into_iter().flatten().collect();
    graph.node(Op::CrossEntropy(loss), scope, inputs, ["loss"]);
}
