//! Selects the recompute plan of a run with a recompute budget.
//!
//! The search does not depend on the budget. A candidate assigns each block a policy: keep everything, recompute some
//! of its parts, recompute its norms, or recompute everything except the outputs of some kinds of operation. Several
//! adjacent blocks may form one recompute region. `candidates` lists plans (a knapsack search proposes assignments),
//! compiles each and predicts its peak. The candidates that are optimal in time and memory form the Pareto front, and a
//! budget selects the cheapest one that meets it. So a smaller budget never raises the peak.

mod candidates;
mod cost;
mod knapsack;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use base::units::Bytes;
use compile::{RecomputePlan, Violation, rank_graphs};
use device::{Pool, Target};
use graph::Graphs;
use spec::{Budget, MemoryKey, Recompute, RunConfig};

/// A recompute plan with its cost and peak memory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecomputeChoice {
    pub(crate) recompute_plan: RecomputePlan,
    /// Recomputation time per step, as the number of matmul FLOPs that take as long.
    pub(crate) cost: f64,
    /// Peak reserved bytes of the device pool in the whole run.
    pub(crate) peak: u64,
}

/// The Pareto front of cost against peak, by rising cost and falling peak.
#[derive(Clone, Debug)]
pub(crate) struct ParetoFront {
    /// Never empty.
    choices: Vec<RecomputeChoice>,
    /// The peak without recomputation.
    plain_peak: u64,
}

/// A recompute budget that no plan meets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InfeasibleBudget {
    /// The budget of the experiment file.
    pub asked: Budget,
    /// The smallest feasible budget in the same unit, rounded up.
    pub smallest: Budget,
}

impl InfeasibleBudget {
    pub fn what(&self) -> String {
        format!("infeasible budget: recompute = {}", Recompute::Budget(self.asked))
    }

    pub fn help(&self) -> String {
        format!("the smallest feasible budget is {}", Recompute::Budget(self.smallest))
    }
}

impl ParetoFront {
    /// Searches the front of a run.
    ///
    /// # Errors
    /// A violation of a program's invariants: a mistake in a pass.
    pub(crate) fn of(graphs: &Graphs, config: &RunConfig, target: &Target) -> Result<ParetoFront, Violation> {
        let candidates = candidates::all(graphs, config, target)?;
        // The first candidate recomputes nothing.
        let plain_peak = candidates[0].peak;
        Ok(ParetoFront {
            choices: pareto_optimal(candidates, |choice| choice.cost, |choice| choice.peak),
            plain_peak,
        })
    }

    /// The cheapest choice that meets the budget. If no choice meets it, the choice with the lowest peak and the error.
    pub(crate) fn select(
        &self,
        budget: Budget,
        target: &Target,
    ) -> (&RecomputeChoice, Option<InfeasibleBudget>) {
        let lowest_peak = self.lowest_peak();
        let most = match budget {
            Budget::Bytes(Bytes(bytes)) => bytes,
            Budget::Share(share) => (share * self.plain_peak as f64).round() as u64,
            Budget::Memory => target.available_at(Pool::Device),
        };
        if let Some(choice) = self.choices.iter().find(|choice| choice.peak <= most) {
            return (choice, None);
        }
        let smallest = match budget {
            Budget::Bytes(_) => Budget::Bytes(round_up(lowest_peak.peak)),
            Budget::Share(_) => {
                Budget::Share((1e3 * lowest_peak.peak as f64 / self.plain_peak as f64).ceil() / 1e3)
            }
            // The run itself reports that it is out of memory, and by how much.
            Budget::Memory => return (lowest_peak, None),
        };
        (lowest_peak, Some(InfeasibleBudget { asked: budget, smallest }))
    }

    /// The choice with the lowest peak.
    pub(super) fn lowest_peak(&self) -> &RecomputeChoice {
        &self.choices[self.choices.len() - 1]
    }
}

/// The Pareto-optimal elements, by rising cost and falling bytes.
fn pareto_optimal<T, B: Ord + Copy>(
    mut all: Vec<T>,
    cost: impl Fn(&T) -> f64,
    bytes: impl Fn(&T) -> B,
) -> Vec<T> {
    all.sort_by(|a, b| cost(a).total_cmp(&cost(b)).then(bytes(a).cmp(&bytes(b))));
    let mut fewest = None;
    all.retain(|one| {
        let is_fewer = fewest.is_none_or(|fewest| bytes(one) < fewest);
        if is_fewer {
            fewest = Some(bytes(one));
        }
        is_fewer
    });
    all
}

/// Rounds up to whole MiB or KiB, by at most 0.1 %.
fn round_up(bytes: u64) -> Bytes {
    let unit = [1 << 20, 1 << 10].into_iter().find(|unit| bytes >= 1000 * unit).unwrap_or(1);
    Bytes(bytes.next_multiple_of(unit))
}

/// A cache of Pareto fronts. Runs that differ only in their budget share one.
#[derive(Debug, Default)]
pub struct ParetoFronts(Mutex<BTreeMap<MemoryKey, Arc<ParetoFront>>>);

impl ParetoFronts {
    /// The recompute plan of a run, and an error if its budget is infeasible.
    ///
    /// # Errors
    /// A violation of a program's invariants: a mistake in a pass.
    pub fn recompute_plan(
        &self,
        graphs: &Graphs,
        config: &RunConfig,
        target: &Target,
    ) -> Result<(RecomputePlan, Option<InfeasibleBudget>), Violation> {
        let budget = match RecomputePlan::of(config.strategy.recompute, &graphs.full.scopes) {
            Ok(recompute_plan) => return Ok((recompute_plan, None)),
            Err(budget) => budget,
        };
        // All ranks recompute the same layers, since they exchange the same parameters: the first has the most samples.
        let first = &Target { rank: 0, ..target.clone() };
        let front = match target.rank {
            0 => self.find(graphs, config, first)?,
            _ => self.find(&rank_graphs(config, first), config, first)?,
        };
        let (choice, infeasible) = front.select(budget, &target.of_rank(config.ranks()));
        Ok((choice.recompute_plan.clone(), infeasible))
    }

    /// The Pareto front of a run, independent of its budget.
    ///
    /// Concurrent searches for the same front do not wait for each other: a search runs on the thread pool that its
    /// callers may be part of, so waiting could deadlock.
    ///
    /// # Errors
    /// Those of `recompute_plan`.
    pub(crate) fn find(
        &self,
        graphs: &Graphs,
        config: &RunConfig,
        target: &Target,
    ) -> Result<Arc<ParetoFront>, Violation> {
        // With lengths that vary, the longest sample needs most.
        let config = &config.at_longest();
        let mut plain = config.clone();
        plain.strategy.recompute = Recompute::None;
        let key = plain.memory_key();
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(front) = cached {
            return Ok(front);
        }
        let front = Arc::new(ParetoFront::of(graphs, config, target)?);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&front));
        Ok(front)
    }
}
