//! What a run could compute again: each choice compiled, its cost counted and its peak predicted.

use std::collections::HashSet;

use super::Choice;
use super::cost::cost;
use super::knapsack::{Item, assignments};
use base::parallel;
use compile::{
    Instruction, Program, RecomputePlan, RecomputePolicy, Section, SectionKind, Violation, blocks,
};
use device::{Phase, Target};
use graph::Graphs;
use memory::{RunSchedule, live_bytes, predict};
use ops::OpKind;
use spec::{KeywordEnum as _, KeywordSet, RunConfig};

/// How many candidates there are of a model of so many blocks: as many as there are choices of scopes in four blocks at the
/// most, few of a deep one.
fn candidates(blocks: usize) -> usize {
    let blocks = blocks.max(1);
    (3000 / blocks).max((10_000 / blocks).min(100)).clamp(10, 625)
}

/// Stretches of so many lengths at the most are tried.
const LENGTHS: usize = 16;

/// Parts of which a block has more are all computed again, or none.
const PARTS: usize = 3;

/// All that is worth to be looked at, nothing computed again among it.
pub(super) fn all(graphs: &Graphs, config: &RunConfig, target: &Target) -> Result<Vec<Choice>, Violation> {
    let search = Search::new(graphs, config, target);
    let alternatives: Vec<Vec<Alternative>> =
        search.blocks.iter().map(|block| Alternative::all(block.parts.len())).collect();
    let count = alternatives.iter().map(Vec::len).max().unwrap_or(1);

    // What each alternative takes, from programs of which all blocks do the same.
    let uniform: Vec<RecomputePlan> =
        (0..count).map(|alternative| search.recompute_plan(&alternatives, |_| alternative)).collect();
    let uniform = parallel::map(uniform, |recompute_plan| search.evaluate(recompute_plan, true));
    let uniform: Vec<(Choice, Vec<Profile>)> = uniform.into_iter().collect::<Result<_, _>>()?;
    let most = candidates(search.blocks.len());
    let mut candidates: Vec<RecomputePlan> = search.segments().collect();
    candidates.extend(search.every_choice_of_scopes(&alternatives, most));
    let sections = uniform[0].1.len();
    for section in 0..sections {
        let items = |(position, alternatives): (usize, &Vec<Alternative>)| {
            let known = uniform.iter().take(alternatives.len()).enumerate();
            let item = |(alternative, (_, profiles)): (usize, &(Choice, Vec<Profile>))| Item {
                alternative,
                ..profiles[section].blocks[position]
            };
            known.map(item).collect::<Vec<_>>()
        };
        let items: Vec<Vec<Item>> = alternatives.iter().enumerate().map(items).collect();
        let assigned =
            with_swaps(assignments(&items, uniform[0].1[section].behind, most / sections), most / sections);
        candidates
            .extend(assigned.iter().map(|taken| search.recompute_plan(&alternatives, |block| taken[block])));
    }
    let mut known: HashSet<RecomputePlan> =
        uniform.iter().map(|(choice, _)| choice.recompute_plan.clone()).collect();
    candidates.retain(|recompute_plan| known.insert(recompute_plan.clone()));
    let evaluated = parallel::map(candidates, |recompute_plan| Ok(search.evaluate(recompute_plan, false)?.0));
    let evaluated: Vec<Choice> = evaluated.into_iter().collect::<Result<_, _>>()?;
    Ok(uniform.into_iter().map(|(choice, _)| choice).chain(evaluated).collect())
}

/// And the same with two neighbours' alternatives swapped, as long as there are not so many: they keep as much, and may lie
/// more densely.
fn with_swaps(mut assigned: Vec<Vec<usize>>, most: usize) -> Vec<Vec<usize>> {
    let swaps: Vec<Vec<usize>> = assigned
        .iter()
        .flat_map(|taken| {
            let differ = (1..taken.len()).filter(|&block| taken[block - 1] != taken[block]);
            differ.map(|block| {
                let mut swapped = taken.clone();
                swapped.swap(block - 1, block);
                swapped
            })
        })
        .collect();
    let room = most.saturating_sub(assigned.len());
    assigned.extend(swaps.into_iter().take(room));
    assigned
}

/// These, compiled and predicted.
#[cfg(test)]
pub(super) fn evaluate(
    graphs: &Graphs,
    config: &RunConfig,
    target: &Target,
    recompute_plan: Vec<RecomputePlan>,
) -> Result<Vec<Choice>, Violation> {
    let search = Search::new(graphs, config, target);
    recompute_plan.into_iter().map(|recompute_plan| Ok(search.evaluate(recompute_plan, false)?.0)).collect()
}

