//! What is computed again in backward instead of kept.

use std::fmt;

use graph::{Scope, ScopeId};
use ops::{Op, OpKind};
use spec::{BlockPart, Budget, Recompute, WordSet, Words as _};

/// By scope of a graph: what of it is computed again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Units(Vec<Option<Unit>>);

/// Code that is computed again together, right before the backward pass goes through it: all code that has the same unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// The first scope of it.
    pub scope: ScopeId,
    pub again: Again,
}

/// What of a unit is computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Again {
    All,
    /// What norms give.
    Norms,
    /// What other operations give than these.
    AllBut(WordSet<OpKind>),
}

impl Again {
    /// Whether that is what an operation gives.
    pub(super) fn is_of(self, op: &Op) -> bool {
        match self {
            Again::All => true,
            Again::Norms => op.kind() == Some(OpKind::Norm),
            Again::AllBut(saved) => !op.kind().is_some_and(|kind| saved.contains(kind)),
        }
    }
}

impl Units {
    /// Those of so many scopes, of which nothing is computed again.
    pub fn none(scopes: usize) -> Units {
        Units(vec![None; scopes])
    }

    /// What a run says.
    ///
    /// # Errors
    /// A budget: what meets it is to be found.
    pub fn of(recompute: Recompute, scopes: &[Scope]) -> Result<Units, Budget> {
        let blocks = blocks(scopes);
        let mut units = Units::none(scopes.len());
        let mut mark = |block: usize, first: usize, again| units.mark(block, first, again);
        match recompute {
            Recompute::None => {}
            Recompute::Block => blocks.iter().for_each(|&block| mark(block, block, Again::All)),
            Recompute::Every(count) => {
                blocks.iter().step_by(count).for_each(|&block| mark(block, block, Again::All))
            }
            Recompute::Save(saved) => {
                blocks.iter().for_each(|&block| mark(block, block, Again::AllBut(saved)))
            }
            Recompute::Segments(segments) => {
                // What is left over is with the last.
                let (len, kept) = (blocks.len() / segments, segments - 1);
                for segment in blocks.chunks(len).take(kept) {
                    segment.iter().for_each(|&block| mark(block, segment[0], Again::All));
                }
            }
            Recompute::Parts(parts) => {
                for (index, scope) in scopes.iter().enumerate() {
                    let Some(block) = scope.parent.map(|parent| &scopes[parent.index()]) else { continue };
                    if !is_block(block) {
                        continue;
                    }
                    let part = scope.path[block.path.len()..].strip_prefix('.');
                    if parts.iter().any(|marked| Some(marked.word()) == part) {
                        mark(index, index, Again::All);
                    } else if parts.contains(BlockPart::Norm) {
                        mark(index, index, Again::Norms);
                    }
                }
            }
            Recompute::Budget(budget) => return Err(budget),
        }
        Ok(units)
    }

    /// Makes a scope part of the unit that begins with another.
    pub fn mark(&mut self, scope: usize, first: usize, again: Again) {
        self.0[scope] = Some(Unit { scope: ScopeId(first as u32), again });
    }

    /// By scope: what the outermost of the marked ones that it lies in is computed again with.
    pub(super) fn outermost(&self, scopes: &[Scope]) -> Vec<Option<Unit>> {
        let mut units: Vec<Option<Unit>> = Vec::with_capacity(scopes.len());
        for (index, scope) in scopes.iter().enumerate() {
            // Parents come before their parts. A program has scopes that are none of the graph's.
            let of_parent = scope.parent.and_then(|parent| units[parent.index()]);
            units.push(of_parent.or(self.0.get(index).copied().flatten()));
        }
        units
    }
}

/// One text for what is the same: part of a run's name.
impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (scope, unit) in self.0.iter().enumerate() {
            let Some(Unit { scope: ScopeId(first), again }) = unit else { continue };
            write!(f, "{scope}<{first}:")?;
            match again {
                Again::All => f.write_str("all")?,
                Again::Norms => f.write_str("norms")?,
                Again::AllBut(saved) => {
                    saved.iter().try_for_each(|kind| write!(f, "-{}", kind.word()))?;
                }
            }
            f.write_str(" ")?;
        }
        Ok(())
    }
}

impl FromIterator<Option<Unit>> for Units {
    fn from_iter<I: IntoIterator<Item = Option<Unit>>>(units: I) -> Units {
        Units(units.into_iter().collect())
    }
}

/// The model's repeated blocks, as numbers of their scopes.
pub fn blocks(scopes: &[Scope]) -> Vec<usize> {
    scopes.iter().enumerate().filter(|(_, scope)| is_block(scope)).map(|(index, _)| index).collect()
}

fn is_block(scope: &Scope) -> bool {
    scope.block && scope.parent.is_none()
}
