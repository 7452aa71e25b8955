//! What is computed again so that a run keeps within a memory budget.
//!
//! A run's choices are found and predicted without a look at the budget: each block may compute again any of its parts,
//! their norms, or all but what some kinds of operation give, and blocks in a row may do so together. Each choice is
//! compiled and its peak predicted, as every run's is. Those that no other beats in both time and memory are the frontier,
//! and a budget picks the first of them that meets it: with less memory the peak never rises.

mod candidates;
mod cost;
mod knapsack;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use base::units::Bytes;
use compile::{RecomputePlan, Violation};
use device::{Pool, Target};
use graph::Graphs;
use spec::{Budget, Recompute, RunConfig};

/// What a run computes again, and what that is worth.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub recompute_plan: RecomputePlan,
    /// Time that it takes of a step, as FLOPs of matrix work that would take as long.
    pub cost: f64,
    /// The most bytes that the device's pool takes in the whole run.
    pub peak: u64,
}

/// The choices of a run that no other beats, by rising cost and falling peak.
#[derive(Clone, Debug)]
pub struct ParetoFront {
    /// There is one at least.
    choices: Vec<Choice>,
    /// The peak where nothing is computed again.
    plain: u64,
}

/// A budget that no choice meets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InfeasibleBudget {
    pub asked: Budget,
    /// In the same terms, rounded up to what people write.
    pub smallest: Budget,
}

impl InfeasibleBudget {
    pub fn what(&self) -> String {
        format!("no choice of what is computed again meets recompute = {}", Recompute::Budget(self.asked))
    }

    pub fn help(&self) -> String {
        format!("the smallest budget that one meets is {}", Recompute::Budget(self.smallest))
    }
}

impl ParetoFront {
    /// # Errors
    /// A violation of a program's invariants: a mistake in a pass.
    pub fn of(graphs: &Graphs, config: &RunConfig, target: &Target) -> Result<ParetoFront, Violation> {
        let candidates = candidates::all(graphs, config, target)?;
        let plain = candidates[0].peak;
        Ok(ParetoFront { choices: unbeaten(candidates, |choice| choice.cost, |choice| choice.peak), plain })
    }

    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// The first choice that meets the budget. Where none does, the one that takes the least memory, beside what would.
    pub fn pick(&self, budget: Budget, target: &Target) -> (&Choice, Option<InfeasibleBudget>) {
        let tightest = self.tightest();
        let most = match budget {
            Budget::Bytes(Bytes(bytes)) => bytes,
            Budget::Share(share) => (share * self.plain as f64).round() as u64,
            Budget::Memory => target.available_at(Pool::Device),
        };
        if let Some(choice) = self.choices.iter().find(|choice| choice.peak <= most) {
            return (choice, None);
        }
        let smallest = match budget {
            Budget::Bytes(_) => Budget::Bytes(round_up(tightest.peak)),
            Budget::Share(_) => Budget::Share((1e3 * tightest.peak as f64 / self.plain as f64).ceil() / 1e3),
            // What does not fit runs out of memory, and is told what is missing.
            Budget::Memory => return (tightest, None),
        };
        (tightest, Some(InfeasibleBudget { asked: budget, smallest }))
    }

    /// What takes the least memory.
    pub fn tightest(&self) -> &Choice {
        &self.choices[self.choices.len() - 1]
    }
}

/// Those that no other beats in both, by rising cost and falling bytes.
fn unbeaten<T, B: Ord + Copy>(mut all: Vec<T>, cost: impl Fn(&T) -> f64, bytes: impl Fn(&T) -> B) -> Vec<T> {
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

/// To whole recompute_plan, by a thousandth at the most.
fn round_up(bytes: u64) -> Bytes {
    let unit = [1 << 20, 1 << 10].into_iter().find(|unit| bytes >= 1000 * unit).unwrap_or(1);
    Bytes(bytes.next_multiple_of(unit))
}

/// What runs compute again, found once for all that differ in their budget alone.
#[derive(Debug, Default)]
pub struct ParetoFronts(Mutex<HashMap<String, Arc<ParetoFront>>>);

impl ParetoFronts {
    /// What a run computes again, and the budget that it does not meet, if it says one.
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
        let frontier = self.find(graphs, config, target)?;
        let (choice, unmet) = frontier.pick(budget, target);
        Ok((choice.recompute_plan.clone(), unmet))
    }

    /// The choices of a run, whatever it says of them.
    ///
    /// Nobody waits for another who looks for the same: whoever looks has others of the same threads at work meanwhile, and
    /// these may be among them.
    ///
    /// # Errors
    /// As from `recompute_plan`.
    pub fn find(
        &self,
        graphs: &Graphs,
        config: &RunConfig,
        target: &Target,
    ) -> Result<Arc<ParetoFront>, Violation> {
        let mut plain = config.clone();
        plain.strategy.recompute = Recompute::None;
        let key = serde_json::to_string(&plain.memory_part()).expect("plain data always serialises");
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let found = Arc::new(ParetoFront::of(graphs, config, target)?);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&found));
        Ok(found)
    }
}
