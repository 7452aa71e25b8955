//! Compiles and predicts every run of an experiment.

use std::collections::BTreeMap;

use super::InfeasibleBudget;
use super::expand::{Experiment, Point};
use super::forecast::{Forecast, Forecasts, Wanted};
use super::identity::{configuration_id, run_id};
use super::planned::{Plan, PlannedRun};
use base::parallel;
use compile::Violation;
use device::{DeviceKind, Target};
use spec::{Budget, LoadedFrom, Problem, Recompute, RunConfig};

/// Why an experiment could not be planned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A mistake in this program, named by the run that shows it.
    #[error("strategy `{strategy}`: {violation}")]
    Violation { strategy: String, violation: Violation },
    /// Strategies whose memory budget is met at no point of the sweep.
    #[error("{0}")]
    InfeasibleBudget(spec::Error),
}

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Runs that the target's kind of device does not suit are skipped.
    Train,
    /// Memory can be predicted for any target, and without the data where only shapes matter.
    Predict,
}

/// Predicts all runs of an experiment on a target. The data's digest is part of a run's identity: where it is not known, runs have
/// none.
///
/// # Errors
/// A compiled program that breaks an invariant.
pub fn plan(
    mut experiment: Experiment,
    target: &Target,
    purpose: Purpose,
    data_digest: &(dyn Fn(&RunConfig) -> Option<String> + Sync),
) -> Result<Plan, PlanError> {
    for point in &mut experiment.points {
        point.without.retain(|(_, other)| holds_unknown(other).is_none());
        if let Some(source) = point.config.as_ref().ok().and_then(holds_unknown) {
            point.config = Err(format!(
                "loader.source = \"{source}\" holds all of the data, and how much that is is known only where it is"
            ));
        }
    }
    let unsuited = experiment.requires.filter(|kind| *kind != target.kind).map(|kind| {
        let kind = match kind {
            DeviceKind::Cpu => "a CPU",
            DeviceKind::Cuda => "a CUDA device",
        };
        format!("the experiment requires {kind}, the target is {}", target.name)
    });
    let skip = unsuited.as_deref().filter(|_| purpose == Purpose::Train);
    let asked = if skip.is_none() { experiment.points.as_slice() } else { &[] };
    let forecasts = Forecasts::new(asked.iter().flat_map(wanted), target)
        .map_err(|(strategy, violation)| PlanError::Violation { strategy, violation })?;
    if let Some(error) = never_met(&experiment, skip, &forecasts) {
        return Err(PlanError::InfeasibleBudget(error));
    }
    let runs =
        parallel::map(experiment.points, |point| plan_point(point, target, skip, data_digest, &forecasts));
    Ok(Plan {
        experiment: experiment.name,
        file: experiment.file,
        baseline: experiment.baseline,
        target: target.clone(),
        unsuited,
        repeats: experiment.repeats,
        axes: experiment.axes,
        overrides: experiment.overrides,
        runs: runs.into_iter().collect::<Result<_, _>>()?,
    })
}

/// The source of a run that holds data of which it is not known how much there is.
fn holds_unknown(config: &RunConfig) -> Option<&'static str> {
    let source = config.strategy.loader.source;
    (source != LoadedFrom::Stream && config.tokens.is_none()).then(|| source.name())
}

/// What must be known to plan a point: its own memory, and that without each of its keys.
fn wanted(point: &Point) -> Vec<Wanted<'_>> {
    let Ok(config) = &point.config else { return Vec::new() };
    let strategy = point.strategy.as_str();
    let others = point.without.iter().filter(|(_, other)| differ_in_memory_choices(config, other));
    let others = others.map(|(_, other)| Wanted { config: other, fits: false, strategy });
    std::iter::once(Wanted { config, fits: true, strategy }).chain(others).collect()
}

