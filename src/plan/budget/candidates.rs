//! Candidate recompute plans of a run: each is compiled, its cost counted and its peak predicted.

use std::collections::HashSet;

use super::RecomputeChoice;
use super::cost::cost;
use super::knapsack::{BlockOption, assignments};
use base::parallel;
use compile::{
    Instruction, Program, RecomputePlan, RecomputePolicy, Section, SectionKind, Verification, Violation,
    blocks,
};
use device::{Phase, Target};
use graph::Graphs;
use memory::{RunSchedule, live_bytes, predict};
use ops::OpKind;
use spec::{KeywordEnum as _, KeywordSet, RunConfig};

/// The number of candidates for a model with this many blocks: at most the choices of scopes in four blocks (5^4),
/// fewer for deep models.
fn candidates(blocks: usize) -> usize {
    let blocks = blocks.max(1);
    (3000 / blocks).max((10_000 / blocks).min(100)).clamp(10, 625)
}

/// The most segment lengths tried.
const MAX_LENGTHS: usize = 16;

/// Blocks with more parts recompute all of them or none.
const MAX_PARTS: usize = 3;

/// All candidates, evaluated. The first has no recomputation.
pub(super) fn all(
    graphs: &Graphs,
    config: &RunConfig,
    target: &Target,
) -> Result<Vec<RecomputeChoice>, Violation> {
    let search = Search::new(graphs, config, target);
    let alternatives: Vec<Vec<Alternative>> =
        search.blocks.iter().map(|block| Alternative::all(block.parts.len())).collect();
    let count = alternatives.iter().map(Vec::len).max().unwrap_or(1);

    // Profiles of the alternatives, from programs in which all blocks use the same one.
    let uniform: Vec<RecomputePlan> =
        (0..count).map(|alternative| search.recompute_plan(&alternatives, |_| alternative)).collect();
    let uniform = parallel::map(uniform, |recompute_plan| search.evaluate(recompute_plan, true));
    let uniform: Vec<(RecomputeChoice, Vec<Profile>)> = uniform.into_iter().collect::<Result<_, _>>()?;
    let most = candidates(search.blocks.len());
    let mut candidates: Vec<RecomputePlan> = search.segments().collect();
    candidates.extend(search.every_choice_of_scopes(&alternatives, most));
    let sections = uniform[0].1.len();
    for section in 0..sections {
        let items = |(position, alternatives): (usize, &Vec<Alternative>)| {
            let profiled = uniform.iter().take(alternatives.len()).enumerate();
            let item = |(alternative, (_, profiles)): (usize, &(RecomputeChoice, Vec<Profile>))| {
                BlockOption { alternative, ..profiles[section].blocks[position] }
            };
            profiled.map(item).collect::<Vec<_>>()
        };
        let items: Vec<Vec<BlockOption>> = alternatives.iter().enumerate().map(items).collect();
        let assigned = with_swaps(
            assignments(&items, uniform[0].1[section].after_last, most / sections),
            most / sections,
        );
        candidates
            .extend(assigned.iter().map(|taken| search.recompute_plan(&alternatives, |block| taken[block])));
    }
    let mut seen: HashSet<RecomputePlan> =
        uniform.iter().map(|(choice, _)| choice.recompute_plan.clone()).collect();
    candidates.retain(|recompute_plan| seen.insert(recompute_plan.clone()));
    let evaluated = parallel::map(candidates, |recompute_plan| Ok(search.evaluate(recompute_plan, false)?.0));
    let evaluated: Vec<RecomputeChoice> = evaluated.into_iter().collect::<Result<_, _>>()?;
    Ok(uniform.into_iter().map(|(choice, _)| choice).chain(evaluated).collect())
}

/// Adds assignments with the alternatives of two neighbouring blocks swapped, up to `most`. They keep the same bytes,
/// but offsets may be packed more densely.
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

/// Compiles and predicts the given plans.
#[cfg(test)]
pub(super) fn evaluate(
    graphs: &Graphs,
    config: &RunConfig,
    target: &Target,
    recompute_plan: Vec<RecomputePlan>,
) -> Result<Vec<RecomputeChoice>, Violation> {
    let search = Search::new(graphs, config, target);
    recompute_plan.into_iter().map(|recompute_plan| Ok(search.evaluate(recompute_plan, false)?.0)).collect()
}

/// A choice of recomputation in a block.
#[derive(Clone, Debug, PartialEq)]
enum Alternative {
    /// A policy for each part, or none.
    Parts(Vec<Option<RecomputePolicy>>),
    /// One policy for the whole block as one region.
    Whole(RecomputePolicy),
}

