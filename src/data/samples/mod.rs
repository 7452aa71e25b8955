//! Samples of an input and targets in a fixed order, read one by one.

mod memory;
mod pair;
mod set;
mod stored;

use std::fmt::Debug;
use std::ops::Range;
use std::path::PathBuf;

use super::digest::FileDigest;
use super::files::SplitFiles;
use super::{
    Batch, Contents, DataError, Note, Part, PartRole, Sample, Source, Split, TrainingStep, sampling,
};
pub(super) use memory::{InputMemory, SampleMemory, TargetMemory};
pub(super) use pair::{Pair, PairKeys, Transform};
pub(super) use set::{ChosenSample, SampleSet};
pub use set::{HeldPart, HeldSamples};
pub(super) use stored::{NumberType, SampleFile, StoredSamples};

/// The names of parts.
pub(super) const INPUT: &str = "input";
pub(super) const TARGETS: &str = "targets";
pub(super) const PARTS: &[&str] = &[INPUT, TARGETS, "weights"];

/// The site of the draws that change training samples, so that they are independent of all others.
const AUGMENTATION: u64 = 0x6175_676d_656e_7421;

/// Whether samples of an input and targets have a part.
pub(super) fn is_of_samples(part: PartRole) -> bool {
    part.is_stored() || part == PartRole::Weight
}

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

    /// Makes an input from the bytes that are held of it: those that `read` gives without `draw`, in u8 if they are pixels.
    fn prepare(&self, draw: Option<u64>, held: &[u8], input: InputMemory<'_>);
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

    /// The group of a sample, with the number of its first one.
    fn group(&self, index: u64) -> (u64, &dyn ReadSamples) {
        let group = self.groups.partition_point(|(begin, _)| *begin <= index) - 1;
        let (begin, group) = &self.groups[group];
        (*begin, group.as_ref())
    }
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

    fn splits(&self) -> Option<[u64; 2]> {
        Some([self.splits.training, self.splits.evaluation])
    }

    fn parts(&self) -> &'static [&'static str] {
        PARTS
    }

    /// As requested: `check_size` names the file whose shapes, types or classes are others.
    fn part(&self, requested: &Part) -> Option<Part> {
        is_of_samples(requested.role).then_some(*requested)
    }

    fn check_size(&self, sample: &Sample, evaluates: bool) -> Result<(), DataError> {
        self.groups.iter().try_for_each(|(_, group)| group.check(sample))?;
        self.splits.check(evaluates)
    }
}

impl SampleSet for Samples {
    fn of_training(&self, step: &TrainingStep, number: u64) -> Option<ChosenSample> {
        let index = step.sample_index(number, self.splits.training)?;
        let draw = sampling::draw(step.seed, AUGMENTATION, step.number, number);
        Some(ChosenSample { index, draw: Some(draw) })
    }

    fn present(&self, step: &TrainingStep) -> u64 {
        step.present(self.splits.training)
    }

    fn of_evaluation(&self, number: u64) -> ChosenSample {
        let SampleSplits { training, evaluation, .. } = self.splits;
        self.unchanged(training + number % evaluation)
    }

    fn unchanged(&self, index: u64) -> ChosenSample {
        ChosenSample { index, draw: None }
    }

    fn read(&self, chosen: ChosenSample, memory: SampleMemory<'_>) -> Result<(), DataError> {
        let (begin, group) = self.group(chosen.index);
        group.read(chosen.index - begin, chosen.draw, memory)
    }

    fn prepare(&self, chosen: ChosenSample, held: &[u8], part: &Part, memory: &mut [u8]) {
        let (_, group) = self.group(chosen.index);
        group.prepare(chosen.draw, held, InputMemory::of(part.ty.dtype, memory));
    }
}

impl Source for Samples {
    fn contents(&self) -> &dyn Contents {
        self
    }

    fn samples(&self) -> Option<&dyn HeldSamples> {
        Some(self)
    }

    fn fill_training(
        &self,
        step: &TrainingStep,
        samples: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        self.fill_step(step, samples, &[], batch)
    }

    fn fill_evaluation(&self, _of: u64, samples: Range<u64>, batch: &mut Batch) -> Result<(), DataError> {
        self.fill_evaluated(samples, &[], batch)
    }
}
