//! The interface of data sets.

use std::fmt::Debug;
use std::ops::Range;
use std::path::PathBuf;

use ops::PixelScale;

use super::{
    Batch, DataError, DigestCache, HeldSamples, KeyedCount, Order, Part, PartRole, Sample, TokenRow,
    TrainingStep,
};

/// The contents of a data set, or all its errors.
pub type Inspected = Result<Box<dyn Contents>, Vec<DataError>>;

/// A data set as declared in an experiment, not yet read.
pub trait DataSet: Debug {
    /// The name of its table in an experiment: `text` for `data.text`.
    fn name(&self) -> &'static str;

    /// The declared paths and globs.
    fn paths(&self) -> &[PathBuf];

    /// The declared paths and globs of files for evaluation only.
    fn evaluation_paths(&self) -> &[PathBuf] {
        &[]
    }

    /// Whether a plan needs nothing from the files: the parts of samples and the bounds of ids are known. Only the
    /// samples and their number are not.
    fn is_known_unread(&self) -> bool {
        false
    }

    /// Whether samples are slices of one row of tokens.
    fn is_row(&self) -> bool {
        false
    }

    /// Whether inputs are pixels in u8, which become numbers when a batch is assembled.
    fn has_pixels(&self) -> bool {
        false
    }

    /// The numbers of inputs that are stored in u8, if any can be.
    fn pixel_scale(&self) -> Option<PixelScale> {
        None
    }

    /// Whether training changes its samples at random.
    fn augments(&self) -> bool {
        false
    }

    /// Whether the number of samples is finite, so that there are epochs.
    fn has_epochs(&self) -> bool {
        true
    }

    /// Reads and digests the data without keeping it. Files with a cached digest are not read.
    ///
    /// # Errors
    /// All unreadable or invalid files.
    fn inspect(&self, cache: &mut DigestCache) -> Inspected;

    /// Opens the data for samples with these parts. Files with a cached digest are not read completely.
    ///
    /// # Errors
    /// The first error of [`DataSet::inspect`].
    fn open(&self, sample: &Sample, cache: &mut DigestCache) -> Result<Box<dyn Source>, DataError>;

    /// The lowest expected loss of any model, in nats, if known: the entropy of the data.
    fn least_loss(&self) -> Option<f64> {
        None
    }

    /// The bound of a part's ids, if known before reading.
    fn below(&self, _part: PartRole) -> Option<KeyedCount> {
        None
    }

    /// Checks the bounds that are known before reading against a model.
    ///
    /// # Errors
    /// The ids of a part exceed the model's bound.
    fn check_known(&self, sample: &Sample) -> Result<(), DataError> {
        let mut known =
            sample.parts.iter().filter_map(|requested| Some((requested, self.below(requested.role)?)));
        known.try_for_each(|(requested, found)| check_bound(requested, Some(found), self.name()))
    }

    /// Checks that the contents have the requested parts and enough samples.
    ///
    /// # Errors
    /// The first problem.
    fn check(&self, found: &dyn Contents, sample: &Sample, evaluates: bool) -> Result<(), DataError> {
        for requested in &sample.parts {
            let (data, part) = (self.name(), requested.name);
            match found.part(requested) {
                None => return Err(DataError::NoPart { data, part, parts: found.parts() }),
                Some(found) if found.ty != requested.ty => {
                    let (asked, found) = (requested.ty.to_string(), found.ty.to_string());
                    return Err(DataError::OtherType { data, part, asked, found });
                }
                Some(found) => check_bound(requested, found.below, data)?,
            }
        }
        found.check_size(sample, evaluates)
    }
}

/// Checks that an epoch has at least one step in this order of samples.
///
/// # Errors
/// An epoch has less than a batch, and incomplete batches are dropped.
pub fn check_order(
    found: &dyn Contents,
    sample: &Sample,
    order: Order,
    batch_size: usize,
) -> Result<(), DataError> {
    let Order::Shuffled { keeps_last: false } = order else { return Ok(()) };
    let samples = found.samples(sample);
    if samples < batch_size as u64 { Err(DataError::NoWholeBatch { samples, batch_size }) } else { Ok(()) }
}

