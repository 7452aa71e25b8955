//! Data sets of tensors in npy and safetensors files.

mod files;
mod npy;
mod stored;

use std::path::PathBuf;

use super::digest::FileDigest;
use super::files::{SplitFiles, find};
use super::samples::{INPUT, Pair, PairKeys, ReadSamples, Samples, SplitGroups, TARGETS, Transform};
use super::{DataError, DataSet, DigestCache, Inspected, Sample, Source};
use files::SampleFiles;
use ops::PixelScale;
use stored::TensorPlace;

/// The key of files for evaluation.
const EVALUATE: &str = "evaluate";

/// Samples in tensors.
#[derive(Debug)]
pub struct TensorSet {
    pub samples: TensorSource,
    /// Samples for evaluation; `None`: a part of `samples` is.
    pub evaluate: Option<TensorSource>,
    /// The factor of inputs.
    pub scale: f32,
    /// The fraction of the training split, which comes first; the rest is the evaluation split.
    pub split: f64,
}

/// The files of samples: absolute paths.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorSource {
    /// All samples in the first dimension of two tensors. A path may end with `#` and the tensor's name.
    Pair { input: PathBuf, targets: PathBuf },
    /// Paths and globs of files with one sample each.
    Files(Vec<PathBuf>),
}

/// Samples, with their files.
type Group = (Box<dyn ReadSamples>, Vec<(PathBuf, FileDigest)>);

impl TensorSource {
    fn examine(&self, scale: f32, evaluates: bool, cache: &mut DigestCache) -> Result<Group, Vec<DataError>> {
        let key = |key| if evaluates { EVALUATE } else { key };
        match self {
            TensorSource::Pair { input, targets } => {
                let keys = PairKeys { input: key(INPUT), targets: key(TARGETS) };
                pair([input, targets], scale, keys, cache)
            }
            TensorSource::Files(paths) => {
                let in_key = |error: DataError| error.in_key(key("files"));
                let paths =
                    find(paths).map_err(|errors| errors.into_iter().map(in_key).collect::<Vec<_>>())?;
                let samples = SampleFiles::examine(paths.clone(), scale, key("files"))?;
                let digest = |path: PathBuf| match cache.of_file(&path) {
                    Ok(digest) => Ok((path, digest)),
                    Err(error) => Err(vec![in_key(DataError::Unreadable { path, error })]),
                };
                let files = paths.into_iter().map(digest).collect::<Result<Vec<_>, _>>()?;
                Ok((Box::new(samples), files))
            }
        }
    }
}

/// Opens the tensors of inputs and targets.
fn pair(
    [input, targets]: [&PathBuf; 2],
    scale: f32,
    keys: PairKeys,
    cache: &mut DigestCache,
) -> Result<Group, Vec<DataError>> {
    let (input, targets) = (TensorPlace::of(input, INPUT), TensorPlace::of(targets, TARGETS));
    let opened = [
        input.open().map_err(|error| error.in_key(keys.input)),
        targets.open().map_err(|error| error.in_key(keys.targets)),
    ];
    let (inputs, classes) = match opened {
        [Ok(inputs), Ok(classes)] => (inputs, classes),
        others => return Err(others.into_iter().filter_map(Result::err).collect()),
    };
    let names = [input.name(), targets.name()];
    let pair = Pair::new(inputs, classes, Transform::Scale(scale), keys);
    let (pair, file) = pair.and_then(|pair| pair.examined(names, cache)).map_err(|error| vec![error])?;
    Ok((Box::new(pair), vec![file]))
}

impl TensorSet {
    fn examine(&self, cache: &mut DigestCache) -> Result<Samples, Vec<DataError>> {
        let training = self.samples.examine(self.scale, false, cache);
        let evaluation =
            self.evaluate.as_ref().map(|source| source.examine(self.scale, true, cache)).transpose();
        let (training, evaluation) = match (training, evaluation) {
            (Ok(training), Ok(evaluation)) => (training, evaluation),
            (training, evaluation) => {
                let errors = [training.err(), evaluation.err()];
                return Err(errors.into_iter().flatten().flatten().collect());
            }
        };
        let (evaluation, evaluated) = evaluation.unzip();
        let files = SplitFiles { training: training.1, evaluation: evaluated };
        let groups = SplitGroups {
            training: vec![training.0],
            evaluation: evaluation.map(|group| vec![group]),
            files,
        };
        Samples::new(groups, self.split).map_err(|error| vec![error])
    }
}

impl DataSet for TensorSet {
    fn name(&self) -> &'static str {
        "tensors"
    }

    fn paths(&self) -> &[PathBuf] {
        match &self.samples {
            TensorSource::Files(paths) => paths,
            TensorSource::Pair { .. } => &[],
        }
    }

    /// Shapes are the model's.
    fn is_known_unread(&self) -> bool {
        true
    }

    fn pixel_scale(&self) -> Option<PixelScale> {
        Some(PixelScale::Factor(self.scale))
    }

    fn inspect(&self, cache: &mut DigestCache) -> Inspected {
        Ok(Box::new(self.examine(cache)?))
    }

    fn open(&self, _sample: &Sample, cache: &mut DigestCache) -> Result<Box<dyn Source>, DataError> {
        let first = |errors: Vec<DataError>| errors.into_iter().next().unwrap_or(DataError::NoPaths);
        Ok(Box::new(self.examine(cache).map_err(first)?))
    }
}

#[cfg(test)]
mod tests;
