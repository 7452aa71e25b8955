//! Where a model leaves elements out by chance.

use crate::{Graph, ScopeId};
use ops::{Dropout, Dropped, Op};
use spec::Transformer;

/// A place that may: sites are numbered the same whichever of them do.
#[derive(Clone, Copy)]
pub(super) enum Site {
    /// The residual stream where it begins.
    Embedding,
    /// The weights of a block's attention.
    Attention(usize),
    /// What a block's attention adds to the stream.
    AfterAttention(usize),
    /// What its feed-forward layer does.
    AfterMlp(usize),
}

impl Site {
    fn number(self) -> u32 {
        let number = match self {
            Site::Embedding => 0,
            Site::Attention(block) => 1 + 3 * block,
            Site::AfterAttention(block) => 2 + 3 * block,
            Site::AfterMlp(block) => 3 + 3 * block,
        };
        number as u32
    }

    /// What is dropped there, if anything is, and the seeds by which.
    pub(super) fn chance(self, model: &Transformer, seeds: Option<usize>) -> Option<(Dropped, usize)> {
        let dropped = self.dropped(model)?;
        Some((dropped, seeds.expect("a model that drops anything has seeds")))
    }

    fn dropped(self, model: &Transformer) -> Option<Dropped> {
        let rates = model.dropout;
        let rate = match self {
            Site::Embedding => rates.embedding,
            Site::Attention(_) => rates.attention,
            Site::AfterAttention(_) | Site::AfterMlp(_) => rates.residual,
        };
        Dropped::at_rate(rate, self.number())
    }
}

/// The residual stream num[B,T,C] with some elements dropped.
pub(super) fn of_stream(
    graph: &mut Graph,
    scope: ScopeId,
    dropped: Dropped,
    x: usize,
    seeds: usize,
) -> usize {
    let op = Op::Dropout(Dropout { dropped, residual: false, to: None });
    let [x] = graph.node(op, scope, vec![x, seeds], ["x"]);
    x
}

/// The residual stream num[B,T,C] and what a part of a block adds to it, of which some elements are dropped.
pub(super) fn beside(
    graph: &mut Graph,
    scope: ScopeId,
    dropped: Dropped,
    [y, seeds, x]: [usize; 3],
) -> usize {
    let op = Op::Dropout(Dropout { dropped, residual: true, to: None });
    let [x] = graph.node(op, scope, vec![y, seeds, x], ["x"]);
    x
}