impl Alternative {
    /// All alternatives of a block. The first has no recomputation.
    fn all(parts: usize) -> Vec<Alternative> {
        let policies = [None, Some(RecomputePolicy::Norms), Some(RecomputePolicy::All)];
        let all: Vec<Vec<Option<RecomputePolicy>>> = if parts > MAX_PARTS {
            policies.iter().map(|policy| vec![*policy; parts]).collect()
        } else {
            (0..parts).fold(vec![Vec::new()], |all, _| {
                let longer = |start: Vec<Option<RecomputePolicy>>| {
                    policies.iter().map(move |policy| [start.as_slice(), &[*policy]].concat())
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

    /// Whether it recomputes whole scopes only.
    fn recomputes_whole_scopes(&self) -> bool {
        match self {
            Alternative::Parts(parts) => {
                parts.iter().all(|policy| matches!(policy, None | Some(RecomputePolicy::All)))
            }
            Alternative::Whole(policy) => *policy == RecomputePolicy::All,
        }
    }

    fn add_to(&self, recompute_plan: &mut RecomputePlan, block: &Block) {
        match self {
            Alternative::Parts(policies) => {
                for (&part, policy) in block.parts.iter().zip(policies) {
                    if let Some(policy) = policy {
                        recompute_plan.set(part, part, *policy);
                    }
                }
            }
            Alternative::Whole(policy) => recompute_plan.set(block.scope, block.scope, *policy),
        }
    }
}

/// One of the model's repeated blocks.
struct Block {
    scope: usize,
    /// Its child scopes.
    parts: Vec<usize>,
}

/// Memory and cost of each block in a program, and the peak after the last one.
#[derive(Clone, Debug, Default)]
struct Profile {
    blocks: Vec<BlockOption>,
    after_last: i64,
}

struct Search<'a> {
    graphs: &'a Graphs,
    config: &'a RunConfig,
    target: &'a Target,
    /// Number of scopes.
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

    /// The plan in which each block uses the alternative with the number for its position, if it has that many.
    fn recompute_plan(
        &self,
        alternatives: &[Vec<Alternative>],
        number: impl Fn(usize) -> usize,
    ) -> RecomputePlan {
        let mut recompute_plan = RecomputePlan::none(self.scopes);
        for (position, (block, alternatives)) in self.blocks.iter().zip(alternatives).enumerate() {
            if let Some(alternative) = alternatives.get(number(position)) {
                alternative.add_to(&mut recompute_plan, block);
            }
        }
        recompute_plan
    }

    /// All plans that recompute whole parts or whole blocks, if there are at most `most`. In small models gaps between
    /// values matter, which only a compiled program shows.
    fn every_choice_of_scopes(&self, alternatives: &[Vec<Alternative>], most: usize) -> Vec<RecomputePlan> {
        let whole_scopes = |alternatives: &Vec<Alternative>| -> Vec<usize> {
            let numbers =
                (0..).zip(alternatives).filter(|(_, alternative)| alternative.recomputes_whole_scopes());
            numbers.map(|(number, _)| number).collect()
        };
        let choices: Vec<Vec<usize>> = alternatives.iter().map(whole_scopes).collect();
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

    /// Plans with segments of several blocks as one region, for lengths around the square root of the number of blocks.
    /// The last segment is kept, or recomputed block by block.
    fn segments(&self) -> impl Iterator<Item = RecomputePlan> {
        let count = self.blocks.len();
        let longest = (2 * count.isqrt()).min(count / 2);
        (2..=longest).step_by(1 + longest / MAX_LENGTHS).flat_map(move |len| {
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
    ) -> Result<(RecomputeChoice, Vec<Profile>), Violation> {
        let Search { graphs, config, target, .. } = *self;
        // Not verified: the selected plan is compiled again.
        let program = compile::compile(graphs, config, target, &recompute_plan, Verification::Never)?;
        let peak = predict(&program, &target.boundless(), RunSchedule::of(config)).device.reserved_peak;
        let profiles = if profiled { self.profiles(&program) } else { Vec::new() };
        let mut total = 0.0;
        for section in program.step() {
            for instruction in &section.code {
                total += section.repeat_count as f64 * cost(&program, instruction, config, target);
            }
        }
        Ok((RecomputeChoice { recompute_plan, cost: total, peak }, profiles))
    }

    /// Profiles of the sections that may have the peak: the last section of full micro-batches, when most gradients are
    /// live, and the smaller last micro-batch.
    fn profiles(&self, program: &Program) -> Vec<Profile> {
        let mut block_of = vec![None; program.scopes.len()];
        for (position, block) in self.blocks.iter().enumerate() {
            block_of[block.scope] = Some(position);
        }
        for (index, scope) in program.scopes.iter().enumerate() {
            // Parents come before their children.
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
        let (mut left, mut highest_after_last, mut is_after_last) = (0, i64::MIN, false);
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
                        (left, is_after_last) = (live[index], true);
                    } else {
                        is_after_last = false;
                    }
                }
                (None, _) if is_after_last => highest_after_last = highest_after_last.max(live[index]),
                _ => {}
            }
        }
        let entered: Vec<i64> = entered.into_iter().map(|before| before.unwrap_or(left)).collect();
        let item = |block: usize| {
            let next = entered.get(block + 1).copied().unwrap_or(left);
            BlockOption {
                alternative: 0,
                kept: next - entered[block],
                peak: peaks[block].max(entered[block]) - entered[block],
                cost: costs[block],
            }
        };
        Profile { blocks: (0..count).map(item).collect(), after_last: highest_after_last.max(left) - left }
    }
}
