//! The source of batches: samples from the data set, or slices of a token row that is held in memory as a whole.

use std::ops::Range;
use std::sync::OnceLock;

use crate::engine::Engine;
use crate::error::RunError;
use data::{Batch, DataError, Source, TokenRow, TrainingStep, row, seeds};
use device::HostSlice;
use ops::DType;
use spec::{DataResidence, RunConfig};

/// Bytes of one read of a token row that is copied to the device.
const PIECE: usize = 64 << 10;

#[derive(Clone, Copy)]
pub(crate) struct BatchSource<'a> {
    config: &'a RunConfig,
    data: &'a dyn Source,
    /// Tokens of a sample. 0 for models without tokens.
    context: usize,
    /// The token row, once it is in host memory.
    held: &'a OnceLock<HostSlice>,
}

impl<'a> BatchSource<'a> {
    pub(crate) fn new(
        config: &'a RunConfig,
        data: &'a dyn Source,
        held: &'a OnceLock<HostSlice>,
    ) -> BatchSource<'a> {
        BatchSource { config, data, context: config.sample().tokens.unwrap_or(0), held }
    }

    pub(crate) fn context(&self) -> usize {
        self.context
    }

    pub(crate) fn config(&self) -> &'a RunConfig {
        self.config
    }

    /// Copies the whole token row to the memory in which the run holds it, if it does.
    ///
    /// # Errors
    /// Data that cannot be read, or a device that fails.
    pub(crate) fn hold(&self, engine: &mut Engine) -> Result<(), RunError> {
        let loader = &self.config.strategy.loader;
        let dtype = loader.dtype.dtype();
        match loader.source {
            DataResidence::Stream => Ok(()),
            DataResidence::Ram => {
                let mut memory = engine.lend_row()?;
                self.row().tokens(0, dtype, &mut memory)?;
                // It is set only here.
                let _ = self.held.set(memory);
                Ok(())
            }
            DataResidence::Device => {
                let (row, mut piece) = (self.row(), vec![0; PIECE]);
                let each = PIECE / dtype.bytes() as usize;
                let tokens = self.config.tokens.expect("planned: the number of tokens of held data is known");
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
        self.data.row().expect("checked: held data is a token row")
    }

    /// The token row that samples are slices of, and its tokens if the host slices it. `None` if samples are read from
    /// the data set, as they are before the row is in host memory.
    fn cut(&self) -> Option<(&'a dyn TokenRow, Option<&'a [u8]>)> {
        match self.config.strategy.loader.source {
            DataResidence::Stream => None,
            DataResidence::Ram => self.held.get().map(|held| (self.row(), Some(&**held))),
            DataResidence::Device => Some((self.row(), None)),
        }
    }

    /// Fills in some samples of a training step. Steps are counted from 0.
    ///
    /// # Errors
    /// Data that cannot be read, or has changed.
    pub(crate) fn training(
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

    /// Fills in all samples of a training step from the data set, even if the run holds a token row.
    ///
    /// # Errors
    /// As for `training`.
    pub(crate) fn training_from_data(&self, step: usize, batch: &mut Batch) -> Result<(), DataError> {
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

    /// Fills in some of the first `of` samples of the evaluation split.
    ///
    /// # Errors
    /// As for `training`.
    pub(crate) fn evaluation(
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

/// Reads tokens of the row in host memory. Panics if the device holds the row: then no tokens are read.
fn reader(held: Option<&[u8]>) -> impl Fn(usize, DType, &mut [u8]) -> Result<(), DataError> {
    move |first, dtype, memory| {
        let held = held.expect("batches carry only offsets if the device holds the row");
        memory.copy_from_slice(&held[dtype.bytes_of(first) as usize..][..memory.len()]);
        Ok(())
    }
}
