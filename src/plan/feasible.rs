//! Runs that cannot be trained on a target: such runs are skipped.

use std::collections::BTreeMap;

use super::budget::{InfeasibleBudget, ParetoFronts};
use super::error::PlanError;
use super::expand::{Experiment, Point};
use super::planner::Purpose;
use compile::rank_graphs;
use device::{DeviceKind, Target};
use ops::RowSlice;
use spec::{Budget, DataResidence, Problem, Recompute, RunConfig};

/// Replaces the configuration of runs that cannot be planned by the reason: those whose recompute budget is infeasible
/// on the target, and those that hold data of unknown size. The target is requested only if some run has a budget.
///
/// # Errors
/// No run is left, and a budget is infeasible.
pub fn skip_infeasible<E: From<PlanError>>(
    experiment: &mut Experiment,
    fronts: &ParetoFronts,
    target: impl FnOnce() -> Result<Target, E>,
) -> Result<(), E> {
    for point in &mut experiment.points {
        point.without.retain(|(_, other)| unknown_sizes(other).is_none());
        if let Some(reason) = point.config.as_ref().ok().and_then(unknown_sizes) {
            point.config = Err(reason);
        }
    }
    if !experiment.points.iter().any(|point| point.config.as_ref().is_ok_and(has_budget)) {
        return Ok(());
    }
    let target = &target()?;
    // By strategy: the smallest feasible budget.
    let mut smallest: BTreeMap<String, (InfeasibleBudget, &Point)> = BTreeMap::new();
    let mut reasons = Vec::new();
    for (index, point) in experiment.points.iter().enumerate() {
        let Some(config) = point.config.as_ref().ok().filter(|config| has_budget(config)) else { continue };
        let graphs = rank_graphs(config, target);
        let (_, infeasible) = fronts
            .recompute_plan(&graphs, config, target)
            .map_err(|violation| PlanError::Violation { strategy: point.strategy.clone(), violation })?;
        let Some(infeasible) = infeasible else { continue };
        reasons.push((index, format!("{}; {}", infeasible.what(), infeasible.help())));
        let known = smallest.entry(point.source.strategy.clone()).or_insert((infeasible, point));
        if infeasible.smallest < known.0.smallest {
            *known = (infeasible, point);
        }
    }
    let left = experiment.points.iter().filter(|point| point.config.is_ok()).count() - reasons.len();
    if left == 0 && !reasons.is_empty() {
        let problem = |(strategy, (infeasible, point)): (String, (InfeasibleBudget, &Point))| {
            let problem = Problem::new(format!("{strategy}: {}", infeasible.what())).help(infeasible.help());
            point.source.recompute.into_iter().fold(problem, Problem::at)
        };
        let problems: Vec<Problem> = smallest.into_iter().map(problem).collect();
        return Err(PlanError::InfeasibleBudget(experiment.sources.error(&problems)).into());
    }
    reasons.into_iter().for_each(|(index, reason)| experiment.points[index].config = Err(reason));
    Ok(())
}

/// Skips the runs that the target's devices cannot train, or of which the memory there is unknown.
pub(super) fn skip_unsupported(experiment: &mut Experiment, target: &Target, purpose: Purpose) {
    if purpose != Purpose::Train {
        return;
    }
    for point in &mut experiment.points {
        if let Some(reason) = point.config.as_ref().ok().and_then(|config| unsupported(config, target)) {
            point.config = Err(reason);
        }
    }
}

/// Why the target's devices cannot train the model, although its memory can be planned.
fn unsupported(config: &RunConfig, target: &Target) -> Option<String> {
    if config.ranks() > 1 && target.kind == DeviceKind::Cuda {
        return Some(
            "this version exchanges gradients between ranks on processors only: use `--device cpu`, or parallel.data = 1; `plan` predicts their memory on a card".to_owned(),
        );
    }
    let has_experts = config.model.transformer().is_some_and(|model| model.experts.is_some());
    (has_experts && target.kind == DeviceKind::Cuda).then(|| {
        "this version trains mixtures of experts on the CPU only: use `--device cpu`; `plan` predicts their memory on a card".to_owned()
    })
}

/// Whether the run has a recompute budget other than the memory limit, beyond which it is out of memory.
fn has_budget(config: &RunConfig) -> bool {
    matches!(config.strategy.recompute, Recompute::Budget(Budget::Bytes(_) | Budget::Share(_)))
}

/// Why a run cannot be planned, if it cannot: sizes that depend on the data are unknown or do not suit the strategy.
pub(super) fn unknown_sizes(config: &RunConfig) -> Option<String> {
    let source = config.strategy.loader.source;
    if source != DataResidence::Stream && config.data_len.is_none() {
        let source = source.name();
        return Some(format!(
            "loader.source = \"{source}\" holds all of the data in memory, but the data is not on this machine"
        ));
    }
    if config.held_bytes().is_some_and(|bytes| bytes > 1 << 57) {
        return Some(format!(
            "loader.source = \"{}\" holds data whose bytes exceed 64-bit counters",
            source.name()
        ));
    }
    config.data.batch_multiple()?;
    let Some(lengths) = &config.lengths else {
        let reason = "pad_to = \"batch\" takes lengths from the data, but the data is not on this machine";
        return Some(reason.to_owned());
    };
    // A shorter micro-batch has the program of the longest, at other sizes.
    let chunks = config.strategy.loss_chunks;
    let micro_batches = [Some(config.micro_batch()), config.tail(), config.evaluation_batch()];
    for samples in micro_batches.into_iter().flatten() {
        let slices = |length: usize| RowSlice::count(samples * length, chunks);
        let expected = slices(lengths.longest());
        if let Some(length) = lengths.distinct().into_iter().find(|&length| slices(length) != expected) {
            return Some(format!(
                "loss_chunks = {chunks} divides micro-batches of {samples} x {length} tokens into {} slices, and those \
                 of {samples} x {} into {expected}; try pad_to_multiple_of = {chunks}",
                slices(length),
                lengths.longest()
            ));
        }
    }
    None
}
