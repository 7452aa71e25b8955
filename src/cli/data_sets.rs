//! The data of experiments, checked before anything is written or run.

use std::path::Path;

use super::failure::Failure;
use crate::data::{Blame, Contents, DataError, DataSet, DigestCache};
use crate::plan::Experiment;
use crate::spec::{Data, RunConfig};

/// The file in the results' folder that keeps the digests of files.
const DIGESTS_FILE: &str = ".digests.json";

/// What is known of the data sets, each of which is looked at once however many runs use it.
pub(super) struct DataSets {
    digests: DigestCache,
    seen: Vec<(Data, Box<dyn Contents>)>,
}

impl DataSets {
    /// With what an earlier sweep kept in the results' folder.
    pub(super) fn new(out: &Path) -> DataSets {
        DataSets { digests: DigestCache::read(&out.join(DIGESTS_FILE)), seen: Vec::new() }
    }

    /// Whether every run of the experiment has data, and enough.
    pub(super) fn check(&mut self, experiment: &Experiment) -> Result<(), Failure> {
        for config in experiment.points.iter().filter_map(|point| point.config.as_ref().ok()) {
            let data_set = config.data.data_set();
            let (sample, evaluates) = (config.model.sample(), config.evaluation.is_some());
            self.look(config, &*data_set)
                .and_then(|found| data_set.check(found, &sample, evaluates))
                .map_err(|error| blame(experiment, &*data_set, &error))?;
        }
        Ok(())
    }

    /// Keeps what was learnt in the results' folder, which exists.
    pub(super) fn keep(&self) -> std::io::Result<()> {
        self.digests.write()
    }

    fn look(&mut self, config: &RunConfig, data_set: &dyn DataSet) -> Result<&dyn Contents, DataError> {
        let known = self.seen.iter().position(|(data, _)| *data == config.data);
        let index = match known {
            Some(index) => index,
            None => {
                self.seen.push((config.data.clone(), data_set.inspect(&mut self.digests)?));
                self.seen.len() - 1
            }
        };
        Ok(&*self.seen[index].1)
    }

    /// The digest of data that was checked.
    pub(super) fn digest(&self, config: &RunConfig) -> String {
        let found = self.seen.iter().find(|(data, _)| *data == config.data);
        found.map(|(_, contents)| contents.digest().to_owned()).unwrap_or_default()
    }
}

/// An error that points at the line of the key, and at the one path of several.
fn blame(experiment: &Experiment, data_set: &dyn DataSet, error: &DataError) -> Failure {
    let path = error.path().and_then(|path| data_set.paths().iter().position(|known| known == path));
    let table = format!("data.{}", data_set.name());
    let key = match (error.blame(), path) {
        (Blame::Key(key), _) => key.to_owned(),
        (Blame::Data(key), Some(index)) => format!("{table}.{key}[{index}]"),
        (Blame::Data(key), None) => format!("{table}.{key}"),
        (Blame::DataSet, _) => table,
    };
    Failure::input(experiment.sources.error_at(&key, error.to_string(), Some(error.help())))
}
