//! What a data set is to the rest of the program, whatever it is made of.

use std::fmt::Debug;
use std::ops::Range;
use std::path::PathBuf;

use super::{Batch, DataError, DigestCache, Given, Order, Part, Sample, TokenRow};

/// What was found in a data set, or all that is wrong with it.
pub type Inspected = Result<Box<dyn Contents>, Vec<DataError>>;

/// A data set as an experiment names it. Nothing of it has been read yet.
pub trait DataSet: Debug {
    /// The name of its table in an experiment: `text` for `data.text`.
    fn name(&self) -> &'static str;

    /// The paths and globs that it was named by.
    fn paths(&self) -> &[PathBuf];

    /// Whether all that a plan needs of it is known before anything is read: the parts of its samples, and what their numbers are
    /// below. Only its samples and their number are not.
    fn is_known_unread(&self) -> bool {
        false
    }

    /// Whether its samples are stretches of one row of tokens.
    fn is_row(&self) -> bool {
        false
    }

    /// Whether there is an end to its samples, so that all of them are an epoch.
    fn has_epochs(&self) -> bool {
        true
    }

    /// Looks at it without keeping it; what was digested before is not read again.
    ///
    /// # Errors
    /// All that cannot be read, or makes no sense as data of this kind.
    fn inspect(&self, cache: &mut DigestCache) -> Inspected;

    /// Reads it, or makes ready to, for samples of which these parts are asked for; what was digested before is not read as
    /// a whole.
    ///
    /// # Errors
    /// The first of those of [`DataSet::inspect`].
    fn open(&self, sample: &Sample, cache: &mut DigestCache) -> Result<Box<dyn Source>, DataError>;

    /// The loss, in nats, that no model of it is below but by chance, where that is known.
    fn least_loss(&self) -> Option<f64> {
        None
    }

    /// What the numbers of a part are all below, where that is known before anything is read.
    fn below(&self, _part: &str) -> Option<Given> {
        None
    }

    /// Whether what is known before anything is read suits a model.
    ///
    /// # Errors
    /// A part whose numbers go beyond what the model asks for.
    fn check_known(&self, sample: &Sample) -> Result<(), DataError> {
        let mut known = sample.parts.iter().filter_map(|asked| Some((asked, self.below(asked.name)?)));
        known.try_for_each(|(asked, found)| within(asked, Some(found), self.name()))
    }

    /// Whether what was found in it has the parts that a model asks for, and samples enough.
    ///
    /// # Errors
    /// The first thing that is missing.
    fn check(&self, found: &dyn Contents, sample: &Sample, evaluates: bool) -> Result<(), DataError> {
        for asked in &sample.parts {
            let (data, part) = (self.name(), asked.name);
            match found.part(asked) {
                None => return Err(DataError::NoPart { data, part, parts: found.parts() }),
                Some(found) if found.ty != asked.ty => {
                    let (asked, found) = (asked.ty.to_string(), found.ty.to_string());
                    return Err(DataError::OtherType { data, part, asked, found });
                }
                Some(found) => within(asked, found.below, data)?,
            }
        }
        found.check_size(sample, evaluates)
    }
}

/// Whether an epoch of what was found has a step, in this order of samples.
///
/// # Errors
/// There is no whole batch, and no other is kept.
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

/// Whether the numbers of a part are all below what the model asks for, if it does.
fn within(asked: &Part, found: Option<Given>, data: &'static str) -> Result<(), DataError> {
    match (asked.below, found) {
        (None, _) => Ok(()),
        (Some(most), Some(found)) if found.count <= most.count => Ok(()),
        (Some(most), found) => Err(DataError::OutOfBounds { data, part: asked.name, asked: most, found }),
    }
}

/// What is known of a data set without its samples.
pub trait Contents: Debug + Send + Sync {
    /// Names the data: the same wherever it lies.
    fn digest(&self) -> &str;

    /// How many tokens there are, where samples are stretches of one row of them.
    fn tokens(&self) -> Option<usize> {
        None
    }

    /// How many samples an epoch has; none of data that has none.
    fn samples(&self, _sample: &Sample) -> u64 {
        0
    }

    /// The names of the parts that a sample has.
    fn parts(&self) -> &'static [&'static str];

    /// The part that is asked for as samples have it; shaped as asked where the data leaves that open. `None` if they have
    /// no such part.
    fn part(&self, asked: &Part) -> Option<Part>;

    /// Whether there is at least one sample to train on and, if wanted, one to evaluate on.
    ///
    /// # Errors
    /// What there is too little of.
    fn check_size(&self, sample: &Sample, evaluates: bool) -> Result<(), DataError>;
}

/// A step of the optimizer, as data knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainingStep {
    /// The run's.
    pub seed: u64,
    /// Counted from 0.
    pub number: u64,
    /// How many it has; of the last one of an epoch, how many the others have.
    pub samples: u64,
    pub order: Order,
}

/// A data set that batches are made from. All of a sample is a pure function of the arguments that name it: any range of
/// samples is what it is in any other range, so that micro-batches, workers and ranks may share a step.
///
/// What is asked for is what [`DataSet::check`] found there.
pub trait Source: Debug + Send + Sync {
    fn contents(&self) -> &dyn Contents;

    /// The row that its samples are stretches of, if they are.
    fn row(&self) -> Option<&dyn TokenRow> {
        None
    }

    /// Fills a batch with these samples of a training step, numbered within the step.
    ///
    /// # Errors
    /// What is read as it is needed cannot be, or has changed.
    fn fill_training(
        &self,
        step: &TrainingStep,
        samples: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), DataError>;

    /// Fills a batch with these samples of so many of the evaluation split, numbered from its front and again from there
    /// after the last.
    ///
    /// # Errors
    /// Those of [`Source::fill_training`].
    fn fill_evaluation(&self, of: u64, samples: Range<u64>, batch: &mut Batch) -> Result<(), DataError>;
}
