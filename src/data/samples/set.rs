//! Fills batches with chosen samples: each read alone, or copied from memory that holds them all.

use std::fmt::Debug;
use std::ops::Range;

use super::SampleMemory;
use crate::row;
use crate::{Batch, DataError, Part, PartRole, TrainingStep};
use ops::{DType, TensorType};

/// A sample of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChosenSample {
    /// Its number in the data set, whose evaluation split follows the training split.
    pub(crate) index: u64,
    /// A random number: for changes to a training sample, or of a random sample.
    pub(crate) draw: Option<u64>,
}

/// Samples of an input and targets, in the order of their numbers.
pub(crate) trait SampleSet: Debug + Send + Sync {
    /// The sample of a step with this number; `None` if the step has fewer samples.
    fn of_training(&self, step: &TrainingStep, number: u64) -> Option<ChosenSample>;

    /// Number of samples of a step.
    fn present(&self, step: &TrainingStep) -> u64;

    /// The sample of an evaluation with this number.
    fn of_evaluation(&self, number: u64) -> ChosenSample;

    /// The sample of this index, without changes.
    fn unchanged(&self, index: u64) -> ChosenSample;

    /// Reads parts of a sample.
    ///
    /// # Errors
    /// A file has become unreadable, or has changed.
    fn read(&self, chosen: ChosenSample, memory: SampleMemory<'_>) -> Result<(), DataError>;

    /// Makes the input of a sample from the bytes that are held of it.
    fn prepare(&self, chosen: ChosenSample, held: &[u8], part: &Part, memory: &mut [u8]);
}

/// A part of all samples in memory.
#[derive(Clone, Copy, Debug)]
pub struct HeldPart<'a> {
    pub part: Part,
    /// The samples in order.
    pub bytes: &'a [u8],
}

/// A data set of samples that can be held in memory as a whole: the training split, followed by the evaluation split.
pub trait HeldSamples {
    /// Fills memory with a part of the samples from `first` on, in the type of the part. Inputs of a data set of pixels
    /// are held in u8 as they are stored, without changes.
    ///
    /// # Errors
    /// A file has become unreadable, or has changed.
    fn read_part(&self, first: u64, part: &Part, memory: &mut [u8]) -> Result<(), DataError>;

    /// Fills a batch with samples of a training step from held parts. Parts that are not held are read; if the batch has
    /// places of samples, these are stored.
    ///
    /// # Errors
    /// Those of [`HeldSamples::read_part`].
    fn fill_step(
        &self,
        step: &TrainingStep,
        samples: Range<u64>,
        held: &[HeldPart<'_>],
        batch: &mut Batch,
    ) -> Result<(), DataError>;

    /// The same for samples of an evaluation.
    ///
    /// # Errors
    /// Those of [`HeldSamples::read_part`].
    fn fill_evaluated(
        &self,
        samples: Range<u64>,
        held: &[HeldPart<'_>],
        batch: &mut Batch,
    ) -> Result<(), DataError>;
}

impl<S: SampleSet> HeldSamples for S {
    fn read_part(&self, first: u64, part: &Part, memory: &mut [u8]) -> Result<(), DataError> {
        let samples = memory.chunks_exact_mut(part.ty.bytes() as usize);
        let mut wide = Vec::new();
        (first..).zip(samples).try_for_each(|(index, memory)| {
            rounded(part, memory, &mut wide, |part, memory| {
                let mut parts = SampleMemory::default();
                parts.add(part, memory);
                self.read(self.unchanged(index), parts)
            })
        })
    }

    fn fill_step(
        &self,
        step: &TrainingStep,
        samples: Range<u64>,
        held: &[HeldPart<'_>],
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        let weight = (step.samples as f64 / self.present(step) as f64) as f32;
        fill(self, weight, samples.map(|number| self.of_training(step, number)), held, batch)
    }

    fn fill_evaluated(
        &self,
        samples: Range<u64>,
        held: &[HeldPart<'_>],
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        fill(self, 1.0, samples.map(|number| Some(self.of_evaluation(number))), held, batch)
    }
}

/// Fills samples, of which missing ones have no weight.
fn fill(
    set: &(impl SampleSet + ?Sized),
    weight: f32,
    samples: impl Iterator<Item = Option<ChosenSample>>,
    held: &[HeldPart<'_>],
    batch: &mut Batch,
) -> Result<(), DataError> {
    // The input of a sample in f32, before it is rounded.
    let mut wide = Vec::new();
    for (at, chosen) in samples.enumerate() {
        let (mut unread, mut narrow) = (SampleMemory::default(), None);
        for filled in batch.parts_mut() {
            let part = filled.part;
            let bytes = part.ty.bytes() as usize;
            let memory = &mut filled.bytes[at * bytes..][..bytes];
            let Some(sample) = chosen else {
                fill_missing(&part, memory);
                continue;
            };
            let of_part = held.iter().find(|held| held.part.role == part.role);
            match (part.role, of_part) {
                (PartRole::Weight, _) => memory.copy_from_slice(&weight.to_ne_bytes()),
                (PartRole::Place, _) => row::put_place(Some(sample.index), memory),
                (role, Some(HeldPart { part: own, bytes })) => {
                    let bytes_of_sample = own.ty.bytes() as usize;
                    let held = &bytes[sample.index as usize * bytes_of_sample..][..bytes_of_sample];
                    match role {
                        PartRole::Input if own.ty.dtype == DType::U8 && own.below.is_none() => {
                            rounded(&part, memory, &mut wide, |part, memory| {
                                set.prepare(sample, held, part, memory);
                                Ok(())
                            })?;
                        }
                        _ => memory.copy_from_slice(held),
                    }
                }
                _ if is_half(&part) => narrow = Some((part, memory)),
                _ => unread.add(&part, memory),
            }
        }
        match (chosen, narrow) {
            (Some(sample), Some((part, memory))) => rounded(&part, memory, &mut wide, |part, memory| {
                let mut all = SampleMemory { ..unread };
                all.add(part, memory);
                set.read(sample, all)
            })?,
            (Some(sample), None) if !unread.is_empty() => set.read(sample, unread)?,
            _ => {}
        }
    }
    Ok(())
}

fn is_half(part: &Part) -> bool {
    matches!(part.ty.dtype, DType::F16 | DType::BF16)
}

/// Fills memory of a 16-bit part with numbers that are made in f32, in `wide`, and rounded; other parts as they are.
fn rounded(
    part: &Part,
    memory: &mut [u8],
    wide: &mut Vec<u8>,
    fill: impl FnOnce(&Part, &mut [u8]) -> Result<(), DataError>,
) -> Result<(), DataError> {
    if !is_half(part) {
        return fill(part, memory);
    }
    let ty = TensorType { dtype: DType::F32, ..part.ty };
    wide.resize(ty.bytes() as usize, 0);
    fill(&Part { ty, ..*part }, wide)?;
    let numbers: Vec<f32> = wide.as_chunks().0.iter().map(|number| f32::from_ne_bytes(*number)).collect();
    memory.copy_from_slice(&device::from_f32(part.ty.dtype, &numbers));
    Ok(())
}

/// A sample beyond the last of an epoch: zeros, no weight, and masked classes, whose bits are all ones in any type.
fn fill_missing(part: &Part, memory: &mut [u8]) {
    match part.role {
        PartRole::Place => row::put_place(None, memory),
        PartRole::Input => memory.fill(0),
        _ => memory.fill(part.below.map_or(0, |_| u8::MAX)),
    }
}
