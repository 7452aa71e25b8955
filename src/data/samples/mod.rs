//! Samples of an input and targets in a fixed order, read one by one.

mod pair;
mod stored;

use std::fmt::Debug;
use std::ops::Range;
use std::path::PathBuf;

use super::digest::FileDigest;
use super::files::SplitFiles;
use super::ids::Ids;
use super::row::WEIGHTS;
use super::{Batch, Contents, DataError, Note, Part, Sample, Source, Split, TrainingStep, sampling};
use ops::DType;
pub(super) use pair::{Pair, PairKeys, Transform};
pub(super) use stored::{NumberType, SampleFile, StoredSamples};

pub(super) const INPUT: &str = "input";
pub(super) const TARGETS: &str = "targets";
const PARTS: &[&str] = &[INPUT, TARGETS, WEIGHTS];

/// The site of the draws that change training samples, so that they are independent of all others.
const AUGMENTATION: u64 = 0x6175_676d_656e_7421;

/// A group of samples that are stored in one way.
pub(super) trait ReadSamples: Debug + Send + Sync {
    /// The number of samples.
    fn count(&self) -> u64;

    /// What a sample is, for messages: `input f32[784], classes 0 to 9`.
    fn description(&self) -> String;

    /// Checks that the samples are those that a model requests.
    ///
    /// # Errors
    /// A shape or type is another, or a class is out of range.
    fn check(&self, sample: &Sample) -> Result<(), DataError>;

    /// Reads a sample that `check` accepted. `draw`: a random number for changes, of a training sample.
    ///
    /// # Errors
    /// A file has become unreadable, or has changed.
    fn read(&self, index: u64, draw: Option<u64>, memory: SampleMemory<'_>) -> Result<(), DataError>;
}

/// Memory of the parts of one sample that a batch has.
#[derive(Debug, Default)]
pub(super) struct SampleMemory<'a> {
    pub(super) input: Option<PartMemory<'a>>,
    pub(super) targets: Option<PartMemory<'a>>,
}

/// Memory of one part of a sample.
#[derive(Debug)]
pub(super) enum PartMemory<'a> {
    /// Ids of the input, or classes.
    Ids(Ids<'a>),
    /// f32 in native byte order.
    Numbers(&'a mut [[u8; 4]]),
}

/// The sizes of the training split, which comes first, and the evaluation split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SampleSplits {
    training: u64,
    evaluation: u64,
    /// Whether they are shares of the same files.
    are_shares: bool,
}

impl SampleSplits {
    /// # Errors
    /// `share` is not in (0, 1].
    fn of(count: u64, share: f64) -> Result<SampleSplits, DataError> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(DataError::BadSplit { split: share });
        }
        let training = ((count as f64 * share) as u64).min(count);
        Ok(SampleSplits { training, evaluation: count - training, are_shares: true })
    }

    fn check(&self, evaluates: bool) -> Result<(), DataError> {
        let too_short = |split, largest_split| DataError::TooShort {
            split,
            found: 0,
            least: 1,
            unit: "sample",
            material: "samples",
            length: None,
            largest_split,
        };
        if self.training == 0 {
            return Err(too_short(Split::Training, None));
        }
        if evaluates && self.evaluation == 0 {
            return Err(too_short(Split::Evaluation, self.largest_split()));
        }
        Ok(())
    }

    fn largest_split(&self) -> Option<f64> {
        let count = self.training + self.evaluation;
        let fits = |share: &f64| {
            SampleSplits::of(count, *share).is_ok_and(|splits| splits.training > 0 && splits.evaluation > 0)
        };
        (1..100).rev().map(|hundredths| f64::from(hundredths) / 100.0).find(fits).filter(|_| self.are_shares)
    }
}

/// Opened samples: those for training, followed by those for evaluation.
#[derive(Debug)]
pub(super) struct Samples {
    /// Each with the number of its first sample.
    groups: Vec<(u64, Box<dyn ReadSamples>)>,
    splits: SampleSplits,
    digest: String,
    notes: Vec<Note>,
}

/// Groups of samples by split, and their files.
pub(super) struct SplitGroups {
    pub(super) training: Vec<Box<dyn ReadSamples>>,
    /// `None`: a share of the training groups.
    pub(super) evaluation: Option<Vec<Box<dyn ReadSamples>>>,
    pub(super) files: SplitFiles<(PathBuf, FileDigest)>,
}

