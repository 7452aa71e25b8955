//! What a run could compute again: each choice compiled, its cost counted and its peak predicted.

use super::Choice;
use super::cost::cost;
use super::knapsack::{Item, assignments};
use crate::compile::{
    Again, Instruction, Program, Section, SectionKind, Units, Violation, blocks, compile_units,
};
use crate::device::{Phase, Target};
use crate::graph::{Graphs, Scope, ScopeId};
use crate::memory::{Cadence, live_bytes, predict};
use crate::ops::OpKind;
use crate::parallel;
use crate::spec::{RunConfig, WordSet, Words as _};

/// About so many blocks are compiled in all candidates together, but no fewer candidates than these.
const BLOCKS: usize = 3000;
const CANDIDATES: usize = 100;

/// Parts of which a block has more are all computed again, or none.
const PARTS: usize = 3;

/// All that is worth to be looked at, nothing computed again among it.
pub(super) fn all(graphs: &Graphs, config: &RunConfig, target: &Target) -> Result<Vec<Choice>, Violation> {
    let scopes = &graphs.full.scopes;
    let search = Search { graphs, config, target, scopes, blocks: blocks(scopes) };
    let alternatives: Vec<Vec<Alternative>> =
        search.blocks.iter().map(|&block| Alternative::all(scopes, block)).collect();
    let count = alternatives.iter().map(Vec::len).max().unwrap_or(1);

    // What each alternative takes, from programs of which all blocks do the same.
    let uniform: Vec<Units> =
        (0..count).map(|alternative| search.units(&alternatives, |_| alternative)).collect();
    let uniform = parallel::map(uniform, |units| search.evaluate(units, true));
    let uniform: Vec<(Choice, Profile)> = uniform.into_iter().collect::<Result<_, _>>()?;
    let items = |(position, alternatives): (usize, &Vec<Alternative>)| {
        let known = uniform.iter().take(alternatives.len()).enumerate();
        let item = |(alternative, (_, profile)): (usize, &(Choice, Profile))| Item {
            alternative,
            ..profile.blocks[position]
        };
        known.map(item).collect::<Vec<_>>()
    };
    let items: Vec<Vec<Item>> = alternatives.iter().enumerate().map(items).collect();
    let behind = uniform.iter().map(|(_, profile)| profile.behind).max().unwrap_or(0);

    let most = (BLOCKS / search.blocks.len().max(1)).max(CANDIDATES);
    let assigned = assignments(&items, behind, most);
    let assigned = assigned.iter().map(|taken| search.units(&alternatives, |block| taken[block]));
    let candidates: Vec<Units> = assigned.chain(search.segments()).collect();
    let evaluated = parallel::map(candidates, |units| Ok(search.evaluate(units, false)?.0));
    let evaluated: Vec<Choice> = evaluated.into_iter().collect::<Result<_, _>>()?;
    Ok(uniform.into_iter().map(|(choice, _)| choice).chain(evaluated).collect())
}

/// These, compiled and predicted.
#[cfg(test)]
pub(super) fn evaluate(
    graphs: &Graphs,
    config: &RunConfig,
    target: &Target,
    units: Vec<Units>,
) -> Result<Vec<Choice>, Violation> {
    let scopes = &graphs.full.scopes;
    let search = Search { graphs, config, target, scopes, blocks: blocks(scopes) };
    units.into_iter().map(|units| Ok(search.evaluate(units, false)?.0)).collect()
}

/// What a block may compute again.
#[derive(Clone, Debug, PartialEq)]
enum Alternative {
    /// Of each of its parts by itself.
    Parts(Vec<Option<Again>>),
    /// All of it together.
    Whole(Again),
}

impl Alternative {
    /// That nothing is comes first.
    fn all(scopes: &[Scope], block: usize) -> Vec<Alternative> {
        let parts = parts(scopes, block).len();
        let again = [None, Some(Again::Norms), Some(Again::All)];
        let mut all = if parts > PARTS {
            again.iter().map(|again| vec![*again; parts]).collect()
        } else {
            (0..parts).fold(vec![Vec::new()], |all, _| {
                let longer = |start: Vec<Option<Again>>| {
                    again.iter().map(move |again| [start.as_slice(), &[*again]].concat())
                };
                all.into_iter().flat_map(longer).collect()
            })
        };
        let whole = (0..1usize << OpKind::ALL.len()).map(|bits| {
            let saved = OpKind::ALL.iter().enumerate().filter(|(index, _)| bits >> index & 1 == 1);
            let saved: WordSet<OpKind> = saved.map(|(_, kind)| *kind).collect();
            Alternative::Whole(if saved.is_empty() { Again::All } else { Again::AllBut(saved) })
        });
        all.drain(..).map(Alternative::Parts).chain(whole).collect()
    }

    fn mark(&self, units: &mut Units, scopes: &[Scope], block: usize) {
        match self {
            Alternative::Parts(of_parts) => {
                for (part, again) in parts(scopes, block).into_iter().zip(of_parts) {
                    if let Some(again) = again {
                        units.mark(part, part, *again);
                    }
                }
            }
            Alternative::Whole(again) => units.mark(block, block, *again),
        }
    }
}

