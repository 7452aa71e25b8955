//! Samples that are slices of one long row of tokens.
//!
//! A sample is a slice of T tokens (the context): `tokens`, and as `targets` the next token of each.

use std::fmt::Debug;
use std::ops::Range;

use super::ids::Ids;
use super::row::PARTS;
use super::{
    Batch, Contents, DataError, KeyedCount, Note, Order, Part, PartRole, Sample, Source, Split, TokenRow,
    TrainingStep, row,
};
use ops::DType;

/// Storage of a row of tokens.
pub(super) trait ReadTokens: Debug + Send + Sync {
    /// Reads tokens from offset `first` on.
    ///
    /// # Errors
    /// A file has become unreadable, or has changed.
    fn read(&self, first: usize, tokens: Ids<'_>) -> Result<(), DataError>;
}

/// A token row with its splits.
#[derive(Debug)]
pub(super) struct RowSlices<R> {
    pub(super) row: R,
    pub(super) contents: RowSummary,
}

/// The properties of a row, without its tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RowSummary {
    pub(super) digest: String,
    pub(super) splits: Splits,
    /// All tokens are below this count.
    pub(super) below: KeyedCount,
    pub(super) notes: Vec<Note>,
}

/// The sizes of the training split, which comes first, and the evaluation split, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Splits {
    pub(super) training: usize,
    pub(super) evaluation: usize,
    /// Whether they are shares of the same files.
    pub(super) are_shares: bool,
    /// For error messages: a token (`byte`), and the row (`text`).
    pub(super) unit: &'static str,
    pub(super) material: &'static str,
}

impl Splits {
    /// # Errors
    ///
    /// `split` is not in (0, 1].
    pub(super) fn of(
        tokens: usize,
        split: f64,
        [unit, material]: [&'static str; 2],
    ) -> Result<Splits, DataError> {
        if !(split > 0.0 && split <= 1.0) {
            return Err(DataError::BadSplit { split });
        }
        let training = ((tokens as f64 * split) as usize).min(tokens);
        Ok(Splits { training, evaluation: tokens - training, are_shares: true, unit, material })
    }

    /// Splits of files of their own.
    pub(super) fn given(training: usize, evaluation: usize, [unit, material]: [&'static str; 2]) -> Splits {
        Splits { training, evaluation, are_shares: false, unit, material }
    }

    /// Checks that a sample fits: it needs one token more than its length, for the last target.
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

    /// Number of windows without overlap in the training split.
    fn windows(&self, context: usize) -> u64 {
        (self.training.saturating_sub(1) / context.max(1)) as u64
    }

    fn largest_split(&self, context: usize) -> Option<f64> {
        let total = self.training + self.evaluation;
        let fits = |hundredths: &usize| {
            let split = Splits::of(total, *hundredths as f64 / 100.0, [self.unit, self.material]);
            split.is_ok_and(|split| split.training > context && split.evaluation > context)
        };
        (1..100).rev().find(fits).filter(|_| self.are_shares).map(|hundredths| hundredths as f64 / 100.0)
    }
}

impl Contents for RowSummary {
    fn digest(&self) -> &str {
        &self.digest
    }

    fn notes(&self) -> &[Note] {
        &self.notes
    }

    fn row_len(&self) -> Option<usize> {
        Some(self.splits.training + self.splits.evaluation)
    }

    /// Number of windows without overlap.
    fn samples(&self, sample: &Sample) -> u64 {
        self.splits.windows(context(sample.parts.iter()))
    }

    fn parts(&self) -> &'static [&'static str] {
        PARTS
    }

    /// Tokens or targets of the requested length, or the loss weights.
    fn part(&self, requested: &Part) -> Option<Part> {
        match requested.role {
            PartRole::Weight => Some(row::weights()),
            _ => row::slice(requested, self.below),
        }
    }

    fn check_size(&self, sample: &Sample, evaluates: bool) -> Result<(), DataError> {
        self.splits.check(sample, evaluates)
    }
}

/// Tokens per sample, without the last target.
fn context<'a>(parts: impl Iterator<Item = &'a Part>) -> usize {
    parts.map(|part| part.ty.elements()).max().unwrap_or(0)
}

impl<R: ReadTokens> Source for RowSlices<R> {
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

impl<R: ReadTokens> TokenRow for RowSlices<R> {
    fn tokens(&self, first: usize, dtype: DType, memory: &mut [u8]) -> Result<(), DataError> {
        self.row.read(first, Ids::of(dtype, memory))
    }

    /// Any offset if samples are drawn; a multiple of `context` in epochs.
    fn training_start(&self, step: &TrainingStep, sample: u64, context: usize) -> Option<usize> {
        let splits = &self.contents.splits;
        match step.order {
            Order::Drawn => {
                step.sample_index(sample, (splits.training - context) as u64).map(|start| start as usize)
            }
            Order::Shuffled { .. } => {
                let window = step.sample_index(sample, splits.windows(context))?;
                Some(window as usize * context)
            }
        }
    }

    fn weight(&self, step: &TrainingStep, context: usize) -> f32 {
        let present = step.present(self.contents.splits.windows(context));
        (step.samples as f64 / present as f64) as f32
    }

    /// Consecutive windows without overlap.
    fn evaluation_start(&self, sample: u64, context: usize) -> usize {
        let Splits { training, evaluation, .. } = self.contents.splits;
        let windows = ((evaluation - 1) / context) as u64;
        training + (sample % windows) as usize * context
    }
}

impl<R: ReadTokens> RowSlices<R> {
    fn reader(&self) -> impl Fn(usize, DType, &mut [u8]) -> Result<(), DataError> {
        |first, dtype, memory| self.row.read(first, Ids::of(dtype, memory))
    }
}