/// Checks that the ids of a part are below the model's bound, if it has one.
fn check_bound(requested: &Part, found: Option<KeyedCount>, data: &'static str) -> Result<(), DataError> {
    match (requested.below, found) {
        (None, _) => Ok(()),
        (Some(most), Some(found)) if found.count <= most.count => Ok(()),
        (Some(most), found) => Err(DataError::OutOfBounds { data, part: requested.name, asked: most, found }),
    }
}

/// The tokens of each sample, by split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleLengths {
    pub training: Vec<u32>,
    pub evaluation: Vec<u32>,
}

/// A property of a data set's files that a user may not expect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub text: String,
    /// Whether it is probably a mistake, which plans and sweeps report as well.
    pub is_warning: bool,
}

impl Note {
    pub(super) fn new(text: String) -> Note {
        Note { text, is_warning: false }
    }

    pub(super) fn warning(text: String) -> Note {
        Note { text, is_warning: true }
    }
}

/// The properties of a data set, without its samples.
pub trait Contents: Debug + Send + Sync {
    /// The digest of the data, independent of its location.
    fn digest(&self) -> &str;

    /// Properties of the files that a user may not expect.
    fn notes(&self) -> &[Note] {
        &[]
    }

    /// The length of the row, if samples are slices of one.
    fn row_len(&self) -> Option<usize> {
        None
    }

    /// The numbers of training and of evaluation samples, if their inputs and targets can be held in memory.
    fn splits(&self) -> Option<[u64; 2]> {
        None
    }

    /// The tokens of each sample, if samples are documents of different lengths, one per sample.
    fn sample_lengths(&self, _sample: &Sample) -> Option<SampleLengths> {
        None
    }

    /// The tokens of the first document of each sample, if samples have several documents.
    fn first_documents(&self, _sample: &Sample) -> Option<SampleLengths> {
        None
    }

    /// The number of samples per epoch; 0 without epochs.
    fn samples(&self, _sample: &Sample) -> u64 {
        0
    }

    /// The names of a sample's parts.
    fn parts(&self) -> &'static [&'static str];

    /// The requested part as the data provides it, in the requested shape if the data allows any. `None` if there is no
    /// such part.
    fn part(&self, requested: &Part) -> Option<Part>;

    /// Checks that there is at least one training sample and, if `evaluates`, one evaluation sample.
    ///
    /// # Errors
    /// A split is too short.
    fn check_size(&self, sample: &Sample, evaluates: bool) -> Result<(), DataError>;
}

/// An opened data set that fills batches. A sample is a pure function of step and number, whatever the range, so that
/// micro-batches, workers and ranks can share a step.
///
/// Batches have only parts that [`DataSet::check`] accepted.
pub trait Source: Debug + Send + Sync {
    fn contents(&self) -> &dyn Contents;

    /// The token row, if samples are slices of one.
    fn row(&self) -> Option<&dyn TokenRow> {
        None
    }

    /// The samples, if their inputs and targets can be held in memory.
    fn samples(&self) -> Option<&dyn HeldSamples> {
        None
    }

    /// Fills a batch with these samples of a training step, numbered within the step.
    ///
    /// # Errors
    /// A file has become unreadable, or has changed.
    fn fill_training(
        &self,
        step: &TrainingStep,
        samples: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), DataError>;

    /// Fills a batch with these of the `of` samples of an evaluation. Sample numbers wrap around at the end of the
    /// evaluation split.
    ///
    /// # Errors
    /// Those of [`Source::fill_training`].
    fn fill_evaluation(&self, of: u64, samples: Range<u64>, batch: &mut Batch) -> Result<(), DataError>;
}
