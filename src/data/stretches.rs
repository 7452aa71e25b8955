//! Stretches of one long row of tokens, as language models learn from.
//!
//! A sample is a stretch of T tokens (the context), as `tokens`, and as `targets` what follows each of them.

use std::fmt::Debug;
use std::ops::Range;

use super::ids::Ids;
use super::row::WEIGHTS;
use super::{
    Batch, Contents, DataError, Given, Order, Part, Sample, Source, Split, TokenRow, TrainingStep, row,
};
use ops::{DType, TensorType};

/// The parts of a sample. Of number n, all tokens lie n places later in the row than those of number 0.
pub(super) const PARTS: &[&str] = &["tokens", "targets"];

/// All tokens, one after the other.
pub(super) trait Row: Debug + Send + Sync {
    /// Takes as many from this place on.
    ///
    /// # Errors
    /// They lie in a file that cannot be read any more.
    fn read(&self, first: usize, tokens: Ids<'_>) -> Result<(), DataError>;
}

/// A row that samples are taken from.
#[derive(Debug)]
pub(super) struct Stretches<R> {
    pub(super) row: R,
    pub(super) contents: Summary,
}

/// What is known of a row without keeping it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Summary {
    pub(super) digest: String,
    pub(super) splits: Splits,
    /// What its tokens are all below.
    pub(super) below: Given,
}

/// Tokens to train on, from the front, and to evaluate on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Splits {
    pub(super) training: usize,
    pub(super) evaluation: usize,
    /// What a token is, and what the row is made of.
    pub(super) unit: &'static str,
    pub(super) material: &'static str,
}

impl Splits {
    /// # Errors
    ///
    /// A share that is none.
    pub(super) fn of(
        tokens: usize,
        split: f64,
        [unit, material]: [&'static str; 2],
    ) -> Result<Splits, DataError> {
        if !(split > 0.0 && split <= 1.0) {
            return Err(DataError::BadSplit { split });
        }
        let training = ((tokens as f64 * split) as usize).min(tokens);
        Ok(Splits { training, evaluation: tokens - training, unit, material })
    }

    /// Whether a sample fits: it needs one token more than its length, the last target.
    pub(super) fn check(&self, sample: &Sample, evaluates: bool) -> Result<(), DataError> {
        let context = context(sample.parts.iter());
        let too_short = |split: Split, tokens: usize, largest_split: Option<f64>| DataError::TooShort {
            split,
            found: tokens as u64,
            least: context as u64 + 1,
            unit: self.unit,
            material: self.material,
            length: sample.length,
            largest_split,
        };
        if self.training <= context {
            return Err(too_short(Split::Training, self.training, None));
        }
        if evaluates && self.evaluation <= context {
            return Err(too_short(Split::Evaluation, self.evaluation, self.largest_split(context)));
        }
        Ok(())
    }

    /// Stretches of the training split without overlap.
    fn windows(&self, context: usize) -> u64 {
        (self.training.saturating_sub(1) / context.max(1)) as u64
    }

    fn largest_split(&self, context: usize) -> Option<f64> {
        let total = self.training + self.evaluation;
        let fits = |hundredths: &usize| {
            let split = Splits::of(total, *hundredths as f64 / 100.0, [self.unit, self.material]);
            split.is_ok_and(|split| split.training > context && split.evaluation > context)
        };
        (1..100).rev().find(fits).map(|hundredths| hundredths as f64 / 100.0)
    }
}

impl Contents for Summary {
    fn digest(&self) -> &str {
        &self.digest
    }

    fn tokens(&self) -> Option<usize> {
        Some(self.splits.training + self.splits.evaluation)
    }

    /// Stretches without overlap.
    fn samples(&self, sample: &Sample) -> u64 {
        self.splits.windows(context(sample.parts.iter()))
    }

    fn parts(&self) -> &'static [&'static str] {
        PARTS
    }

    /// Tokens in a row, as many as are asked for; and what those of a sample count for.
    fn part(&self, asked: &Part) -> Option<Part> {
        if asked.name == WEIGHTS {
            return Some(row::weights());
        }
        let ty = TensorType::i32(&[asked.ty.elements()]);
        PARTS.contains(&asked.name).then_some(Part { name: asked.name, ty, below: Some(self.below) })
    }

    fn check_size(&self, sample: &Sample, evaluates: bool) -> Result<(), DataError> {
        self.splits.check(sample, evaluates)
    }
}

/// Places in the row that a sample takes, the last target apart.
fn context<'a>(parts: impl Iterator<Item = &'a Part>) -> usize {
    parts.map(|part| part.ty.elements()).max().unwrap_or(0)
}

impl<R: Row> Source for Stretches<R> {
    fn contents(&self) -> &dyn Contents {
        &self.contents
    }

    fn fill_training(
        &self,
        step: &TrainingStep,
        samples: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        let context = context(batch.parts().iter().map(|filled| &filled.part));
        let start = |sample| self.training_start(step, sample, context);
        row::fill_in(self.weight(step, context), samples, start, self.reader(), batch)
    }

    fn fill_evaluation(&self, _of: u64, samples: Range<u64>, batch: &mut Batch) -> Result<(), DataError> {
        let context = context(batch.parts().iter().map(|filled| &filled.part));
        row::fill_in(
            1.0,
            samples,
            |sample| Some(self.evaluation_start(sample, context)),
            self.reader(),
            batch,
        )
    }

    fn row(&self) -> Option<&dyn TokenRow> {
        Some(self)
    }
}

impl<R: Row> TokenRow for Stretches<R> {
    fn tokens(&self, first: usize, dtype: DType, memory: &mut [u8]) -> Result<(), DataError> {
        self.row.read(first, Ids::of(dtype, memory))
    }

    /// Anywhere, or of an epoch's stretches without overlap.
    fn training_start(&self, step: &TrainingStep, sample: u64, context: usize) -> Option<usize> {
        let splits = &self.contents.splits;
        match step.order {
            Order::Drawn => {
                step.chosen(sample, (splits.training - context) as u64).map(|start| start as usize)
            }
            Order::Shuffled { .. } => {
                let window = step.chosen(sample, splits.windows(context))?;
                Some(window as usize * context)
            }
        }
    }

    fn weight(&self, step: &TrainingStep, context: usize) -> f32 {
        let present = step.present(self.contents.splits.windows(context));
        (step.samples as f64 / present as f64) as f32
    }

    /// Windows one after the other without overlap.
    fn evaluation_start(&self, sample: u64, context: usize) -> usize {
        let Splits { training, evaluation, .. } = self.contents.splits;
        let windows = ((evaluation - 1) / context) as u64;
        training + (sample % windows) as usize * context
    }
}

impl<R: Row> Stretches<R> {
    /// What takes tokens out of the row.
    fn reader(&self) -> impl Fn(usize, DType, &mut [u8]) -> Result<(), DataError> {
        |first, dtype, memory| self.row.read(first, Ids::of(dtype, memory))
    }
}
