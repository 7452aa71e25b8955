//! The data of experiments, checked before anything is written or run.

use std::path::{Path, PathBuf};

use super::failure::Failure;
use base::brief;
use data::{
    Blame, Contents, DataError, DataSet, DigestCache, Inspected, Weights, WeightsError, check_order,
    digest_of_both,
};
use plan::Experiment;
use spec::{Data, RunConfig};

/// The file in the results' folder that keeps the digests of files.
pub(super) const DIGESTS_FILE: &str = ".digests.json";

/// What is known of the data sets, each of which is looked at once however many runs use it.
pub(super) struct DataSets {
    digests: DigestCache,
    seen: Vec<(Data, Inspected)>,
    /// Files that parameters start from.
    weights: Vec<(PathBuf, OpenedWeights)>,
}

/// What a file of parameters holds, and its digest.
type OpenedWeights = Result<(Weights, String), WeightsError>;

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
        self.check_all(experiment, false).map(|_| ())
    }

    /// The same of what is here, for a plan that needs no more. Says in a line what is not, if anything is.
    pub(super) fn check_what_is_here(&mut self, experiment: &Experiment) -> Result<Option<String>, Failure> {
        let absent = self.check_all(experiment, true)?;
        let name = brief::line(&experiment.name);
        Ok((!absent.is_empty()).then(|| {
            let files = brief::line(&absent.join(", ")).into_owned();
            format!("the data of {name} is not here ({files}): its runs have no id, and a sweep needs it")
        }))
    }

    /// Returns the files and globs that are not here, where that is no mistake.
    fn check_all(&mut self, experiment: &Experiment, may_be_absent: bool) -> Result<Vec<String>, Failure> {
        let mut problems: Vec<String> = Vec::new();
        let mut absent: Vec<String> = Vec::new();
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
                    let (sample, evaluates) = (config.sample(), config.evaluation.is_some());
                    data_set.check(found, &sample, evaluates).unwrap_or_else(|error| add(&error));
                    let (order, batch_size) = (config.train.order(), config.train.batch_size);
                    check_order(found, &sample, order, batch_size).unwrap_or_else(|error| add(&error));
                }
                Err(errors)
                    if may_be_absent
                        && data_set.is_known_unread()
                        && errors.iter().all(DataError::is_absence) =>
                {
                    errors.iter().filter_map(DataError::path).for_each(|path| note(path, &mut absent));
                }
                Err(errors) => errors.iter().for_each(add),
            }
            self.check_weights(config, |path, error| match may_be_absent && error.is_absence() {
                true => note(path, &mut absent),
                false => {
                    let key = format!("model.{}.weights", config.model.name());
                    let help = Some(error.help().to_owned());
                    let problem = experiment.sources.error_at(&key, error.to_string(), help).to_string();
                    if !problems.contains(&problem) {
                        problems.push(problem);
                    }
                }
            });
        }
        Failure::collect(problems.into_iter().map(|problem| Err(Failure::input(problem))))
            .map(|_: Vec<()>| absent)
    }

    /// Tells what is wrong with the file that the model's parameters start from, if there is one.
    fn check_weights(&mut self, config: &RunConfig, mut tell: impl FnMut(&Path, &WeightsError)) {
        let Some(path) = config.model.weights() else { return };
        let known = self.weights.iter().position(|(known, _)| known == path);
        let index = known.unwrap_or_else(|| {
            let found = Weights::open(path)
                .and_then(|weights| weights.digest(&mut self.digests).map(|digest| (weights, digest)));
            self.weights.push((path.to_owned(), found));
            self.weights.len() - 1
        });
        match &self.weights[index].1 {
            Err(error) => tell(path, error),
            Ok((weights, _)) => {
                let needed = graph::needed(&config.model);
                weights.check(&needed).unwrap_or_else(|error| tell(path, &error));
            }
        }
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

    /// How many tokens there are of data that was looked at, where they lie in a row.
    pub(super) fn tokens(&self, config: &RunConfig) -> Option<usize> {
        let (_, contents) = self.seen.iter().find(|(data, _)| *data == config.data)?;
        contents.as_ref().ok()?.tokens()
    }

    /// The digest of data that was checked, and of what parameters start from; `None` where one of them is not here.
    pub(super) fn digest(&self, config: &RunConfig) -> Option<String> {
        let (_, contents) = self.seen.iter().find(|(data, _)| *data == config.data)?;
        let data = contents.as_ref().ok()?.digest();
        let Some(file) = config.model.weights() else { return Some(digest_of_both(data, None)) };
        let (_, found) = self.weights.iter().find(|(path, _)| path == file)?;
        let (_, weights) = found.as_ref().ok()?;
        Some(digest_of_both(data, Some(weights)))
    }
}

/// Takes a path to others, unless it is among them.
fn note(path: &Path, others: &mut Vec<String>) {
    let path = path.display().to_string();
    if !others.contains(&path) {
        others.push(path);
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
