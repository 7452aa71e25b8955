//! Compiles and predicts every run of an experiment.

use rayon::prelude::*;

use super::expand::{Experiment, Point};
use super::fits::Fits;
use super::identity::{configuration_id, run_id};
use super::planned::{Plan, PlannedRun};
use crate::compile::{Program, Violation, compile};
use crate::device::{DeviceKind, Target};
use crate::memory::{Prediction, predict};
use crate::spec::RunConfig;

/// Why an experiment could not be planned: a mistake in this program, named by the run that shows it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("strategy `{strategy}`: {violation}")]
pub struct PlanError {
    pub strategy: String,
    pub violation: Violation,
}

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Runs that the target's kind of device does not suit are skipped.
    Train,
    /// Memory can be predicted for any target.
    Predict,
}

/// Predicts all runs of an experiment on a target. The data's digest is part of a run's identity.
///
/// # Errors
/// A compiled program that breaks an invariant.
pub fn plan(
    experiment: Experiment,
    target: &Target,
    purpose: Purpose,
    data_digest: &(dyn Fn(&RunConfig) -> String + Sync),
) -> Result<Plan, PlanError> {
    let unsuited = experiment.requires.filter(|kind| *kind != target.kind).map(|kind| {
        let kind = match kind {
            DeviceKind::Cpu => "a CPU",
            DeviceKind::Cuda => "a CUDA device",
        };
        format!("the experiment requires {kind}, the target is {}", target.name)
    });
    let skip = unsuited.as_deref().filter(|_| purpose == Purpose::Train);
    let fits = Fits::new(target);
    let runs: Result<Vec<PlannedRun>, PlanError> = experiment
        .points
        .into_par_iter()
        .map(|point| plan_point(point, target, skip, data_digest, &fits))
        .collect();
    Ok(Plan {
        experiment: experiment.name,
        file: experiment.file,
        baseline: experiment.baseline,
        target: target.clone(),
        unsuited,
        repeats: experiment.repeats,
        axes: experiment.axes,
        runs: runs?,
    })
}

fn plan_point(
    point: Point,
    target: &Target,
    unsuited: Option<&str>,
    data_digest: &(dyn Fn(&RunConfig) -> String + Sync),
    fits: &Fits,
) -> Result<PlannedRun, PlanError> {
    let Point { strategy, axes, config, without } = point;
    let blame = |violation| PlanError { strategy: strategy.clone(), violation };
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
    let configuration = configuration_id(&config, &data);
    let id = run_id(&configuration, target);
    if let Some(reason) = unsuited {
        return Ok(skipped(reason.to_owned(), id, configuration));
    }
    let (program, prediction) = compile_and_predict(&config, target).map_err(blame)?;
    let mut no_effect = Vec::new();
    for (key, other) in without {
        // A key that changes more than the memory choices (a learning rate, a seed) has its effect elsewhere.
        let memory_alone = RunConfig { strategy: config.strategy.clone(), ..other.clone() } == config;
        if memory_alone && same_program(&program, &prediction, &other, target).map_err(blame)? {
            no_effect.push(key);
        }
    }
    let fits_micro_batch = fits.largest(&config).map_err(blame)?;
    let prediction = Some(prediction);
    Ok(PlannedRun {
        id,
        configuration,
        data,
        strategy,
        axes,
        config: Ok(config),
        prediction,
        fits_micro_batch,
        no_effect,
    })
}

fn compile_and_predict(config: &RunConfig, target: &Target) -> Result<(Program, Prediction), Violation> {
    let program = compile(config, target)?;
    let prediction = predict(&program, target);
    Ok((program, prediction))
}

/// Whether another configuration compiles to the same program with the same ledger.
fn same_program(
    program: &Program,
    prediction: &Prediction,
    other: &RunConfig,
    target: &Target,
) -> Result<bool, Violation> {
    let (other_program, other_prediction) = compile_and_predict(other, target)?;
    Ok(*prediction == other_prediction && *program == other_program)
}
