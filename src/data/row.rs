//! Data whose samples are stretches of one row of tokens: for who holds the row and takes the samples out of it.

use std::fmt::Debug;
use std::ops::Range;

use super::stretches::PARTS;
use super::{Batch, DataError, Part, TrainingStep};
use ops::{DType, TensorType};

/// A row of tokens, and where in it samples begin.
pub trait TokenRow: Debug + Send + Sync {
    /// Fills memory with the tokens from a place on, in the type that they are loaded in.
    ///
    /// # Errors
    /// They lie in a file that cannot be read any more, or has changed.
    fn tokens(&self, first: usize, dtype: DType, memory: &mut [u8]) -> Result<(), DataError>;

    /// Where a sample of a training step begins, of so many tokens; none where it is missing.
    fn training_start(&self, step: &TrainingStep, sample: u64, context: usize) -> Option<usize>;

    /// What the targets of each sample of the step count for, so that all count for as much as those of a whole batch.
    fn weight(&self, step: &TrainingStep, context: usize) -> f32;

    /// Where a sample of the evaluation split does.
    fn evaluation_start(&self, sample: u64, context: usize) -> usize;
}

/// How many places later in the row than its sample a part begins, if it is a stretch of the row.
pub fn places_later(part: &str) -> Option<usize> {
    PARTS.iter().position(|name| *name == part)
}

pub(super) const PLACE: &str = "place";

/// Where a sample begins, in the place of what it has of the row: the lower and the upper half of a number.
pub fn place() -> Part {
    Part { name: PLACE, ty: TensorType::i32(&[2]), below: None }
}

/// What the targets of a sample count for.
pub(super) const WEIGHTS: &str = "weights";

/// The same as a part: f32[].
pub fn weights() -> Part {
    Part { name: WEIGHTS, ty: TensorType::f32(&[]), below: None }
}

/// What the place of a sample that is missing has beside where it may as well begin.
const MISSING: u64 = 1 << 63;

/// Whether that stands in a place.
pub(super) fn is_missing(place: &[u8]) -> bool {
    // The upper half comes last.
    place.last_chunk().is_some_and(|upper| (u64::from(u32::from_ne_bytes(*upper)) << 32) & MISSING != 0)
}

/// Fills in samples that begin where `start` says, or are missing: what they have of the row is read from a place on, in the type
/// that the batch has it in; or else they have the place.
///
/// # Errors
/// What is read cannot be.
pub fn fill_in(
    weight: f32,
    samples: Range<u64>,
    start: impl Fn(u64) -> Option<usize>,
    read: impl Fn(usize, DType, &mut [u8]) -> Result<(), DataError>,
    batch: &mut Batch,
) -> Result<(), DataError> {
    for filled in batch.parts_mut() {
        let (name, dtype) = (filled.part.name, filled.part.ty.dtype);
        if name == WEIGHTS {
            filled.fill_with(weight);
            continue;
        }
        for (sample, memory) in samples.clone().zip(filled.samples_mut()) {
            match (places_later(name), start(sample)) {
                (Some(later), Some(start)) => read(start + later, dtype, memory)?,
                // Tokens of 0, and targets that are masked: the bits of these are ones, whatever their type.
                (Some(later), None) => memory.fill(if later > 0 { u8::MAX } else { 0 }),
                (None, start) => {
                    let place = start.map_or(MISSING, |start| start as u64);
                    let halves = [place as u32, (place >> 32) as u32].map(u32::to_ne_bytes);
                    memory.copy_from_slice(halves.as_flattened());
                }
            }
        }
    }
    Ok(())
}
