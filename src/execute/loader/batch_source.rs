//! The source of batches: samples from the data set, or from data that is held in memory as a whole.

use std::ops::Range;
use std::sync::OnceLock;

use crate::engine::Engine;
use crate::error::RunError;
use data::{Batch, DataError, HeldPart, Part, Source, TokenRow, TrainingStep, row, seeds};
use device::{HostSlice, Rank};
use ops::DType;
use spec::{DataResidence, RunConfig};

/// Bytes of one read of data that is copied to the device; at least one sample.
const PIECE: usize = 64 << 10;

/// Parts of the data in host memory.
pub(crate) type HeldMemory = OnceLock<Vec<(Part, HostSlice)>>;

#[derive(Clone, Copy)]
pub(crate) struct BatchSource<'a> {
    config: &'a RunConfig,
    data: &'a dyn Source,
    rank: Rank,
    /// Tokens of a sample. 0 for models without tokens.
    context: usize,
    /// Set once the data is in host memory.
    held: &'a HeldMemory,
}

impl<'a> BatchSource<'a> {
    /// The source of the samples of a rank.
    pub(crate) fn new(
        config: &'a RunConfig,
        rank: Rank,
        data: &'a dyn Source,
        held: &'a HeldMemory,
    ) -> BatchSource<'a> {
        BatchSource { config, data, rank, context: config.sample().positions().unwrap_or(0), held }
    }

    pub(crate) fn context(&self) -> usize {
        self.context
    }

    pub(crate) fn config(&self) -> &'a RunConfig {
        self.config
    }

    /// The rank's range of the samples of a step.
    pub(crate) fn samples(&self) -> Range<u64> {
        self.range(self.config.train.batch_size)
    }

    /// The rank's range of the samples of an evaluation batch that has its own size.
    pub(crate) fn evaluation_samples(&self) -> Option<Range<u64>> {
        self.config.evaluation_batch().map(|of_all| self.range(of_all))
    }

    fn range(&self, of_all: usize) -> Range<u64> {
        let Range { start, end } = self.rank.samples(of_all);
        start as u64..end as u64
    }

    /// Copies all data to the memory in which the run holds it, if it does.
    ///
    /// # Errors
    /// Data that cannot be read, or a device that fails.
    pub(crate) fn hold(&self, engine: &mut Engine) -> Result<(), RunError> {
        let parts = self.config.held_parts().into_iter();
        match self.config.strategy.loader.source {
            DataResidence::Stream => {}
            DataResidence::Ram => {
                let held = parts.map(|part| {
                    let mut memory = engine.lend_held(&part)?;
                    self.read(0, &part, &mut memory)?;
                    Ok((part, memory))
                });
                // It is set only here.
                let _ = self.held.set(held.collect::<Result<_, RunError>>()?);
            }
            DataResidence::Device => {
                let len = self.config.data_len.expect("planned: the size of held data is known");
                for part in parts {
                    let bytes = part.ty.bytes() as usize;
                    let at_once = (PIECE / bytes).max(1);
                    let mut piece = vec![0; at_once * bytes];
                    for first in (0..len).step_by(at_once) {
                        let piece = &mut piece[..at_once.min(len - first) * bytes];
                        self.read(first, &part, piece)?;
                        engine.put_held(&part, (first * bytes) as u64, piece)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads tokens or samples from this one on.
    fn read(&self, first: usize, part: &Part, memory: &mut [u8]) -> Result<(), DataError> {
        match self.data.samples() {
            Some(samples) => samples.read_part(first as u64, part, memory),
            None => self.row().tokens(first, part.ty.dtype, memory),
        }
    }

    fn row(&self) -> &'a dyn TokenRow {
        self.data.row().expect("checked: held data is a token row or samples")
    }

    /// The data in host memory. Empty before it is there, or if it is elsewhere.
    fn held(&self) -> Vec<HeldPart<'a>> {
        let held = self.held.get().into_iter().flatten();
        held.map(|(part, bytes)| HeldPart { part: *part, bytes }).collect()
    }

    /// The token row that samples are slices of, and its tokens if the host slices it. `None` if samples are read from
    /// the data set, as they are before the row is in host memory.
    fn cut_row(&self) -> Option<(&'a dyn TokenRow, Option<&'a [u8]>)> {
        match self.config.strategy.loader.source {
            _ if self.data.samples().is_some() => None,
            DataResidence::Stream => None,
            DataResidence::Ram => self.held().first().map(|held| (self.row(), Some(held.bytes))),
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
        match (self.data.samples(), self.cut_row()) {
            (Some(set), _) => set.fill_step(&step, samples.clone(), &self.held(), batch)?,
            (None, None) => self.data.fill_training(&step, samples.clone(), batch)?,
            (None, Some((row, held))) => {
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
        match (self.data.samples(), self.cut_row()) {
            (Some(set), _) => set.fill_evaluated(samples, &self.held(), batch),
            (None, None) => self.data.fill_evaluation(of, samples, batch),
            (None, Some((row, held))) => {
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
