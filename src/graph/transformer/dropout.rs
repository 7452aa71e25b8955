//! Dropout sites of a model.

use crate::{Graph, ScopeId};
use ops::{Dropout, DropoutMask, Op};
use spec::Transformer;

/// A dropout site. Its number does not depend on which other sites have dropout.
#[derive(Clone, Copy)]
pub(super) enum DropoutSite {
    /// The output of the embedding.
    Embedding,
    /// The attention probabilities of a block.
    Attention(usize),
    /// The attention output of a block.
    AfterAttention(usize),
    /// The feed-forward output of a block.
    AfterMlp(usize),
}

impl DropoutSite {
    fn number(self) -> u32 {
        let number = match self {
            DropoutSite::Embedding => 0,
            DropoutSite::Attention(block) => 1 + 3 * block,
            DropoutSite::AfterAttention(block) => 2 + 3 * block,
            DropoutSite::AfterMlp(block) => 3 + 3 * block,
        };
        number as u32
    }

    /// The dropout of this site, if its rate is above 0, with the seeds.
    pub(super) fn dropout(self, model: &Transformer, seeds: Option<usize>) -> Option<(DropoutMask, usize)> {
        let dropped = self.dropped(model)?;
        Some((dropped, seeds.expect("a model with dropout has seeds")))
    }

    fn dropped(self, model: &Transformer) -> Option<DropoutMask> {
        let rates = model.dropout;
        let rate = match self {
            DropoutSite::Embedding => rates.embedding,
            DropoutSite::Attention(_) => rates.attention,
            DropoutSite::AfterAttention(_) | DropoutSite::AfterMlp(_) => rates.residual,
        };
        DropoutMask::at_rate(rate, self.number())
    }
}

/// Dropout of the residual stream num[B,T,C].
pub(super) fn without_residual(
    graph: &mut Graph,
    scope: ScopeId,
    dropped: DropoutMask,
    x: usize,
    seeds: usize,
) -> usize {
    let op = Op::Dropout(Dropout { dropped, residual: false, stream: true, to: None });
    let [x] = graph.node(op, scope, vec![x, seeds], ["x"]);
    x
}

/// Adds y to the residual stream x, both num[B,T,C], with dropout of y.
pub(super) fn with_residual(
    graph: &mut Graph,
    scope: ScopeId,
    dropped: DropoutMask,
    [y, seeds, x]: [usize; 3],
) -> usize {
    let op = Op::Dropout(Dropout { dropped, residual: true, stream: false, to: None });
    let [x] = graph.node(op, scope, vec![y, seeds, x], ["x"]);
    x
}
