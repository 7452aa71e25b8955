//! A block: attention, then a feed-forward layer, each with its norms beside the residual stream.

use super::norm::{self, Place};
use super::{attention, mlp};
use crate::graph::{Graph, ScopeId};
use crate::ops::{Add, Op};
use crate::spec::{NormPlacement, Transformer};

/// A part of a block.
pub(super) struct Part {
    pub(super) scope: ScopeId,
    /// What goes into it, num[B,T,C].
    pub(super) input: usize,
    /// The residual stream, where its last product adds to that.
    pub(super) residual: Option<usize>,
}

/// The residual stream x num[B,T,C] after the block of that number. Samples may have several documents, which begin at the
/// starts i32[B,T].
pub(super) fn build(
    graph: &mut Graph,
    model: &Transformer,
    number: usize,
    x: usize,
    starts: Option<usize>,
) -> usize {
    let block = graph.layer(format!("blocks.{number}"), true);
    let scope = graph.part(block, "attention");
    let x =
        beside(graph, model, scope, x, |graph, part| attention::build(graph, model, number, &part, starts));
    let scope = graph.part(block, "mlp");
    beside(graph, model, scope, x, |graph, part| mlp::build(graph, model, &part))
}

fn beside(
    graph: &mut Graph,
    model: &Transformer,
    scope: ScopeId,
    x: usize,
    part: impl FnOnce(&mut Graph, Part) -> usize,
) -> usize {
    match model.norm_placement {
        NormPlacement::Pre => {
            let input = norm::build(graph, model, scope, Place::Before, x);
            part(graph, Part { scope, input, residual: Some(x) })
        }
        NormPlacement::Post => {
            let x = part(graph, Part { scope, input: x, residual: Some(x) });
            norm::build(graph, model, scope, Place::Stream, x)
        }
        NormPlacement::Sandwich => {
            let input = norm::build(graph, model, scope, Place::Before, x);
            let y = part(graph, Part { scope, input, residual: None });
            let y = norm::build(graph, model, scope, Place::After, y);
            let op = Op::Add(Add { stream: true, ..Add::PLAIN });
            let [x] = graph.node(op, scope, vec![x, y], ["x"]);
            x
        }
    }
}
