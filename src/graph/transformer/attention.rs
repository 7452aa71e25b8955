//! `x + attention(norm(x))`

use super::linear::{self, Layer};
use super::{NORMAL, into_residual, norm};
use crate::graph::{Graph, ScopeId};
use crate::ops::{Attending, Attention, Op, Rotary};
use crate::spec::{Positions, Transformer};

pub(super) fn build(graph: &mut Graph, model: &Transformer, block: ScopeId, x: usize) -> usize {
    let c = model.d_model;
    let scope = graph.part(block, "attention");
    let y = norm::build(graph, model, scope, x);
    let layer = Layer { names: ["qkv.weight", "qkv.bias"], shape: [3 * c, c], initial: NORMAL };
    let mut qkv = linear::build(graph, model, scope, &layer, y, "qkv");
    if model.positions == Positions::Rotary {
        let frequencies = model.rotary.frequencies();
        let rotary = Rotary { rotated: 2 * model.heads, head: model.head_dim(), frequencies, inverse: false };
        [qkv] = graph.node(Op::Rotary(rotary), scope, vec![qkv], ["rotated"]);
    }
    let attending = Attending::causal(model.heads);
    let [out, _lse] = graph.node(Op::Attention(Attention { attending }), scope, vec![qkv], ["out", "lse"]);
    let layer = Layer { names: ["out.weight", "out.bias"], shape: [c, c], initial: into_residual(model) };
    linear::build_residual(graph, model, scope, &layer, out, x)
}
