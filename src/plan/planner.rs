//! Plans an experiment: compiles and predicts every run.

use std::sync::Arc;

use super::ParetoFronts;
use super::error::PlanError;
use super::expand::{Experiment, Point};
use super::feasible::{skip_infeasible, skip_unsupported};
use super::forecast::{Forecast, ForecastRequest, Forecasts};
use super::identity::{configuration_id, run_id};
use super::planned::{Plan, PlannedRun};
use super::torch::have_same_script;
use base::parallel;
use device::{DeviceKind, Target};
use spec::{Budget, Framework, Recompute, RunConfig};

/// The purpose of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Runs that require another kind of device are skipped.
    Train,
    /// Memory is predicted for any target, and without the data if only shapes matter.
    Predict,
}

/// Predicts all runs of an experiment on a target. A run's id includes the digest of its data: without the digest, the
/// id is empty.
///
/// # Errors
/// A compiled program that breaks an invariant; infeasible budgets, if no run is left.
pub fn plan(
    mut experiment: Experiment,
    target: &Target,
    purpose: Purpose,
    data_digest: &(dyn Fn(&RunConfig) -> Option<String> + Sync),
) -> Result<Plan, PlanError> {
    let unsuited = experiment.requires.filter(|kind| *kind != target.kind).map(|kind| {
        let kind = match kind {
            DeviceKind::Cpu => "a CPU",
            DeviceKind::Cuda => "a CUDA device",
        };
        format!("the experiment requires {kind}, the target is {}", target.name)
    });
    skip_unsupported(&mut experiment, target, purpose);
    let skip = unsuited.as_deref().filter(|_| purpose == Purpose::Train);
    let pareto_fronts = Arc::new(ParetoFronts::default());
    if skip.is_none() {
        skip_infeasible(&mut experiment, &pareto_fronts, || Ok::<_, PlanError>(target.clone()))?;
    }
    let points = if skip.is_none() { experiment.points.as_slice() } else { &[] };
    let requests = points.iter().flat_map(forecast_requests);
    let forecasts = Forecasts::new(requests, target, experiment.plan, pareto_fronts)
        .map_err(|(strategy, violation)| PlanError::Violation { strategy, violation })?;
    let framework = experiment.plan.framework;
    let runs = parallel::map(experiment.points, |point| {
        plan_point(point, target, framework, skip, data_digest, &forecasts)
    });
    Ok(Plan {
        experiment: experiment.name,
        file: experiment.file,
        baseline: experiment.baseline,
        target: target.clone(),
        link: experiment.link,
        unsuited,
        repeats: experiment.repeats,
        axes: experiment.axes,
        overrides: experiment.overrides,
        keys: experiment.plan,
        runs: runs.into_iter().collect::<Result<_, _>>()?,
    })
}

/// The forecasts needed to plan a point: of its configuration, and of those without one of its keys.
fn forecast_requests(point: &Point) -> Vec<ForecastRequest<'_>> {
    let Ok(config) = &point.config else { return Vec::new() };
    let strategy = point.strategy.as_str();
    let others = point.without.iter().filter(|(_, other)| differ_in_memory_choices(config, other));
    let others = others.map(|(_, other)| ForecastRequest {
        config: other,
        wants_largest_micro_batch: false,
        strategy,
    });
    std::iter::once(ForecastRequest { config, wants_largest_micro_batch: true, strategy })
        .chain(others)
        .collect()
}

/// Whether only the strategy differs. Keys outside it (a learning rate, a seed) have effects other than on memory.
fn differ_in_memory_choices(config: &RunConfig, other: &RunConfig) -> bool {
    RunConfig { strategy: config.strategy.clone(), ..other.clone() } == *config
}

fn plan_point(
    point: Point,
    target: &Target,
    framework: Framework,
    unsuited: Option<&str>,
    data_digest: &(dyn Fn(&RunConfig) -> Option<String> + Sync),
    forecasts: &Forecasts<'_>,
) -> Result<PlannedRun, PlanError> {
    let Point { strategy, axes, config, without, unread: _, unneeded: _, source: _ } = point;
    let with_strategy = |violation| PlanError::Violation { strategy: strategy.clone(), violation };
    let skipped = |reason: String, id: String, configuration: String| PlannedRun {
        id,
        configuration,
        data: String::new(),
        strategy: strategy.clone(),
        axes: axes.clone(),
        config: Err(reason),
        prediction: None,
        fits_micro_batch: None,
        fits_work: None,
        torch: None,
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
    let Forecast { prediction, largest, mut torch, .. } = forecasts.of(&config).clone();
    // The available memory varies a little, and decides the recompute plan: that is part of the id.
    let id = match config.strategy.recompute {
        Recompute::Budget(Budget::Memory) => {
            run_id(&format!("{configuration} {}", forecasts.of(&config).recompute_plan()))
        }
        _ => run_id(&configuration),
    };
    let mut no_effect = Vec::new();
    for (key, other) in without {
        let may_have_no_effect = differ_in_memory_choices(&config, &other)
            && config.strategy.loader.assembles_like(&other.strategy.loader);
        if let (true, Framework::Pytorch, Some(Ok(torch))) = (may_have_no_effect, framework, &mut torch)
            && have_same_script(target, &config, &other)
        {
            torch.no_effect.push(key.clone());
        }
        if may_have_no_effect && forecasts.compile_equally(&config, &other).map_err(with_strategy)? {
            no_effect.push(key);
        }
    }
    Ok(PlannedRun {
        id,
        configuration,
        data: data.unwrap_or_default(),
        strategy,
        axes,
        config: Ok(config),
        prediction: Some(prediction),
        fits_micro_batch: largest.as_ref().map(|largest| largest.micro_batch),
        fits_work: largest.and_then(|largest| largest.work),
        torch: torch.map(|torch| torch.map_err(|reason| reason.to_string())),
        no_effect,
    })
}