impl Samples {
    /// `share`: of the training split, if there are no groups for evaluation.
    ///
    /// # Errors
    /// `share` is not a fraction.
    pub(super) fn new(groups: SplitGroups, share: f64) -> Result<Samples, DataError> {
        let SplitGroups { training, evaluation, files } = groups;
        let count = |groups: &[Box<dyn ReadSamples>]| groups.iter().map(|group| group.count()).sum::<u64>();
        let splits = match &evaluation {
            None => SampleSplits::of(count(&training), share)?,
            Some(evaluation) => {
                SampleSplits { training: count(&training), evaluation: count(evaluation), are_shares: false }
            }
        };
        let mut first = 0;
        let numbered = training.into_iter().chain(evaluation.into_iter().flatten()).map(|group| {
            let begin = first;
            first += group.count();
            (begin, group)
        });
        let groups: Vec<_> = numbered.collect();
        let found = |number: u64| super::error::count(number, "sample");
        let description = groups.first().map_or(String::new(), |(_, group)| group.description());
        let text = format!(
            "{} for training, {} for evaluation: {description}",
            found(splits.training),
            found(splits.evaluation)
        );
        let about_files = files.notes(|(path, _)| path, |(_, digest)| digest);
        let notes = std::iter::once(Note::new(text)).chain(about_files).collect();
        Ok(Samples { groups, splits, digest: files.digest(|(_, digest)| digest.clone()), notes })
    }

    /// Reads a sample, or fills a missing one, which has no weight.
    fn fill(
        &self,
        samples: Range<u64>,
        batch: &mut Batch,
        weight: f32,
        chosen: impl Fn(u64) -> Option<(u64, Option<u64>)>,
    ) -> Result<(), DataError> {
        for (at, number) in samples.enumerate() {
            let chosen = chosen(number);
            let mut memory = SampleMemory::default();
            for filled in batch.parts_mut() {
                let Part { name, ty, below } = filled.part;
                let bytes = ty.bytes() as usize;
                let part = &mut filled.bytes[at * bytes..][..bytes];
                match name {
                    WEIGHTS => part.copy_from_slice(&chosen.map_or(0.0, |_| weight).to_ne_bytes()),
                    _ if chosen.is_none() => fill_missing(&filled.part, part),
                    _ => {
                        let part = match below {
                            Some(_) => PartMemory::Ids(Ids::of(ty.dtype, part)),
                            None => PartMemory::Numbers(part.as_chunks_mut().0),
                        };
                        let memory = if name == INPUT { &mut memory.input } else { &mut memory.targets };
                        *memory = Some(part);
                    }
                }
            }
            let Some((index, draw)) = chosen else { continue };
            let group = self.groups.partition_point(|(begin, _)| *begin <= index) - 1;
            let (begin, group) = &self.groups[group];
            group.read(index - begin, draw, memory)?;
        }
        Ok(())
    }
}

/// Fills a part of a missing sample: zeros, and masked classes, whose bits are all ones in any type.
pub(super) fn fill_missing(part: &Part, memory: &mut [u8]) {
    let is_masked = part.name == TARGETS && part.ty.dtype != DType::F32;
    memory.fill(if is_masked { u8::MAX } else { 0 });
}

impl Contents for Samples {
    fn digest(&self) -> &str {
        &self.digest
    }

    fn notes(&self) -> &[Note] {
        &self.notes
    }

    fn samples(&self, _sample: &Sample) -> u64 {
        self.splits.training
    }

    fn parts(&self) -> &'static [&'static str] {
        PARTS
    }

    /// As requested: `check_size` names the file whose shapes, types or classes are others.
    fn part(&self, requested: &Part) -> Option<Part> {
        PARTS.contains(&requested.name).then_some(*requested)
    }

    fn check_size(&self, sample: &Sample, evaluates: bool) -> Result<(), DataError> {
        self.groups.iter().try_for_each(|(_, group)| group.check(sample))?;
        self.splits.check(evaluates)
    }
}

impl Source for Samples {
    fn contents(&self) -> &dyn Contents {
        self
    }

    fn fill_training(
        &self,
        step: &TrainingStep,
        samples: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        let count = self.splits.training;
        let weight = (step.samples as f64 / step.present(count) as f64) as f32;
        self.fill(samples, batch, weight, |number| {
            let draw = sampling::draw(step.seed, AUGMENTATION, step.number, number);
            Some((step.sample_index(number, count)?, Some(draw)))
        })
    }

    fn fill_evaluation(&self, _of: u64, samples: Range<u64>, batch: &mut Batch) -> Result<(), DataError> {
        let SampleSplits { training, evaluation, .. } = self.splits;
        self.fill(samples, batch, 1.0, |number| Some((training + number % evaluation, None)))
    }
}
