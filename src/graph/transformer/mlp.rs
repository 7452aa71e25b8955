//! The feed-forward layer: two linear layers with an activation or a gate between them.

use super::linear::{self, LinearLayer};
use super::sub_layer::SubLayer;
use super::{into_residual, normal};
use crate::Graph;
use ops::{Gated, Op, StackedRows};
use spec::{MlpActivation, Transformer};

pub(super) fn build(graph: &mut Graph, model: &Transformer, sub_layer: &SubLayer) -> usize {
    let (c, f, bias, scope) = (model.d_model, model.d_ff, model.bias, sub_layer.scope);
    let hidden = match model.activation {
        MlpActivation::Plain(activation) => {
            let (names, stacked) = (["up.weight", "up.bias"], StackedRows::default());
            let layer = LinearLayer { names, shape: [f, c], initial: normal(model), bias, stacked };
            linear::build_activated(graph, scope, &layer, sub_layer.input, activation)
        }
        MlpActivation::Gate(activation) => {
            // One matmul computes both; the gate's rows come first.
            let names = ["gate_up.weight", "gate_up.bias"];
            let stacked = StackedRows::new(&[f, f]);
            let layer = LinearLayer { names, shape: [2 * f, c], initial: normal(model), bias, stacked };
            let both = linear::build(graph, scope, &layer, sub_layer.input, "gate_up");
            let [hidden] = graph.node(Op::Gated(Gated { activation }), scope, vec![both], ["hidden"]);
            hidden
        }
    };
    let (names, initial, stacked) =
        (["out.weight", "out.bias"], into_residual(model), StackedRows::default());
    let layer = LinearLayer { names, shape: [c, f], initial, bias, stacked };
    linear::build_last(graph, sub_layer, &layer, hidden)
}
