//! What is computed again in backward instead of kept.

use std::fmt;

use graph::{Scope, ScopeId};
use ops::{Op, OpKind};
use spec::{BlockPart, Budget, KeywordEnum as _, KeywordSet, Recompute};

/// By scope of a graph: what of it is computed again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecomputePlan(Vec<Option<RecomputeRegion>>);

/// Code that is computed again together, right before the backward pass goes through it: all code that has the same unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecomputeRegion {
    /// The first scope of it.
    pub scope: ScopeId,
    pub again: RecomputePolicy,
}

/// What of a unit is computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecomputePolicy {
    All,
    /// What norms give.
    Norms,
    /// What other operations give than these.
    AllBut(KeywordSet<OpKind>),
}

impl RecomputePolicy {
    /// Whether that is what an operation gives.
    pub(super) fn is_of(self, op: &Op) -> bool {
        match self {
            RecomputePolicy::All => true,
            RecomputePolicy::Norms => op.kind() == Some(OpKind::Norm),
            RecomputePolicy::AllBut(saved) => !op.kind().is_some_and(|kind| saved.contains(kind)),
        }
    }
}

impl RecomputePlan {
    /// Those of so many scopes, of which nothing is computed again.
    pub fn none(scopes: usize) -> RecomputePlan {
        RecomputePlan(vec![None; scopes])
    }

    /// What a run says.
    ///
    /// # Errors
    /// A budget: what meets it is to be found.
    pub fn of(recompute: Recompute, scopes: &[Scope]) -> Result<RecomputePlan, Budget> {
        let blocks = blocks(scopes);
        let mut recompute_plan = RecomputePlan::none(scopes.len());
        let mut mark = |block: usize, first: usize, again| recompute_plan.mark(block, first, again);
        match recompute {
            Recompute::None => {}
            Recompute::Block => blocks.iter().for_each(|&block| mark(block, block, RecomputePolicy::All)),
            Recompute::Every(count) => {
                blocks.iter().step_by(count).for_each(|&block| mark(block, block, RecomputePolicy::All))
            }
            Recompute::Save(saved) => {
                blocks.iter().for_each(|&block| mark(block, block, RecomputePolicy::AllBut(saved)))
            }
            Recompute::Segments(segments) => {
                // What is left over is with the last.
                let (len, kept) = (blocks.len() / segments, segments - 1);
                for segment in blocks.chunks(len).take(kept) {
                    segment.iter().for_each(|&block| mark(block, segment[0], RecomputePolicy::All));
                }
            }
            Recompute::Parts(parts) => {
                for (index, scope) in scopes.iter().enumerate() {
                    let Some(block) = scope.parent.map(|parent| &scopes[parent.index()]) else { continue };
                    if !is_block(block) {
                        continue;
                    }
                    let part = scope.path[block.path.len()..].strip_prefix('.');
                    if parts.iter().any(|marked| Some(marked.keyword()) == part) {
                        mark(index, index, RecomputePolicy::All);
                    } else if parts.contains(BlockPart::Norm) {
                        mark(index, index, RecomputePolicy::Norms);
                    }
                }
            }
            Recompute::Budget(budget) => return Err(budget),
        }
        Ok(recompute_plan)
    }

    /// Makes a scope part of the unit that begins with another.
    pub fn mark(&mut self, scope: usize, first: usize, again: RecomputePolicy) {
        self.0[scope] = Some(RecomputeRegion { scope: ScopeId(first as u32), again });
    }

    /// By scope: what the outermost of the marked ones that it lies in is computed again with.
    pub(super) fn outermost(&self, scopes: &[Scope]) -> Vec<Option<RecomputeRegion>> {
        let mut recompute_plan: Vec<Option<RecomputeRegion>> = Vec::with_capacity(scopes.len());
        for (index, scope) in scopes.iter().enumerate() {
            // Parents come before their parts. A program has scopes that are none of the graph's.
            let of_parent = scope.parent.and_then(|parent| recompute_plan[parent.index()]);
            recompute_plan.push(of_parent.or(self.0.get(index).copied().flatten()));
        }
        recompute_plan
    }
}

/// One text for what is the same: part of a run's name.
impl fmt::Display for RecomputePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (scope, unit) in self.0.iter().enumerate() {
            let Some(RecomputeRegion { scope: ScopeId(first), again }) = unit else { continue };
            write!(f, "{scope}<{first}:")?;
            match again {
                RecomputePolicy::All => f.write_str("all")?,
                RecomputePolicy::Norms => f.write_str("norms")?,
                RecomputePolicy::AllBut(saved) => {
                    saved.iter().try_for_each(|kind| write!(f, "-{}", kind.keyword()))?;
                }
            }
            f.write_str(" ")?;
        }
        Ok(())
    }
}

impl FromIterator<Option<RecomputeRegion>> for RecomputePlan {
    fn from_iter<I: IntoIterator<Item = Option<RecomputeRegion>>>(recompute_plan: I) -> RecomputePlan {
        RecomputePlan(recompute_plan.into_iter().collect())
    }
}

/// The model's repeated blocks, as numbers of their scopes.
pub fn blocks(scopes: &[Scope]) -> Vec<usize> {
    scopes.iter().enumerate().filter(|(_, scope)| is_block(scope)).map(|(index, _)| index).collect()
}

fn is_block(scope: &Scope) -> bool {
    scope.block && scope.parent.is_none()
}
