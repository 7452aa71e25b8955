//! A block: attention, then a feed-forward layer, each with its norms beside the residual stream.

use super::dropout::{self, Site};
use super::embedding::Parts;
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

/// The residual stream x num[B,T,C] after the block of that number.
pub(super) fn build(graph: &mut Graph, model: &Transformer, number: usize, x: usize, batch: &Parts) -> usize {
    let block = graph.layer(format!("blocks.{number}"), true);
    let scope = graph.part(block, "attention");
    let beside_it = Beside { model, scope, batch, site: Site::AfterAttention(number) };
    let x = beside_it.build(graph, x, |graph, part| attention::build(graph, model, number, &part, batch));
    let scope = graph.part(block, "mlp");
    let beside_it = Beside { model, scope, batch, site: Site::AfterMlp(number) };
    beside_it.build(graph, x, |graph, part| mlp::build(graph, model, &part))
}

/// What is beside a part of a block.
struct Beside<'a> {
    model: &'a Transformer,
    scope: ScopeId,
    batch: &'a Parts,
    site: Site,
}

impl Beside<'_> {
    fn build(&self, graph: &mut Graph, x: usize, part: impl FnOnce(&mut Graph, Part) -> usize) -> usize {
        let Beside { model, scope, .. } = *self;
        // Whether something is done to what the part gives before it is added.
        let is_dropped = self.site.dropped(model).is_some();
        match model.norm_placement {
            NormPlacement::Pre => {
                let input = norm::build(graph, model, scope, Place::Before, x);
                let residual = (!is_dropped).then_some(x);
                let y = part(graph, Part { scope, input, residual });
                if is_dropped { self.add(graph, y, x) } else { y }
            }
            NormPlacement::Post => {
                let residual = (!is_dropped).then_some(x);
                let y = part(graph, Part { scope, input: x, residual });
                let x = if is_dropped { self.add(graph, y, x) } else { y };
                norm::build(graph, model, scope, Place::Stream, x)
            }
            NormPlacement::Sandwich => {
                let input = norm::build(graph, model, scope, Place::Before, x);
                let y = part(graph, Part { scope, input, residual: None });
                let y = norm::build(graph, model, scope, Place::After, y);
                self.add(graph, y, x)
            }
        }
    }

    /// The residual stream x and what is added to it.
    fn add(&self, graph: &mut Graph, y: usize, x: usize) -> usize {
        match (self.site.dropped(self.model), self.batch.seeds) {
            (Some(dropped), Some(seeds)) => dropout::beside(graph, self.scope, dropped, [y, seeds, x]),
            _ => {
                let op = Op::Add(Add { stream: true, ..Add::PLAIN });
                let [x] = graph.node(op, self.scope, vec![x, y], ["x"]);
                x
            }
        }
    }
}