/// The scopes that a block consists of.
fn parts(scopes: &[Scope], block: usize) -> Vec<usize> {
    let is_part = |scope: &Scope| scope.parent == Some(ScopeId(block as u32));
    scopes.iter().enumerate().filter(|(_, scope)| is_part(scope)).map(|(index, _)| index).collect()
}

/// What each block does in a program, and what is behind the last one.
#[derive(Clone, Debug, Default)]
struct Profile {
    blocks: Vec<Item>,
    behind: i64,
}

struct Search<'a> {
    graphs: &'a Graphs,
    config: &'a RunConfig,
    target: &'a Target,
    scopes: &'a [Scope],
    blocks: Vec<usize>,
}

impl Search<'_> {
    /// Of each block, by its position, its alternative of this number, if it has so many.
    fn units(&self, alternatives: &[Vec<Alternative>], number: impl Fn(usize) -> usize) -> Units {
        let mut units = Units::none(self.scopes.len());
        for (position, (&block, alternatives)) in self.blocks.iter().zip(alternatives).enumerate() {
            if let Some(alternative) = alternatives.get(number(position)) {
                alternative.mark(&mut units, self.scopes, block);
            }
        }
        units
    }

    /// So many blocks in a row together, for lengths around the root of how many there are: the last of these stretches
    /// kept as a whole, or computed again block by block.
    fn segments(&self) -> impl Iterator<Item = Units> {
        let count = self.blocks.len();
        let longest = (2 * count.isqrt()).min(count / 2);
        (2..=longest).flat_map(move |len| {
            [false, true].map(|last| {
                let mut units = Units::none(self.scopes.len());
                for segment in self.blocks.chunks(len) {
                    let is_last = segment.last() == self.blocks.last();
                    for &block in segment.iter().filter(|_| !is_last || last) {
                        units.mark(block, if is_last { block } else { segment[0] }, Again::All);
                    }
                }
                units
            })
        })
    }

    fn evaluate(&self, units: Units, profiled: bool) -> Result<(Choice, Profile), Violation> {
        let Search { graphs, config, target, .. } = *self;
        // What is chosen is compiled once more.
        let program = compile_units(graphs, config, target, &units, false)?;
        let peak = predict(&program, &target.boundless(), Cadence::of(config)).device.reserved_peak;
        let profile = if profiled { self.profile(&program) } else { Profile::default() };
        let cost =
            program.step().map(|section| section.times as f64 * self.cost(&program, section, |_| true));
        let choice = Choice { units, cost: cost.sum(), peak };
        Ok((choice, profile))
    }

    /// What is computed again in scopes like this.
    fn cost(&self, program: &Program, section: &Section, like: impl Fn(ScopeId) -> bool) -> f64 {
        let again =
            section.code.iter().filter(|instruction| instruction.recompute && like(instruction.scope));
        cost(program, again, self.config, self.target)
    }

    /// Of a micro-batch that adds to gradients, if there is one: all of them are live then.
    fn profile(&self, program: &Program) -> Profile {
        let mut block_of = vec![None; program.scopes.len()];
        for (position, &block) in self.blocks.iter().enumerate() {
            block_of[block] = Some(position);
        }
        for (index, scope) in program.scopes.iter().enumerate() {
            // Parents come before their parts.
            block_of[index] = block_of[index].or(scope.parent.and_then(|parent| block_of[parent.index()]));
        }
        let further = program.sections.iter().position(|section| section.kind == SectionKind::Micro);
        let first = program.sections.iter().position(|section| section.kind == SectionKind::First);
        let Some(at) = further.or(first) else { return Profile::default() };
        let (section, live) = (&program.sections[at], &live_bytes(program, self.target)[at]);
        let live: Vec<i64> = live.iter().map(|&bytes| bytes as i64).collect();
        let position = |instruction: &Instruction| block_of[instruction.scope.index()];

        let count = self.blocks.len();
        let mut entered = vec![None; count];
        let mut peaks = vec![i64::MIN; count];
        let (mut left, mut highest_behind, mut is_behind) = (0, i64::MIN, false);
        for (index, instruction) in section.code.iter().enumerate() {
            let before = if index == 0 { live[0] } else { live[index - 1] };
            match (position(instruction), instruction.phase) {
                (Some(block), phase) => {
                    if entered[block].is_none() {
                        entered[block] = Some(before);
                    }
                    peaks[block] = peaks[block].max(live[index]);
                    if phase == Phase::Forward {
                        (left, is_behind) = (live[index], true);
                    } else {
                        is_behind = false;
                    }
                }
                (None, _) if is_behind => highest_behind = highest_behind.max(live[index]),
                _ => {}
            }
        }
        let entered: Vec<i64> = entered.into_iter().map(|before| before.unwrap_or(left)).collect();
        let item = |block: usize| {
            let next = entered.get(block + 1).copied().unwrap_or(left);
            Item {
                alternative: 0,
                kept: next - entered[block],
                peak: peaks[block] - entered[block],
                cost: self.cost(program, section, |scope| block_of[scope.index()] == Some(block)),
            }
        };
        Profile { blocks: (0..count).map(item).collect(), behind: highest_behind.max(left) - left }
    }
}
