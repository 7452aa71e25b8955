//! The feed-forward layer: two linear layers with an activation or a gate between them. With experts, each token goes
//! through those of some experts, which a router selects.
//!
//! E experts, K experts per token, R = B*T*K pairs of a token and one of its experts.

use super::linear::{self, LinearLayer};
use super::sub_layer::SubLayer;
use super::{into_residual, normal};
use crate::{Graph, Initial};
use ops::{Activation, Add, Combine, Dispatch, ExpertLinear, Gated, Op, Route, StackedRows};
use spec::{Experts, MlpActivation, Transformer};

/// The name of a router's weight.
pub(crate) const ROUTER: &str = "router.weight";

pub(super) fn build(graph: &mut Graph, model: &Transformer, sub_layer: &SubLayer) -> usize {
    let (c, f, bias, scope) = (model.d_model, model.d_ff, model.bias, sub_layer.scope);
    let hidden = match model.activation {
        MlpActivation::Plain(activation) => {
            let (names, stacked) = (["up.weight", "up.bias"], StackedRows::default());
            let layer = LinearLayer { names, shape: [f, c], initial: normal(model), bias, stacked };
            linear::build_activated(graph, scope, &layer, sub_layer.input, activation)
        }
        MlpActivation::Gate(activation) => {
            if let Some(experts) = &model.experts {
                return of_experts(graph, model, experts, activation, sub_layer);
            }
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

/// A mixture of experts with gates.
fn of_experts(
    graph: &mut Graph,
    model: &Transformer,
    &Experts { count, per_token, normalize }: &Experts,
    activation: Activation,
    &SubLayer { scope, input, residual }: &SubLayer,
) -> usize {
    let (c, f) = (model.d_model, model.d_ff);
    let names = [ROUTER, "router.bias"];
    let stacked = StackedRows::default();
    let router = LinearLayer { names, shape: [count, c], initial: normal(model), bias: false, stacked };
    let logits = linear::build(graph, scope, &router, input, "router");
    let route = Op::Route(Route { experts_per_row: per_token, normalize });
    let names = ["weights", "places", "order", "ends"];
    let [weights, places, order, ends] = graph.node(route, scope, vec![logits], names);
    let [rows] = graph.node(Op::Dispatch(Dispatch), scope, vec![input, order, places], ["rows"]);
    // The layer of each expert, rows num[R,K] to num[R,M]; `stacked`: the matrices in each expert's weight.
    let linear =
        |graph: &mut Graph, x, name, weight, shape: [usize; 2], initial: Initial, stacked: StackedRows| {
            let weights = graph.parameter(weight, scope, &[count * shape[0], shape[1]], initial);
            graph.values[weights].stacked = stacked.of_experts(count);
            let op = Op::ExpertLinear(ExpertLinear);
            let [y] = graph.node(op, scope, vec![x, weights, ends], [name]);
            y
        };
    let gates = StackedRows::new(&[f, f]);
    let both = linear(graph, rows, "gate_up", "experts.gate_up.weight", [2 * f, c], normal(model), gates);
    let [hidden] = graph.node(Op::Gated(Gated { activation }), scope, vec![both], ["hidden"]);
    let (initial, stacked) = (into_residual(model), StackedRows::default());
    let rows = linear(graph, hidden, "expert_out", "experts.out.weight", [c, f], initial, stacked);
    let inputs = vec![rows, order, places, weights];
    let [y] = graph.node(Op::Combine(Combine), scope, inputs, ["projected"]);
    match residual {
        None => y,
        Some(x) => graph.node(Op::Add(Add { stream: true, ..Add::PLAIN }), scope, vec![x, y], ["x"])[0],
    }
}
