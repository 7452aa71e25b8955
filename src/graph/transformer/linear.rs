//! Linear layers of blocks, with biases or without.

use super::block::Part;
use crate::{Graph, Initial, ScopeId};
use ops::{Activation, Linear, Op, Stacked};

/// A linear layer.
pub(super) struct Layer {
    /// Of its weight and of its bias.
    pub(super) names: [&'static str; 2],
    /// Out and in features.
    pub(super) shape: [usize; 2],
    /// What its weight starts as.
    pub(super) initial: Initial,
    pub(super) bias: bool,
    /// Of its weight.
    pub(super) stacked: Stacked,
}

impl Layer {
    /// What a node takes and does that computes it of x.
    fn of(&self, graph: &mut Graph, scope: ScopeId, x: usize) -> (Linear, Vec<usize>) {
        let weight = graph.parameter(self.names[0], scope, &self.shape, self.initial);
        graph.values[weight].stacked = self.stacked;
        let mut inputs = vec![x, weight];
        if self.bias {
            let zeros = Initial::Constant(0.0);
            inputs.push(graph.parameter(self.names[1], scope, &self.shape[..1], zeros));
        }
        (Linear { bias: self.bias, activation: None, residual: false, tf32: false }, inputs)
    }
}

/// `y = x W^T + bias`
pub(super) fn build(graph: &mut Graph, scope: ScopeId, layer: &Layer, x: usize, name: &'static str) -> usize {
    let (linear, inputs) = layer.of(graph, scope, x);
    let [y] = graph.node(Op::Linear(linear), scope, inputs, [name]);
    y
}

/// `hidden = activation(x W^T + bias)`
pub(super) fn build_activated(
    graph: &mut Graph,
    scope: ScopeId,
    layer: &Layer,
    x: usize,
    activation: Activation,
) -> usize {
    let (linear, inputs) = layer.of(graph, scope, x);
    let op = Op::Linear(Linear { activation: Some(activation), ..linear });
    let names = ["hidden", activation.definition().before];
    let [hidden, _before] = graph.node(op, scope, inputs, names);
    hidden
}

/// `y W^T + bias`, the last product of a part of a block: added to the residual stream, or by itself.
pub(super) fn build_last(graph: &mut Graph, part: &Part, layer: &Layer, y: usize) -> usize {
    let Some(x) = part.residual else { return build(graph, part.scope, layer, y, "projected") };
    let (linear, mut inputs) = layer.of(graph, part.scope, y);
    inputs.push(x);
    let [x] = graph.node(Op::Linear(Linear { residual: true, ..linear }), part.scope, inputs, ["x"]);
    x
}
