//! The recompute plan: which scopes recompute which operations in backward.

use std::fmt;

use graph::{Scope, ScopeId};
use ops::{Op, OpKind};
use spec::{BlockPart, Budget, KeywordEnum as _, KeywordSet, Recompute};

/// By scope of a graph: its recompute region, if it is in one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecomputePlan(Vec<Option<RecomputeRegion>>);

/// Code that is recomputed together, right before its backward pass: all scopes with the same region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecomputeRegion {
    /// The region's first scope.
    pub scope: ScopeId,
    pub policy: RecomputePolicy,
}

/// The operations of a region that are recomputed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecomputePolicy {
    All,
    /// The outputs of norms.
    Norms,
    /// All operations except these.
    AllBut(KeywordSet<OpKind>),
}

impl RecomputePolicy {
    /// Whether the outputs of an operation are recomputed.
    pub(super) fn recomputes(self, op: &Op) -> bool {
        match self {
            RecomputePolicy::All => true,
            RecomputePolicy::Norms => op.kind() == Some(OpKind::Norm),
            RecomputePolicy::AllBut(saved) => !op.kind().is_some_and(|kind| saved.contains(kind)),
        }
    }
}

impl RecomputePlan {
    /// The plan for `scopes` scopes without recomputation.
    pub fn none(scopes: usize) -> RecomputePlan {
        RecomputePlan(vec![None; scopes])
    }

    /// The plan that a run's `recompute` key describes.
    ///
    /// # Errors
    /// `recompute` is a budget, which the planner resolves by a search.
    pub fn of(recompute: Recompute, scopes: &[Scope]) -> Result<RecomputePlan, Budget> {
        let blocks = blocks(scopes);
        let mut recompute_plan = RecomputePlan::none(scopes.len());
        let mut mark = |block: usize, first: usize, policy| recompute_plan.set(block, first, policy);
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
                // The last segment takes the remainder and is kept.
                let (len, recomputed) = (blocks.len() / segments, segments - 1);
                for segment in blocks.chunks(len).take(recomputed) {
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

    /// Adds a scope to the region that begins with the scope `first`.
    pub fn set(&mut self, scope: usize, first: usize, policy: RecomputePolicy) {
        self.0[scope] = Some(RecomputeRegion { scope: ScopeId(first as u32), policy });
    }

    /// By scope: the region of its outermost ancestor that has one.
    pub(super) fn outermost(&self, scopes: &[Scope]) -> Vec<Option<RecomputeRegion>> {
        let mut recompute_plan: Vec<Option<RecomputeRegion>> = Vec::with_capacity(scopes.len());
        for (index, scope) in scopes.iter().enumerate() {
            // Parents precede their children. A program has scopes that the graph does not have.
            let parent_region = scope.parent.and_then(|parent| recompute_plan[parent.index()]);
            recompute_plan.push(parent_region.or(self.0.get(index).copied().flatten()));
        }
        recompute_plan
    }
}

/// Equal plans have equal texts: part of a run's name.
impl fmt::Display for RecomputePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (scope, region) in self.0.iter().enumerate() {
            let Some(RecomputeRegion { scope: ScopeId(first), policy }) = region else { continue };
            write!(f, "{scope}<{first}:")?;
            match policy {
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

/// Scope indices of the model's repeated blocks.
pub fn blocks(scopes: &[Scope]) -> Vec<usize> {
    scopes.iter().enumerate().filter(|(_, scope)| is_block(scope)).map(|(index, _)| index).collect()
}

fn is_block(scope: &Scope) -> bool {
    scope.block && scope.parent.is_none()
}
