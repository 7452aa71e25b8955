//! Everything that the user wrote, read and checked before anything is written or run. What `sweep`, `plan` and
//! `explain` have in common.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::files;
use crate::data::{DataError, DigestCache, Summary, TextFiles};
use crate::device::{self, DeviceChoice, Target};
use crate::plan::{self, Experiment, Plan, Purpose};
use crate::spec::{Data, Model, RunConfig};
use crate::units::Bytes;

/// The file in the results' folder that keeps the digests of data.
const DIGESTS_FILE: &str = ".digests.json";

/// Which experiments, and what of them the command line changes.
#[derive(Debug, clap::Args)]
pub(super) struct InputArgs {
    /// Experiment files, or patterns such as 'experiments/*.toml'
    #[arg(required = true, value_name = "FILES")]
    files: Vec<String>,
    /// Change a key of every experiment, such as train.seed=1
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where to train; `auto` takes a CUDA device if there is one
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// Behave like a device with this much memory, such as 16GiB
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
}

/// What the arguments and files amount to.
pub(super) struct Inputs {
    pub(super) plans: Vec<Plan>,
    /// To be written once the results' folder is there.
    pub(super) digests: DigestCache,
}

impl InputArgs {
    /// Reads all files; every file's problems are found, not only those of the first. Digests of data that are
    /// known already lie in the results' folder `out`. With a `target`, plans for that machine.
    pub(super) fn read(&self, purpose: Purpose, out: &Path, target: Option<&Path>) -> Result<Inputs, Failure> {
        let target = target.map(|file| Target::read(file).map_err(Failure::input)).transpose()?;
        let mut data = DataSets::new(&out.join(DIGESTS_FILE));
        let experiments = files::expand_all(&self.files, &self.set)?;
        let failures = experiments.iter().filter_map(|experiment| data.check(experiment).err()).collect();
        if let Some(failure) = Failure::all(failures) {
            return Err(failure);
        }
        let plans = experiments.into_iter().map(|experiment| self.plan(purpose, experiment, target.as_ref(), &data));
        let plans = plans.collect::<Result<Vec<Plan>, Failure>>()?;
        Ok(Inputs { plans, digests: data.digests })
    }

    fn plan(
        &self,
        purpose: Purpose,
        experiment: Experiment,
        target: Option<&Target>,
        data: &DataSets,
    ) -> Result<Plan, Failure> {
        let memory = self.memory.or(experiment.memory);
        let target = match (target, memory) {
            (None, memory) => device::detect(self.device, memory).map_err(Failure::input)?,
            (Some(target), None) => target.clone(),
            (Some(target), Some(memory)) => target.clone().with_memory(memory),
        };
        plan::plan(experiment, &target, purpose, &|config| data.digest(config)).map_err(Failure::machine)
    }
}

/// What is known of the data sets, each of which is looked at once however many runs use it.
struct DataSets {
    digests: DigestCache,
    /// By paths and split.
    seen: HashMap<(Vec<PathBuf>, u64), Summary>,
}

impl DataSets {
    fn new(cache: &Path) -> DataSets {
        DataSets { digests: DigestCache::read(cache), seen: HashMap::new() }
    }

    /// Whether every run of the experiment has data, and enough.
    fn check(&mut self, experiment: &Experiment) -> Result<(), Failure> {
        for config in experiment.points.iter().filter_map(|point| point.config.as_ref().ok()) {
            let Model::Transformer(model) = &config.model;
            self.look(config)
                .and_then(|summary| summary.splits.check(model.context, config.evaluation.is_some()))
                .map_err(|error| blame(experiment, &error))?;
        }
        Ok(())
    }

    fn look(&mut self, config: &RunConfig) -> Result<&Summary, DataError> {
        let Data::Text(text) = &config.data;
        let key = (text.paths.clone(), text.split.to_bits());
        match self.seen.entry(key) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                Ok(place.insert(TextFiles::inspect(&text.paths, text.split, &mut self.digests)?))
            }
        }
    }

    /// Of data that was looked at.
    fn digest(&self, config: &RunConfig) -> String {
        let Data::Text(text) = &config.data;
        let summary = self.seen.get(&(text.paths.clone(), text.split.to_bits()));
        summary.map(|summary| summary.digest.clone()).unwrap_or_default()
    }
}

/// Blames the line that the data's key was written in.
fn blame(experiment: &Experiment, error: &DataError) -> Failure {
    Failure::input(experiment.sources.error_at(error.key(), error.to_string(), None))
}
