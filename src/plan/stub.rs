//! (stands in for the planner)

use sha2::{Digest, Sha256};

use super::{Experiment, Plan, PlannedRun};
use crate::device::Target;
use crate::spec::RunConfig;

/// All runs of an experiment on a target.
pub fn plan(experiment: Experiment, target: &Target, data_digest: impl Fn(&RunConfig) -> String) -> Plan {
    let mut runs: Vec<PlannedRun> = Vec::new();
    for point in experiment.points {
        let configuration = match &point.config {
            Ok(config) => hash(&(config, data_digest(config))),
            Err(_) => String::new(),
        };
        let same = runs.iter().find(|run| run.configuration == configuration && run.config.is_ok());
        runs.push(PlannedRun {
            id: hash(&(&configuration, target))[..12].to_string(),
            same_as: same.map(|run| run.strategy.clone()),
            configuration,
            strategy: point.strategy,
            axes: point.axes,
            config: point.config,
            prediction: None,
            no_effect: Vec::new(),
        });
    }
    Plan {
        experiment: experiment.name,
        file: experiment.file,
        baseline: experiment.baseline,
        target: target.clone(),
        repeats: experiment.repeats,
        axes: experiment.axes,
        runs,
    }
}

fn hash(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_vec(value).unwrap_or_default();
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}
