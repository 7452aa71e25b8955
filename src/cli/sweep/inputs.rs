//! Everything that the user wrote, read and checked before anything is written or run.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::Args;
use crate::cli::failure::Failure;
use crate::cli::files;
use crate::data::{DataError, DigestCache, Summary, TextFiles};
use crate::device;
use crate::plan::{self, Experiment, Plan};
use crate::spec::{Data, Model, RunConfig};

/// The file in the results' folder that keeps the digests of data.
const DIGESTS_FILE: &str = ".digests.json";

/// What the arguments and files amount to.
pub(super) struct Inputs {
    pub(super) plans: Vec<Plan>,
    /// To be written once the results' folder is there.
    pub(super) digests: DigestCache,
}

/// Reads all files. Every file's problems are found, not only those of the first.
pub(super) fn read(args: &Args) -> Result<Inputs, Failure> {
    let experiments = files::expand_all(&args.files, &args.set)?;
    let mut data = DataSets::new(&args.out.join(DIGESTS_FILE));
    Failure::collect(experiments.iter().map(|experiment| data.check(experiment)))?;
    let plans = experiments.into_iter().map(|experiment| plan(args, experiment, &data));
    let plans = plans.collect::<Result<Vec<Plan>, Failure>>()?;
    check_filter(args, &plans)?;
    Ok(Inputs { plans, digests: data.digests })
}

fn plan(args: &Args, experiment: Experiment, data: &DataSets) -> Result<Plan, Failure> {
    // The command line wins.
    let memory = args.memory.or(experiment.memory);
    let target = device::detect(args.device, memory).map_err(Failure::input)?;
    let mut plan = plan::plan(experiment, &target, |config| data.digest(config));
    if let Some(repeats) = args.repeats {
        plan.repeats = repeats as usize;
    }
    Ok(plan)
}

/// A filter that lets nothing through is a mistake.
fn check_filter(args: &Args, plans: &[Plan]) -> Result<(), Failure> {
    let Some(filter) = &args.filter else {
        return Ok(());
    };
    let mut seen = HashSet::new();
    let labels = plans.iter().flat_map(|plan| &plan.runs).map(|run| run.strategy.as_str());
    let labels: Vec<&str> = labels.filter(|label| seen.insert(*label)).collect();
    if labels.iter().any(|label| filter.matches(label)) {
        return Ok(());
    }
    Err(Failure::input(format!("no strategy matches --filter {filter}; there are: {}", labels.join(", "))))
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
                .map_err(|error| blame(experiment, config, &error))?;
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

/// An error that points at the line of the key, and at the one path of several.
fn blame(experiment: &Experiment, config: &RunConfig, error: &DataError) -> Failure {
    let Data::Text(text) = &config.data;
    let path = error.path().and_then(|path| text.paths.iter().position(|known| known == path));
    let key = match (error.key(), path) {
        ("context", _) => "model.transformer.context".to_string(),
        (key, Some(index)) => format!("{key}[{index}]"),
        (key, None) => key.to_string(),
    };
    Failure::input(experiment.sources.error_at(&key, error.to_string(), Some(error.help())))
}
