//! The data of experiments, checked before anything is written or run.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use crate::data::{DataError, DigestCache, Summary, TextFiles};
use crate::plan::Experiment;
use crate::spec::{Data, Model, RunConfig};

/// The file in the results' folder that keeps the digests of files.
const DIGESTS_FILE: &str = ".digests.json";

/// What is known of the data sets, each of which is looked at once however many runs use it.
pub(super) struct DataSets {
    digests: DigestCache,
    /// By paths and split.
    seen: HashMap<(Vec<PathBuf>, u64), Summary>,
}

impl DataSets {
    /// With what an earlier sweep kept in the results' folder.
    pub(super) fn new(out: &Path) -> DataSets {
        DataSets { digests: DigestCache::read(&out.join(DIGESTS_FILE)), seen: HashMap::new() }
    }

    /// Whether every run of the experiment has data, and enough.
    pub(super) fn check(&mut self, experiment: &Experiment) -> Result<(), Failure> {
        for config in experiment.points.iter().filter_map(|point| point.config.as_ref().ok()) {
            let Model::Transformer(model) = &config.model;
            self.look(config)
                .and_then(|summary| summary.splits.check(model.context, config.evaluation.is_some()))
                .map_err(|error| blame(experiment, config, &error))?;
        }
        Ok(())
    }

    /// Keeps what was learnt in the results' folder, which exists.
    pub(super) fn keep(&self) -> std::io::Result<()> {
        self.digests.write()
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

    /// The digest of data that was checked.
    pub(super) fn digest(&self, config: &RunConfig) -> String {
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