/// What is wrong with strategies that run nowhere, for no point of the sweep meets their budget.
fn never_met(experiment: &Experiment, skip: Option<&str>, forecasts: &Forecasts<'_>) -> Option<spec::Error> {
    if skip.is_some() {
        return None;
    }
    // By strategy: the run that comes nearest to meeting it, none where one does.
    let mut unmet: BTreeMap<&str, Option<(InfeasibleBudget, &Point)>> = BTreeMap::new();
    for point in &experiment.points {
        let Ok(config) = &point.config else { continue };
        let found = forecasts.of(config).unmet.map(|unmet| (unmet, point));
        let known = unmet.entry(&point.origin.strategy).or_insert(found);
        *known = match (*known, found) {
            (Some(one), Some(other)) if other.0.smallest < one.0.smallest => Some(other),
            (known, found) => found.and(known),
        };
    }
    let problem = |(strategy, found): (&str, Option<(InfeasibleBudget, &Point)>)| {
        let (unmet, point) = found?;
        let problem = Problem::new(format!("{strategy}: {}", unmet.what())).help(unmet.help());
        Some(point.origin.recompute.into_iter().fold(problem, Problem::at))
    };
    let problems: Vec<Problem> = unmet.into_iter().filter_map(problem).collect();
    (!problems.is_empty()).then(|| experiment.sources.error(&problems))
}

/// A key that changes more than the memory choices (a learning rate, a seed) has its effect elsewhere.
fn differ_in_memory_choices(config: &RunConfig, other: &RunConfig) -> bool {
    RunConfig { strategy: config.strategy.clone(), ..other.clone() } == *config
}

fn plan_point(
    point: Point,
    target: &Target,
    unsuited: Option<&str>,
    data_digest: &(dyn Fn(&RunConfig) -> Option<String> + Sync),
    forecasts: &Forecasts<'_>,
) -> Result<PlannedRun, PlanError> {
    let Point { strategy, axes, config, without, origin: _ } = point;
    let blame = |violation| PlanError::Violation { strategy: strategy.clone(), violation };
    let skipped = |reason: String, id: String, configuration: String| PlannedRun {
        id,
        configuration,
        data: String::new(),
        strategy: strategy.clone(),
        axes: axes.clone(),
        config: Err(reason),
        prediction: None,
        fits_micro_batch: None,
        no_effect: Vec::new(),
    };
    let config = match config {
        Ok(config) => config,
        Err(reason) => {
            let label: Vec<&str> = axes.iter().flat_map(|(key, value)| [key.as_str(), value]).collect();
            let configuration = run_id(&format!("{strategy} {}", label.join(" ")), target);
            return Ok(skipped(reason, configuration.clone(), configuration));
        }
    };
    let data = data_digest(&config);
    let configuration = configuration_id(&config, data.as_deref().unwrap_or_default());
    let run_id =
        |configuration: &str| data.as_ref().map_or_else(String::new, |_| run_id(configuration, target));
    if let Some(reason) = unsuited {
        let id = run_id(&configuration);
        return Ok(skipped(reason.to_owned(), id, configuration));
    }
    let Forecast { prediction, fits, unmet, .. } = forecasts.of(&config).clone();
    // How much memory there is differs a little each time, and that decides what is computed again.
    let id = match config.strategy.recompute {
        Recompute::Budget(Budget::Memory) => {
            run_id(&format!("{configuration} {}", forecasts.of(&config).recompute_plan()))
        }
        _ => run_id(&configuration),
    };
    let mut no_effect = Vec::new();
    for (key, other) in without {
        let may_be_idle = differ_in_memory_choices(&config, &other)
            && config.strategy.loader.assembles_like(&other.strategy.loader);
        if may_be_idle && forecasts.same(&config, &other).map_err(blame)? {
            no_effect.push(key);
        }
    }
    if let Some(unmet) = unmet {
        return Ok(skipped(format!("{}; {}", unmet.what(), unmet.help()), id, configuration));
    }
    Ok(PlannedRun {
        id,
        configuration,
        data: data.unwrap_or_default(),
        strategy,
        axes,
        config: Ok(config),
        prediction: Some(prediction),
        fits_micro_batch: fits,
        no_effect,
    })
}
