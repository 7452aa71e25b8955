//! A block: attention, then a feed-forward layer, each with its norms beside the residual stream.

use super::dropout::{self, Site};
use super::embedding::Parts;
use super::norm::{self, Place};
use super::{attention, mlp};
use crate::{Graph, ScopeId};
use ops::{Add, Op};
use spec::{NormPlacement, Transformer};

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
        let placement = model.norm_placement;
        let input = match placement {
            NormPlacement::Post => x,
            NormPlacement::Pre | NormPlacement::Sandwich => {
                norm::build(graph, model, scope, Place::Before, x)
            }
        };
        let chance = self.site.chance(model, self.batch.seeds);
        // Where nothing comes between, the part's last product adds to the stream.
        let adds = chance.is_none() && placement != NormPlacement::Sandwich;
        let mut y = part(graph, Part { scope, input, residual: adds.then_some(x) });
        if placement == NormPlacement::Sandwich {
            y = norm::build(graph, model, scope, Place::After, y);
        }
        let x = match chance {
            _ if adds => y,
            Some((dropped, seeds)) => dropout::beside(graph, scope, dropped, [y, seeds, x]),
            None => graph.node(Op::Add(Add { stream: true, ..Add::PLAIN }), scope, vec![x, y], ["x"])[0],
        };
        match placement {
            NormPlacement::Post => norm::build(graph, model, scope, Place::Stream, x),
            NormPlacement::Pre | NormPlacement::Sandwich => x,
        }
    }
}
