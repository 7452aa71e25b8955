//! A plan: an expanded experiment with the predictions of its runs.

use std::path::PathBuf;

use super::TorchForecast;
use base::rates::BytesPerSecond;
use device::Target;
use memory::{Prediction, StepWork};
use spec::{PlanKeys, Repeats, RunConfig};

/// All runs of an experiment on one target.
#[derive(Clone, Debug)]
pub struct Plan {
    pub experiment: String,
    pub file: PathBuf,
    pub baseline: String,
    pub target: Target,
    /// `[target] link`.
    pub link: Option<BytesPerSecond>,
    /// Why the experiment cannot be trained on the target, if it cannot.
    pub unsuited: Option<String>,
    pub repeats: Repeats,
    pub axes: Vec<String>,
    /// Keys and values that the command line sets in every run.
    pub overrides: Vec<(String, String)>,
    /// `[plan]`
    pub keys: PlanKeys,
    /// In table order. Runs that resolve to the same configuration share their id.
    pub runs: Vec<PlannedRun>,
}

/// One run, predicted.
#[derive(Clone, Debug)]
pub struct PlannedRun {
    /// Digest of configuration, target and data, the name of the run's folder. Empty if the data is not on this
    /// machine.
    pub id: String,
    /// Digest of configuration and data alone: equal for the same run on another target.
    pub configuration: String,
    /// Digest of the data, which must be the same when the run starts. Empty if the run is skipped or the data is not
    /// on this machine.
    pub data: String,
    pub strategy: String,
    pub axes: Vec<(String, String)>,
    /// The complete configuration, or why this combination is invalid.
    pub config: Result<RunConfig, String>,
    pub prediction: Option<Prediction>,
    /// The largest micro-batch that the target's memory allows, 0 if not even one sample fits. `None` if it is skipped.
    pub fits_micro_batch: Option<usize>,
    /// The work of a step with that micro-batch, if it is known.
    pub fits_work: Option<StepWork>,
    /// PyTorch's memory on the target, or why it is not predicted. `None` if the run is skipped, or the target is not a
    /// known card.
    pub torch: Option<Result<TorchForecast, String>>,
    /// Strategy keys that change neither the program nor its memory.
    pub no_effect: Vec<String>,
}
