//! The data of experiments, checked before anything is written or run.

use std::path::{Path, PathBuf};

use super::failure::Failure;
use crate::data::{
    Blame, Contents, DataError, DataSet, DigestCache, Inspected, Weights, WeightsError, digest_of_both,
};
use crate::graph;
use crate::plan::Experiment;
use crate::spec::{Data, RunConfig};

/// The file in the results' folder that keeps the digests of files.
pub(super) const DIGESTS_FILE: &str = ".digests.json";

/// What is known of the data sets, each of which is looked at once however many runs use it.
pub(super) struct DataSets {
    digests: DigestCache,
    seen: Vec<(Data, Inspected)>,
    /// Files that parameters start from.
    weights: Vec<(PathBuf, Known)>,
}

/// What a file of parameters holds, and its digest.
type Known = Result<(Weights, String), WeightsError>;

impl DataSets {
    /// With what an earlier sweep kept in the results' folder.
    pub(super) fn new(out: &Path) -> DataSets {
        DataSets {
            digests: DigestCache::read(&out.join(DIGESTS_FILE)),
            seen: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// Whether every run of the experiment has data, and enough.
    pub(super) fn check(&mut self, experiment: &Experiment) -> Result<(), Failure> {
        let mut problems: Vec<String> = Vec::new();
        for config in experiment.points.iter().filter_map(|point| point.config.as_ref().ok()) {
            let data_set = config.data.data_set();
            let mut add = |error: &DataError| {
                let problem = blame(experiment, &*data_set, error);
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
            };
            match self.look(config, &*data_set) {
                Ok(found) => {
                    let (sample, evaluates) = (config.model.sample(), config.evaluation.is_some());
                    data_set.check(found, &sample, evaluates).unwrap_or_else(|error| add(&error));
                }
                Err(errors) => errors.iter().for_each(add),
            }
            if let Err(problem) = self.check_weights(experiment, config)
                && !problems.contains(&problem)
            {
                problems.push(problem);
            }
        }
        Failure::collect(problems.into_iter().map(|problem| Err(Failure::input(problem))))
            .map(|_: Vec<()>| ())
    }

    /// Whether the file has the model's parameters, if they start from one.
    fn check_weights(&mut self, experiment: &Experiment, config: &RunConfig) -> Result<(), String> {
        let Some(path) = config.model.weights() else { return Ok(()) };
        let known = self.weights.iter().position(|(known, _)| known == path);
        let index = known.unwrap_or_else(|| {
            let found = Weights::open(path)
                .and_then(|weights| weights.digest(&mut self.digests).map(|digest| (weights, digest)));
            self.weights.push((path.to_owned(), found));
            self.weights.len() - 1
        });
        let blame = |error: &WeightsError| {
            let key = format!("model.{}.weights", config.model.name());
            experiment.sources.error_at(&key, error.to_string(), Some(error.help().to_owned())).to_string()
        };
        let (weights, _) = self.weights[index].1.as_ref().map_err(blame)?;
        weights.check(&graph::build(&config.model, 1).named_parameters()).map_err(|error| blame(&error))
    }

    /// Keeps what was learnt in the results' folder, which exists.
    pub(super) fn keep(&self) -> Result<(), Failure> {
        self.digests
            .write()
            .map_err(|(file, error)| Failure::machine(format!("cannot write {}: {error}", file.display())))
    }

    fn look(&mut self, config: &RunConfig, data_set: &dyn DataSet) -> Result<&dyn Contents, &[DataError]> {
        let known = self.seen.iter().position(|(data, _)| *data == config.data);
        let index = known.unwrap_or_else(|| {
            self.seen.push((config.data.clone(), data_set.inspect(&mut self.digests)));
            self.seen.len() - 1
        });
        self.seen[index].1.as_ref().map(|contents| &**contents).map_err(Vec::as_slice)
    }

    /// The digest of data that was checked, and of what parameters start from.
    pub(super) fn digest(&self, config: &RunConfig) -> String {
        let found = self.seen.iter().find(|(data, _)| *data == config.data);
        let contents = found.and_then(|(_, contents)| contents.as_ref().ok());
        let data = contents.map(|contents| contents.digest()).unwrap_or_default();
        let weights = self.weights.iter().find(|(path, _)| Some(path.as_path()) == config.model.weights());
        let weights = weights.and_then(|(_, found)| found.as_ref().ok());
        digest_of_both(data, weights.map(|(_, digest)| digest.as_str()))
    }
}

/// An error that points at the line of the key, and at the one path of several.
fn blame(experiment: &Experiment, data_set: &dyn DataSet, error: &DataError) -> String {
    let path = error.path().and_then(|path| data_set.paths().iter().position(|known| known == path));
    let table = format!("data.{}", data_set.name());
    let key = match (error.blame(), path) {
        (Blame::Key(key), _) => key.to_owned(),
        (Blame::Data(key), Some(index)) => format!("{table}.{key}[{index}]"),
        (Blame::Data(key), None) => format!("{table}.{key}"),
        (Blame::DataSet, _) => table,
    };
    experiment.sources.error_at(&key, error.to_string(), Some(error.help())).to_string()
}
