//! Checks the data sets of experiments before anything is written or run.

use std::path::{Path, PathBuf};

use super::failure::{Failure, MOST_SHOWN};
use super::output;
use base::brief;
use base::units::Bytes;
use data::{
    Contents, DataError, DataSet, DigestCache, ErrorKey, Inspected, Note, Weights, WeightsError, Work,
    check_order, digest_of_both,
};
use plan::Experiment;
use spec::{Data, RunConfig};

/// The file in the results folder that caches the digests of data files.
pub(super) const DIGESTS_FILE: &str = ".digests.json";

/// Inspected data sets. Each is inspected once, however many runs use it.
pub(super) struct DataSets {
    digests: DigestCache,
    seen: Vec<(Data, Inspected)>,
    /// Checkpoints that parameters are loaded from.
    weights: Vec<(PathBuf, OpenedWeights)>,
}

/// A checkpoint's tensors and digest.
type OpenedWeights = Result<(Weights, String), WeightsError>;

impl DataSets {
    /// Starts with the digests that an earlier sweep cached in the results folder.
    pub(super) fn new(out: &Path) -> DataSets {
        DataSets {
            digests: DigestCache::read(&out.join(DIGESTS_FILE)).telling(tell),
            seen: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// Checks that every run of the experiment has enough data.
    pub(super) fn check(&mut self, experiment: &Experiment) -> Result<(), Failure> {
        self.check_all(experiment, false).map(|_| ())
    }

    /// The same for a plan, which tolerates missing files. Returns a line that lists them, if any are missing.
    pub(super) fn check_what_is_here(&mut self, experiment: &Experiment) -> Result<Option<String>, Failure> {
        let absent = self.check_all(experiment, true)?;
        let name = brief::line(&experiment.name);
        Ok((!absent.is_empty()).then(|| {
            let files = brief::line(&absent.join(", ")).into_owned();
            format!("the data of {name} is missing ({files}): runs have no ids; `sweep` needs the data")
        }))
    }

    /// Returns the missing files and globs, where missing data is allowed.
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
                    let (sample, evaluates) = (config.read_sample(), config.evaluation.is_some());
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
                Err(errors) => {
                    errors.iter().take(MOST_SHOWN).for_each(add);
                    if errors.len() > MOST_SHOWN {
                        let (more, name) = (errors.len() - MOST_SHOWN, data_set.name());
                        let problem = format!("data.{name} has {more} more errors");
                        if !problems.contains(&problem) {
                            problems.push(problem);
                        }
                    }
                }
            }
            self.check_weights(config, |path, error| match may_be_absent && error.is_absence() {
                true => note(path, &mut absent),
                false => {
                    let key = format!("model.{}.weights", config.model.name());
                    let help = Some(error.help().into_owned());
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

    /// Checks the checkpoint that the model's parameters are loaded from, if there is one.
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

    /// Writes the digest cache to the results folder, which exists.
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

    /// Sets the properties of a run's data, if it could be read.
    pub(super) fn describe(&self, config: &mut RunConfig) {
        if let Some(contents) = self.contents(config) {
            config.set_data_properties(contents);
        }
    }

    /// The contents of a run's data, if it could be read.
    pub(super) fn contents(&self, config: &RunConfig) -> Option<&dyn Contents> {
        let (_, contents) = self.seen.iter().find(|(data, _)| *data == config.data)?;
        Some(&**contents.as_ref().ok()?)
    }

    /// The notes about the data of experiments, each once.
    pub(super) fn notes<'a>(&self, experiments: impl IntoIterator<Item = &'a Experiment>) -> Vec<&Note> {
        let points = experiments.into_iter().flat_map(|experiment| &experiment.points);
        let mut notes: Vec<&Note> = Vec::new();
        for config in points.filter_map(|point| point.config.as_ref().ok()) {
            for note in self.contents(config).map_or(&[][..], Contents::notes) {
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
        }
        notes
    }

    /// The digest of checked data and of the checkpoint, if any; `None` if a file is missing.
    pub(super) fn digest(&self, config: &RunConfig) -> Option<String> {
        let data = self.contents(config)?.digest();
        let Some(file) = config.model.weights() else { return Some(digest_of_both(data, None)) };
        let (_, found) = self.weights.iter().find(|(path, _)| path == file)?;
        let (_, weights) = found.as_ref().ok()?;
        Some(digest_of_both(data, Some(weights)))
    }
}

/// Reports the progress of reading or encoding a data set that takes long.
fn tell(work: Work, file: &Path, done: Bytes, all: Bytes) {
    let work = match work {
        Work::Reading => "reading",
        Work::Encoding => "encoding",
    };
    output::mention(&format!("{work} {}: {done} of {all}", brief::line(&file.display().to_string())));
}

/// Adds a path unless it is present.
fn note(path: &Path, others: &mut Vec<String>) {
    let path = path.display().to_string();
    if !others.contains(&path) {
        others.push(path);
    }
}

/// An error that points at the key's line and, of several paths, at the faulty one.
fn blame(experiment: &Experiment, data_set: &dyn DataSet, error: &DataError) -> String {
    let paths = match error.blame() {
        ErrorKey::Data("evaluate") => data_set.evaluation_paths(),
        _ => data_set.paths(),
    };
    let path = error.path().and_then(|path| paths.iter().position(|known| known == path));
    let table = format!("data.{}", data_set.name());
    let key = match (error.blame(), path) {
        (ErrorKey::Key(key), _) => key.to_owned(),
        (ErrorKey::Data(key), Some(index)) => format!("{table}.{key}[{index}]"),
        (ErrorKey::Data(key), None) => format!("{table}.{key}"),
        (ErrorKey::DataSet, _) => table,
    };
    experiment.sources.error_at(&key, error.to_string(), Some(error.help())).to_string()
}
