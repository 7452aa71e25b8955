//! Reads a run's folder, opens its data and compiles its program.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::RunError;
use compile::Program;
use data::{DigestCache, Sample, Source, StoredParameters, Weights, digest_of_both};
use device::Target;
use plan::compile_verified;
use spec::{RunConfig, read_target};

/// The file in a run's folder that holds the digest of the data that the run was planned with.
pub const DATA_FILE: &str = "data.digest";

/// A run, ready to be trained.
pub(crate) struct Prepared {
    pub(crate) config: RunConfig,
    pub(crate) target: Target,
    /// The parts of a sample that the model requires.
    pub(crate) sample: Sample,
    pub(crate) data: Box<dyn Source>,
    /// The checkpoint tensors that all parameters start from, if the model has weights.
    pub(crate) weights: Option<StoredParameters>,
    pub(crate) program: Program,
    pub(crate) compiled_in: Duration,
}

impl Prepared {
    /// Reads a run's folder, for the rank with this index. `digests` caches the digests of large files.
    pub(crate) fn read(folder: &Path, digests: &mut DigestCache, rank: usize) -> Result<Prepared, RunError> {
        let mut config = load_run(&folder.join("run.toml"))?;
        let target = Target { rank, ..read_target(&folder.join("target.toml"))?.target };
        let data_set = config.data.data_set();
        let mut sample = config.sample();
        let mut data = data_set.open(&sample, digests)?;
        let weights = config.model.weights().map(Weights::open).transpose()?;
        let digest = weights.as_ref().map(|weights| weights.digest(digests)).transpose()?;
        let digest = digest_of_both(data.contents().digest(), digest.as_deref());
        check_unchanged(&digest, &folder.join(DATA_FILE))?;
        let weights = weights.map(|weights| weights.matched(&graph::needed(&config.model))).transpose()?;
        data_set.check(data.contents(), &config.read_sample(), config.evaluation.is_some())?;
        config.set_data_properties(data.contents());
        if config.lengths.is_some() {
            // Samples are padded to the longest document.
            sample = config.sample();
            let digest = data.contents().digest().to_owned();
            data = data_set.open(&sample, digests)?;
            if data.contents().digest() != digest {
                return Err(RunError::DataChanged);
            }
        }
        let compiling = Instant::now();
        let program = compile_verified(&config, &target)?;
        let compiled_in = compiling.elapsed();
        Ok(Prepared { config, target, sample, data, weights, program, compiled_in })
    }
}

/// The one run of a resolved configuration.
fn load_run(file: &Path) -> Result<RunConfig, RunError> {
    let experiment = plan::expand(file, &[], &|_| None)?;
    let not_one = || RunError::NotOneRun(file.display().to_string());
    let [point] = <[plan::Point; 1]>::try_from(experiment.points).map_err(|_| not_one())?;
    point.config.map_err(|_| not_one())
}

/// The run's id covers its data: results with other data must not be stored under it.
fn check_unchanged(digest: &str, file: &Path) -> Result<(), RunError> {
    let planned = std::fs::read_to_string(file)
        .map_err(|error| RunError::Read { file: file.display().to_string(), error })?;
    if planned.trim() == digest { Ok(()) } else { Err(RunError::DataChanged) }
}
