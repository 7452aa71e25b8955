//! Token rows: data whose samples are slices of one row of tokens. A device that holds the row gathers samples itself.

use std::fmt::Debug;
use std::ops::Range;

use super::{Batch, DataError, KeyedCount, Part, PartRole, TrainingStep};
use ops::{DType, TensorType};

/// A row of tokens, and the offsets of samples in it.
pub trait TokenRow: Debug + Send + Sync {
    /// Fills memory with the tokens from offset `first` on, in the type that they are loaded in.
    ///
    /// # Errors
    /// A file has become unreadable, or has changed.
    fn tokens(&self, first: usize, dtype: DType, memory: &mut [u8]) -> Result<(), DataError>;

    /// The offset of a training sample of `context` tokens; `None` if the step has fewer samples.
    fn training_start(&self, step: &TrainingStep, sample: u64, context: usize) -> Option<usize>;

    /// The loss weight of the step's targets, with which an incomplete batch weighs as much as a complete one.
    fn weight(&self, step: &TrainingStep, context: usize) -> f32;

    /// The offset of a sample of the evaluation split.
    fn evaluation_start(&self, sample: u64, context: usize) -> usize;
}

/// The names of a sample's parts.
pub(super) const PARTS: &[&str] = &["tokens", "targets"];

/// The parts of a sample of T tokens: these, and as targets the next token of each; i32[T].
pub fn parts(tokens: usize, below: Option<KeyedCount>) -> [Part; 2] {
    let ty = TensorType::i32(&[tokens]);
    let part = |role, name| Part { role, name, ty, below };
    [part(PartRole::Input, PARTS[0]), part(PartRole::Target, PARTS[1])]
}

/// The offset of a part relative to its sample, if the part is a slice of the row.
pub fn places_later(part: PartRole) -> Option<usize> {
    match part {
        PartRole::Input => Some(0),
        PartRole::Target => Some(1),
        _ => None,
    }
}

/// The tokens of a sample, or the next token of each: the requested part, with ids below `below`.
pub(super) fn slice(requested: &Part, below: KeyedCount) -> Option<Part> {
    let ty = TensorType::i32(&[requested.ty.elements()]);
    places_later(requested.role).map(|_| Part { ty, below: Some(below), ..*requested })
}

/// The part that a row consists of: one token.
pub fn element(dtype: DType) -> Part {
    Part { role: PartRole::Input, name: "row", ty: TensorType::new(dtype, &[]), below: None }
}

/// The part that replaces parts of samples that the device holds: two u32, lower half first; i32[2]. For slices of a row,
/// a sample's offset in it, otherwise its number.
pub fn place() -> Part {
    Part { role: PartRole::Place, name: "place", ty: TensorType::i32(&[2]), below: None }
}

/// The loss weight of a sample's targets: f32[].
pub fn weights() -> Part {
    Part { role: PartRole::Weight, name: "weights", ty: TensorType::f32(&[]), below: None }
}

/// The bit that marks the offset of a missing sample.
const MISSING: u64 = 1 << 63;

/// Stores the place of a sample; `None`: a missing one.
pub(super) fn put_place(offset: Option<u64>, memory: &mut [u8]) {
    let offset = offset.unwrap_or(MISSING);
    let halves = [offset as u32, (offset >> 32) as u32].map(u32::to_ne_bytes);
    memory.copy_from_slice(halves.as_flattened());
}

/// Whether an offset is that of a missing sample.
pub(super) fn is_missing(offset: &[u8]) -> bool {
    // The upper half comes last.
    offset.last_chunk().is_some_and(|upper| (u64::from(u32::from_ne_bytes(*upper)) << 32) & MISSING != 0)
}

/// Fills samples that begin at the offset `start`, or are missing (`None`). `read` reads slices of the row in the
/// batch's type; if the batch has offsets instead, these are stored.
///
/// # Errors
/// The errors of `read`.
pub fn fill_in(
    weight: f32,
    samples: Range<u64>,
    start: impl Fn(u64) -> Option<usize>,
    read: impl Fn(usize, DType, &mut [u8]) -> Result<(), DataError>,
    batch: &mut Batch,
) -> Result<(), DataError> {
    for filled in batch.parts_mut() {
        let Part { role, ty: TensorType { dtype, .. }, .. } = filled.part;
        if role == PartRole::Weight {
            filled.fill_with(weight);
            continue;
        }
        for (sample, memory) in samples.clone().zip(filled.samples_mut()) {
            match (places_later(role), start(sample)) {
                (Some(shift), Some(start)) => read(start + shift, dtype, memory)?,
                // Tokens 0 and masked targets, whose bits are all ones in any type.
                (Some(shift), None) => memory.fill(if shift > 0 { u8::MAX } else { 0 }),
                (None, start) => put_place(start.map(|start| start as u64), memory),
            }
        }
    }
    Ok(())
}
