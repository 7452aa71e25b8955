//! `x + mlp(norm(x))`: two linear layers with an activation or a gate between them.

use super::linear::{self, Layer};
use super::{NORMAL, into_residual, norm};
use crate::graph::{Graph, ScopeId};
use crate::ops::{Gated, Op};
use crate::spec::Transformer;

pub(super) fn build(graph: &mut Graph, model: &Transformer, block: ScopeId, x: usize) -> usize {
    let (c, f) = (model.d_model, model.d_ff);
    let scope = graph.part(block, "mlp");
    let y = norm::build(graph, model, scope, x);
    let activation = model.activation.function();
    let hidden = if model.activation.is_gate() {
        // One product for both: the gate's rows come first.
        let names = ["gate_up.weight", "gate_up.bias"];
        let layer = Layer { names, shape: [2 * f, c], initial: NORMAL };
        let both = linear::build(graph, model, scope, &layer, y, "gate_up");
        let [hidden] = graph.node(Op::Gated(Gated { activation }), scope, vec![both], ["hidden"]);
        hidden
    } else {
        let layer = Layer { names: ["up.weight", "up.bias"], shape: [f, c], initial: NORMAL };
        linear::build_activated(graph, model, scope, &layer, y, activation)
    };
    let layer = Layer { names: ["out.weight", "out.bias"], shape: [c, f], initial: into_residual(model) };
    linear::build_residual(graph, model, scope, &layer, hidden, x)
}