/// What a block may compute again.
#[derive(Clone, Debug, PartialEq)]
enum Alternative {
    /// Of each of its parts by itself.
    Parts(Vec<Option<RecomputePolicy>>),
    /// All of it together.
    Whole(RecomputePolicy),
}

impl Alternative {
    /// That nothing is comes first.
    fn all(parts: usize) -> Vec<Alternative> {
        let again = [None, Some(RecomputePolicy::Norms), Some(RecomputePolicy::All)];
        let all: Vec<Vec<Option<RecomputePolicy>>> = if parts > PARTS {
            again.iter().map(|again| vec![*again; parts]).collect()
        } else {
            (0..parts).fold(vec![Vec::new()], |all, _| {
                let longer = |start: Vec<Option<RecomputePolicy>>| {
                    again.iter().map(move |again| [start.as_slice(), &[*again]].concat())
                };
                all.into_iter().flat_map(longer).collect()
            })
        };
        let whole = (0..1usize << OpKind::ALL.len()).map(|bits| {
            let saved = OpKind::ALL.iter().enumerate().filter(|(index, _)| bits >> index & 1 == 1);
            let saved: KeywordSet<OpKind> = saved.map(|(_, kind)| *kind).collect();
            Alternative::Whole(if saved.is_empty() {
                RecomputePolicy::All
            } else {
                RecomputePolicy::AllBut(saved)
            })
        });
        all.into_iter().map(Alternative::Parts).chain(whole).collect()
    }

    /// Whether scopes are computed again as they are.
    fn is_of_scopes(&self) -> bool {
        match self {
            Alternative::Parts(parts) => {
                parts.iter().all(|again| matches!(again, None | Some(RecomputePolicy::All)))
            }
            Alternative::Whole(again) => *again == RecomputePolicy::All,
        }
    }

    fn mark(&self, recompute_plan: &mut RecomputePlan, block: &Block) {
        match self {
            Alternative::Parts(of_parts) => {
                for (&part, again) in block.parts.iter().zip(of_parts) {
                    if let Some(again) = again {
                        recompute_plan.set(part, part, *again);
                    }
                }
            }
            Alternative::Whole(again) => recompute_plan.set(block.scope, block.scope, *again),
        }
    }
}

/// One of the model's repeated blocks.
struct Block {
    scope: usize,
    /// The scopes that it consists of.
    parts: Vec<usize>,
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
    /// How many there are.
    scopes: usize,
    blocks: Vec<Block>,
}

