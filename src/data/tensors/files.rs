//! Samples in files of their own, of which only the names are kept.

use std::path::{Path, PathBuf};

use super::stored::{ONE, open_tensors, tensors_of, unfit};
use crate::digest::Version;
use crate::samples::{INPUT, InputMemory, Pair, PairKeys, ReadSamples, SampleMemory, TARGETS, Transform};
use crate::{DataError, PartRole, Sample};

/// One safetensors file per sample, with tensors `input` and `targets`.
#[derive(Debug)]
pub(super) struct SampleFiles {
    /// In the order of their paths, each with its version when it was examined.
    files: Vec<(PathBuf, Version)>,
    /// The first sample, whose shapes and types all have, with the largest class of all.
    first: Pair,
    scale: f32,
}

impl SampleFiles {
    /// Examines files, of which there is at least one.
    ///
    /// # Errors
    /// All files that are unreadable, or whose tensors differ from the first's.
    pub(super) fn examine(
        paths: Vec<PathBuf>,
        scale: f32,
        key: &'static str,
    ) -> Result<SampleFiles, Vec<DataError>> {
        let (mut files, mut errors) = (Vec::with_capacity(paths.len()), Vec::new());
        let mut first: Option<Pair> = None;
        for path in paths {
            match examined(&path, scale, key, first.as_ref()) {
                Ok(pair) => {
                    let version = pair.input.file.version().clone();
                    match &mut first {
                        Some(first) => first.largest = first.largest.max(pair.largest),
                        None => first = Some(pair),
                    }
                    files.push((path, version));
                }
                Err(error) => errors.push(error.in_key(key)),
            }
        }
        match first {
            Some(first) if errors.is_empty() => Ok(SampleFiles { files, first, scale }),
            _ if errors.is_empty() => Err(vec![DataError::NoPaths.in_key(key)]),
            _ => Err(errors),
        }
    }

    fn open(&self, index: u64) -> Result<Pair, DataError> {
        let (path, version) = &self.files[index as usize];
        let pair = opened(path, self.scale, self.first.keys)?;
        match pair.input.file.version() == version {
            true => Ok(pair),
            false => Err(DataError::Changed { path: path.clone() }),
        }
    }
}

fn opened(path: &Path, scale: f32, keys: PairKeys) -> Result<Pair, DataError> {
    let [input, targets] = tensors_of(path, open_tensors(path, ONE)?, [INPUT, TARGETS], false)?;
    Pair::new(input, targets, Transform::Scale(scale), keys)
}

/// Opens a file, and compares its tensors with the first's.
fn examined(path: &Path, scale: f32, key: &'static str, first: Option<&Pair>) -> Result<Pair, DataError> {
    let mut pair = opened(path, scale, PairKeys { input: key, targets: key })?;
    if pair.targets.number.is_integer() {
        pair.largest = Some(pair.targets.largest_class()?);
    }
    for (name, found, first) in [
        (INPUT, &pair.input, first.map(|first| &first.input)),
        (TARGETS, &pair.targets, first.map(|first| &first.targets)),
    ] {
        let Some(first) = first else { continue };
        if (&found.dims, found.number) != (&first.dims, first.number) {
            let problem = format!(
                "has `{name}` as {}, but {} has {}",
                found.describe(),
                first.file.path().display(),
                first.describe()
            );
            return Err(unfit(path, problem, "store all samples in one shape and type"));
        }
    }
    Ok(pair)
}

impl ReadSamples for SampleFiles {
    fn count(&self) -> u64 {
        self.files.len() as u64
    }

    fn description(&self) -> String {
        self.first.description()
    }

    /// Shapes are those of the first file; an id or a class that is out of range is looked for in all.
    fn check(&self, sample: &Sample) -> Result<(), DataError> {
        let below = |role| sample.part(role).and_then(|part| part.below);
        let is_wrong =
            |largest: u32| below(PartRole::Target).is_some_and(|below| largest as usize >= below.count);
        if below(PartRole::Input).is_none() && !self.first.largest.is_some_and(is_wrong) {
            return self.first.check(sample);
        }
        (0..self.count()).try_for_each(|index| {
            let pair = self.open(index)?;
            let is_integer = pair.targets.number.is_integer();
            let largest = is_integer.then(|| pair.targets.largest_class()).transpose()?;
            Pair { largest, ..pair }.check(sample)
        })
    }

    fn read(&self, index: u64, draw: Option<u64>, memory: SampleMemory<'_>) -> Result<(), DataError> {
        self.open(index)?.read(0, draw, memory)
    }

    fn prepare(&self, draw: Option<u64>, held: &[u8], input: InputMemory<'_>) {
        self.first.prepare(draw, held, input);
    }
}
