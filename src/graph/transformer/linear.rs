//! Linear layers of blocks, with an optional bias.

use super::sub_layer::SubLayer;
use crate::{Graph, Initial, ScopeId};
use ops::{Activation, Linear, Op, StackedRows};

/// A linear layer.
pub(super) struct LinearLayer {
    /// Names of weight and bias.
    pub(super) names: [&'static str; 2],
    /// Output and input features.
    pub(super) shape: [usize; 2],
    /// Initialisation of the weight.
    pub(super) initial: Initial,
    pub(super) bias: bool,
    /// The matrices stacked in the weight.
    pub(super) stacked: StackedRows,
}

impl LinearLayer {
    /// The operation and its inputs for input x. Adds the parameters.
    fn operation(&self, graph: &mut Graph, scope: ScopeId, x: usize) -> (Linear, Vec<usize>) {
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
pub(super) fn build(
    graph: &mut Graph,
    scope: ScopeId,
    layer: &LinearLayer,
    x: usize,
    name: &'static str,
) -> usize {
    let (linear, inputs) = layer.operation(graph, scope, x);
    let [y] = graph.node(Op::Linear(linear), scope, inputs, [name]);
    y
}

/// `hidden = activation(x W^T + bias)`
pub(super) fn build_activated(
    graph: &mut Graph,
    scope: ScopeId,
    layer: &LinearLayer,
    x: usize,
    activation: Activation,
) -> usize {
    let (linear, inputs) = layer.operation(graph, scope, x);
    let op = Op::Linear(Linear { activation: Some(activation), ..linear });
    let names = ["hidden", activation.definition().before];
    let [hidden, _before] = graph.node(op, scope, inputs, names);
    hidden
}

/// `y W^T + bias`, the last matmul of a sub-layer, with the residual stream added if the sub-layer has one.
pub(super) fn build_last(graph: &mut Graph, sub_layer: &SubLayer, layer: &LinearLayer, y: usize) -> usize {
    let Some(x) = sub_layer.residual else { return build(graph, sub_layer.scope, layer, y, "projected") };
    let (linear, mut inputs) = layer.operation(graph, sub_layer.scope, y);
    inputs.push(x);
    let [x] = graph.node(Op::Linear(Linear { residual: true, ..linear }), sub_layer.scope, inputs, ["x"]);
    x
}