impl<'a> Search<'a> {
    fn new(graphs: &'a Graphs, config: &'a RunConfig, target: &'a Target) -> Search<'a> {
        let scopes = &graphs.full.scopes;
        let mut parts = vec![Vec::new(); scopes.len()];
        for (index, scope) in scopes.iter().enumerate() {
            if let Some(parent) = scope.parent {
                parts[parent.index()].push(index);
            }
        }
        let block = |scope: usize| Block { scope, parts: std::mem::take(&mut parts[scope]) };
        let blocks = blocks(scopes).into_iter().map(block).collect();
        Search { graphs, config, target, scopes: scopes.len(), blocks }
    }

    /// Of each block, by its position, its alternative of this number, if it has so many.
    fn recompute_plan(
        &self,
        alternatives: &[Vec<Alternative>],
        number: impl Fn(usize) -> usize,
    ) -> RecomputePlan {
        let mut recompute_plan = RecomputePlan::none(self.scopes);
        for (position, (block, alternatives)) in self.blocks.iter().zip(alternatives).enumerate() {
            if let Some(alternative) = alternatives.get(number(position)) {
                alternative.mark(&mut recompute_plan, block);
            }
        }
        recompute_plan
    }

    /// Where they are so many at the most: each of the blocks' parts again or not, or the blocks as a whole. That values do
    /// not lie densely matters in small models, and nothing else tells how they lie.
    fn every_choice_of_scopes(&self, alternatives: &[Vec<Alternative>], most: usize) -> Vec<RecomputePlan> {
        let of_scopes = |alternatives: &Vec<Alternative>| -> Vec<usize> {
            let numbers = (0..).zip(alternatives).filter(|(_, alternative)| alternative.is_of_scopes());
            numbers.map(|(number, _)| number).collect()
        };
        let choices: Vec<Vec<usize>> = alternatives.iter().map(of_scopes).collect();
        let count = choices.iter().try_fold(1usize, |count, choices| count.checked_mul(choices.len()));
        if count.is_none_or(|count| count > most) {
            return Vec::new();
        }
        let all = choices.iter().fold(vec![Vec::new()], |all, choices| {
            let longer =
                |start: Vec<usize>| choices.iter().map(move |&number| [start.as_slice(), &[number]].concat());
            all.into_iter().flat_map(longer).collect()
        });
        all.iter().map(|taken| self.recompute_plan(alternatives, |block| taken[block])).collect()
    }

    /// So many blocks in a row together, for lengths around the root of how many there are: the last of these stretches
    /// kept as a whole, or computed again block by block.
    fn segments(&self) -> impl Iterator<Item = RecomputePlan> {
        let count = self.blocks.len();
        let longest = (2 * count.isqrt()).min(count / 2);
        (2..=longest).step_by(1 + longest / LENGTHS).flat_map(move |len| {
            [false, true].map(|last| {
                let mut recompute_plan = RecomputePlan::none(self.scopes);
                let count = self.blocks.len().div_ceil(len);
                for (number, segment) in self.blocks.chunks(len).enumerate() {
                    let is_last = number + 1 == count;
                    for block in segment.iter().filter(|_| !is_last || last) {
                        let first = if is_last { block.scope } else { segment[0].scope };
                        recompute_plan.set(block.scope, first, RecomputePolicy::All);
                    }
                }
                recompute_plan
            })
        })
    }

    fn evaluate(
        &self,
        recompute_plan: RecomputePlan,
        profiled: bool,
    ) -> Result<(Choice, Vec<Profile>), Violation> {
        let Search { graphs, config, target, .. } = *self;
        // What is chosen is compiled once more.
        let program = compile::compile(graphs, config, target, &recompute_plan, false)?;
        let peak = predict(&program, &target.boundless(), RunSchedule::of(config)).device.reserved_peak;
        let profiles = if profiled { self.profiles(&program) } else { Vec::new() };
        let mut total = 0.0;
        for section in program.step() {
            for instruction in &section.code {
                total += section.repeat_count as f64 * cost(&program, instruction, config, target);
            }
        }
        Ok((Choice { recompute_plan, cost: total, peak }, profiles))
    }

    /// Of the sections that may have the peak: of full micro-batches the one that comes last, when most gradients are there,
    /// and of the smaller one.
    fn profiles(&self, program: &Program) -> Vec<Profile> {
        let mut block_of = vec![None; program.scopes.len()];
        for (position, block) in self.blocks.iter().enumerate() {
            block_of[block.scope] = Some(position);
        }
        for (index, scope) in program.scopes.iter().enumerate() {
            // Parents come before their parts.
            block_of[index] = block_of[index].or(scope.parent.and_then(|parent| block_of[parent.index()]));
        }
        let live = live_bytes(program, self.target);
        let of_kind = |kind| program.sections.iter().position(|section| section.kind == kind);
        let full = of_kind(SectionKind::Micro).or(of_kind(SectionKind::First));
        let sections = full.into_iter().chain(of_kind(SectionKind::Tail));
        sections.map(|at| self.profile(program, &program.sections[at], &live[at], &block_of)).collect()
    }

    fn profile(
        &self,
        program: &Program,
        section: &Section,
        live: &[u64],
        block_of: &[Option<usize>],
    ) -> Profile {
        let live: Vec<i64> = live.iter().map(|&bytes| bytes as i64).collect();
        let position = |instruction: &Instruction| block_of[instruction.scope.index()];

        let count = self.blocks.len();
        let mut entered = vec![None; count];
        let mut peaks = vec![i64::MIN; count];
        let mut costs = vec![0.0; count];
        let (mut left, mut highest_behind, mut is_behind) = (0, i64::MIN, false);
        for (index, instruction) in section.code.iter().enumerate() {
            let before = if index == 0 { live[0] } else { live[index - 1] };
            match (position(instruction), instruction.phase) {
                (Some(block), phase) => {
                    if entered[block].is_none() {
                        entered[block] = Some(before);
                    }
                    peaks[block] = peaks[block].max(live[index]);
                    costs[block] += cost(program, instruction, self.config, self.target);
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
                peak: peaks[block].max(entered[block]) - entered[block],
                cost: costs[block],
            }
        };
        Profile { blocks: (0..count).map(item).collect(), behind: highest_behind.max(left) - left }
    }
}
