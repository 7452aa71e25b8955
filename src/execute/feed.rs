//! What batches are made of: samples as the data has them, or cut out of a row of tokens that is held as a whole.

use std::ops::Range;
use std::sync::OnceLock;

use super::engine::Engine;
use super::error::RunError;
use data::{Batch, DataError, Source, TokenRow, TrainingStep, row, seeds};
use device::Lent;
use ops::DType;
use spec::{LoadedFrom, RunConfig};

/// Bytes that are read at a time of a row that the device is to have.
const PIECE: usize = 64 << 10;

#[derive(Clone, Copy)]
pub(super) struct BatchSource<'a> {
    config: &'a RunConfig,
    data: &'a dyn Source,
    /// Tokens of a sample, of a model that works on tokens.
    context: usize,
    /// The row, once the host's memory has it.
    held: &'a OnceLock<Lent>,
}

impl<'a> BatchSource<'a> {
    pub(super) fn new(
        config: &'a RunConfig,
        data: &'a dyn Source,
        held: &'a OnceLock<Lent>,
    ) -> BatchSource<'a> {
        BatchSource { config, data, context: config.sample().tokens.unwrap_or(0), held }
    }

    pub(super) fn context(&self) -> usize {
        self.context
    }

    pub(super) fn config(&self) -> &'a RunConfig {
        self.config
    }

    /// Puts all of the data where the run holds it, if it does.
    ///
    /// # Errors
    /// Data that cannot be read, or a device that fails.
    pub(super) fn hold(&self, engine: &mut Engine) -> Result<(), RunError> {
        let loader = &self.config.strategy.loader;
        let dtype = loader.dtype.dtype();
        match loader.source {
            LoadedFrom::Stream => Ok(()),
            LoadedFrom::Ram => {
                let mut memory = engine.lend_row()?;
                self.row().tokens(0, dtype, &mut memory)?;
                // Nobody else sets it.
                let _ = self.held.set(memory);
                Ok(())
            }
            LoadedFrom::Device => {
                let (row, mut piece) = (self.row(), vec![0; PIECE]);
                let each = PIECE / dtype.bytes() as usize;
                let tokens = self.config.tokens.expect("planned: data that is held was looked at");
                for first in (0..tokens).step_by(each) {
                    let piece = &mut piece[..dtype.bytes_of(each.min(tokens - first)) as usize];
                    row.tokens(first, dtype, piece)?;
                    engine.put_row(dtype.bytes_of(first), piece)?;
                }
                Ok(())
            }
        }
    }

    fn row(&self) -> &'a dyn TokenRow {
        self.data.row().expect("checked: data that is held is a row")
    }

    /// The row that samples are cut out of, and its tokens where the host does that; none where the data gives samples itself,
    /// as it does before it is held.
    fn cut(&self) -> Option<(&'a dyn TokenRow, Option<&'a [u8]>)> {
        match self.config.strategy.loader.source {
            LoadedFrom::Stream => None,
            LoadedFrom::Ram => self.held.get().map(|held| (self.row(), Some(&**held))),
            LoadedFrom::Device => Some((self.row(), None)),
        }
    }

    /// Fills in some samples of a step, counted from 0.
    ///
    /// # Errors
    /// What is read as it is needed cannot be, or has changed.
    pub(super) fn training(
        &self,
        step: usize,
        samples: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        let step = self.step(step);
        match self.cut() {
            None => self.data.fill_training(&step, samples.clone(), batch)?,
            Some((row, held)) => {
                let start = |sample| row.training_start(&step, sample, self.context);
                let weight = row.weight(&step, self.context);
                row::fill_in(weight, samples.clone(), start, reader(held), batch)?;
            }
        }
        seeds::fill(&step, samples, batch);
        Ok(())
    }

    /// The same as the data has them, whatever is held.
    ///
    /// # Errors
    /// As for `training`.
    pub(super) fn as_it_lies(&self, step: usize, batch: &mut Batch) -> Result<(), DataError> {
        let step = self.step(step);
        self.data.fill_training(&step, 0..step.samples, batch)?;
        seeds::fill(&step, 0..step.samples, batch);
        Ok(())
    }

    fn step(&self, number: usize) -> TrainingStep {
        let train = &self.config.train;
        let (seed, samples) = (train.seed, train.batch_size as u64);
        TrainingStep { seed, number: number as u64, samples, order: train.order() }
    }

    /// Fills in some samples of so many of the evaluation split.
    ///
    /// # Errors
    /// As for `training`.
    pub(super) fn evaluation(
        &self,
        of: u64,
        samples: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        match self.cut() {
            None => self.data.fill_evaluation(of, samples, batch),
            Some((row, held)) => {
                let start = |sample| Some(row.evaluation_start(sample, self.context));
                row::fill_in(1.0, samples, start, reader(held), batch)
            }
        }
    }
}

/// What takes tokens out of a row that the host's memory holds. Of one that it does not, nothing is taken.
fn reader(held: Option<&[u8]>) -> impl Fn(usize, DType, &mut [u8]) -> Result<(), DataError> {
    move |first, dtype, memory| {
        let held = held.expect("samples have their places alone where the device holds the row");
        memory.copy_from_slice(&held[dtype.bytes_of(first) as usize..][..memory.len()]);
        Ok(())
    }
}
