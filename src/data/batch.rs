//! Batches: the named, typed parts that a model requests of each sample.

use std::fmt;
use std::ops::DerefMut;

use super::ids::Ids;
use ops::{DType, Shape, TensorType};

/// The parts that a model requests of each sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub parts: Vec<Part>,
    /// Positions per sample, if samples are sequences; they are the unit of speed.
    pub length: Option<KeyedCount>,
}

impl Sample {
    /// For data sets that ignore the sample.
    #[cfg(test)]
    pub(crate) const NONE: Sample = Sample { parts: Vec::new(), length: None };

    /// The part with this role.
    pub fn part(&self, role: PartRole) -> Option<&Part> {
        self.parts.iter().find(|part| part.role == role)
    }

    /// Positions per sample, if samples are sequences.
    pub fn positions(&self) -> Option<usize> {
        self.length.map(|length| length.count)
    }

    /// Whether some targets may be masked: padding, or those of missing samples. The loss ignores them, and a weight
    /// makes up for them.
    pub fn masks_targets(&self) -> bool {
        self.part(PartRole::Weight).is_some()
    }

    /// Whether elements of a part may be masked.
    pub fn masks(&self, part: PartRole) -> bool {
        part == PartRole::Target && self.masks_targets()
    }
}

/// What a part of a sample is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartRole {
    /// What the model reads: numbers or ids.
    Input,
    /// What the loss compares the output with: numbers or ids.
    Target,
    /// The loss weight of a sample's targets.
    Weight,
    /// For each position of a sequence, the first position of its document.
    Position,
    /// Random seeds.
    Seeds,
    /// The place of a sample in data that the device holds.
    Place,
}

impl PartRole {
    /// Whether the data set stores the part, the same in every step. Other parts depend on the step.
    pub fn is_stored(self) -> bool {
        matches!(self, PartRole::Input | PartRole::Target)
    }
}

/// A tensor of each sample. Its role decides what is done with it; the name is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub role: PartRole,
    pub name: &'static str,
    /// The type for one sample: `[T]` for a sequence, `[]` for a class, up to three dimensions.
    pub ty: TensorType,
    /// For ids: all are in `0..below`. `None`: not ids, or unbounded.
    pub below: Option<KeyedCount>,
}

/// A count, and the key of the experiment that sets it: a key of the model for requested parts, of the data set for
/// provided parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedCount {
    /// The full key: `model.transformer.context`.
    pub key: &'static str,
    pub count: usize,
}

impl Part {
    /// Random seeds per sample, for models that use randomness: i32[2].
    pub fn seeds() -> Part {
        Part { role: PartRole::Seeds, name: "seeds", ty: TensorType::i32(&[2]), below: None }
    }

    /// Whether it is what the model reads, as numbers.
    pub fn is_numeric_input(&self) -> bool {
        self.role == PartRole::Input && self.below.is_none()
    }

    /// The part with its ids loaded in `dtype`; unchanged if it does not hold ids.
    #[must_use]
    pub fn loaded_as(self, dtype: DType) -> Part {
        match self.below {
            Some(_) => Part { ty: TensorType { dtype, ..self.ty }, ..self },
            None => self,
        }
    }

    /// The type of the part for a batch of samples: `[samples, ...]`.
    pub fn of_samples(&self, samples: usize) -> TensorType {
        let dims = [&[samples], self.ty.shape.dims()].concat();
        TensorType { dtype: self.ty.dtype, shape: Shape::new(&dims) }
    }
}

/// The memory of a part: this process's own, or a device's.
pub type Memory = Box<dyn DerefMut<Target = [u8]> + Send>;

/// Samples in host memory, part by part.
#[derive(Debug)]
pub struct Batch {
    parts: Vec<FilledPart>,
    /// Random seeds per sample, if the model uses randomness. Not part of any data set.
    seeds: Option<FilledPart>,
    /// Number of padding tokens, if the data set counts them itself: masked targets may be tokens of a document.
    padding: Option<u64>,
}

/// One part of all samples of a batch.
pub struct FilledPart {
    pub part: Part,
    /// The samples in order, in native byte order.
    pub bytes: Memory,
}

impl fmt::Debug for FilledPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filled").field("part", &self.part).finish_non_exhaustive()
    }
}

impl Batch {
    /// Allocates a batch, with arbitrary contents.
    pub fn new(parts: &[Part], samples: usize) -> Batch {
        Batch {
            parts: parts.iter().map(|part| FilledPart::new(*part, samples)).collect(),
            seeds: None,
            padding: None,
        }
    }

    /// Makes a batch of existing memory, which has the size of each part, and of optional memory for random seeds.
    pub fn within(parts: Vec<(Part, Memory)>, seeds: Option<Memory>) -> Batch {
        let filled = |(part, bytes)| FilledPart { part, bytes };
        Batch {
            parts: parts.into_iter().map(filled).collect(),
            seeds: seeds.map(|bytes| FilledPart { part: Part::seeds(), bytes }),
            padding: None,
        }
    }

    /// Adds memory for random seeds.
    #[must_use]
    pub fn with_seeds(self, samples: usize) -> Batch {
        Batch { seeds: Some(FilledPart::new(Part::seeds(), samples)), ..self }
    }

    /// The parts from the data set, without the random seeds.
    pub fn parts(&self) -> &[FilledPart] {
        &self.parts
    }

    pub fn parts_mut(&mut self) -> &mut [FilledPart] {
        &mut self.parts
    }

    pub(super) fn set_padding(&mut self, tokens: u64) {
        self.padding = Some(tokens);
    }

    /// Number of padding tokens, if the data set counted them.
    pub(super) fn counted_padding(&self) -> Option<u64> {
        self.padding
    }

    /// The random seeds.
    pub(super) fn seeds_mut(&mut self) -> Option<&mut FilledPart> {
        self.seeds.as_mut()
    }

    /// All parts, random seeds included.
    pub fn all(&self) -> impl Iterator<Item = &FilledPart> {
        self.parts.iter().chain(&self.seeds)
    }

    pub fn part(&self, name: &str) -> Option<&FilledPart> {
        self.all().find(|filled| filled.part.name == name)
    }

    /// The part with this role.
    pub(super) fn of_role(&self, role: PartRole) -> Option<&FilledPart> {
        self.all().find(|filled| filled.part.role == role)
    }

    /// Sets the elements of a part, in the order of samples. Ids may be given as i32 for any loaded type.
    ///
    /// Panics if there is no such part, or if the number or size of elements differs.
    #[must_use]
    pub fn with<const SIZE: usize>(
        mut self,
        name: &str,
        elements: impl IntoIterator<Item = [u8; SIZE]>,
    ) -> Batch {
        let filled = self.parts.iter_mut().chain(&mut self.seeds).find(|filled| filled.part.name == name);
        let filled = filled.unwrap_or_else(|| panic!("the batch has no part `{name}`"));
        let bytes: Vec<u8> = elements.into_iter().flatten().collect();
        let (size, dtype) = (SIZE as u64, filled.part.ty.dtype);
        if let (4, DType::U8 | DType::U16) = (size, dtype) {
            let mut ids = Ids::of(dtype, &mut filled.bytes);
            assert_eq!(ids.len(), bytes.len() / 4, "`{name}`");
            ids.put(bytes.as_chunks().0.iter().map(|id| u32::from_ne_bytes(*id)));
            return self;
        }
        assert_eq!((size, bytes.len()), (dtype.bytes(), filled.bytes.len()), "`{name}` is of {dtype}");
        filled.bytes.copy_from_slice(&bytes);
        self
    }
}

impl FilledPart {
    fn new(part: Part, samples: usize) -> FilledPart {
        // Zeroed pages would not be resident until first written.
        FilledPart { part, bytes: Box::new(vec![1; part.of_samples(samples).bytes() as usize]) }
    }

    /// Fills an f32 part with one number.
    pub(super) fn fill_with(&mut self, number: f32) {
        self.bytes.as_chunks_mut().0.fill(number.to_ne_bytes());
    }

    /// The ids of each sample, in order.
    pub(super) fn ids_mut(&mut self) -> impl Iterator<Item = Ids<'_>> {
        let dtype = self.part.ty.dtype;
        self.samples_mut().map(move |memory| Ids::of(dtype, memory))
    }

    /// The memory of each sample, in order.
    pub fn samples_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.bytes.chunks_exact_mut(self.part.ty.bytes() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_stores_typed_parts_with_samples_in_order() {
        let image = Part { role: PartRole::Input, name: "image", ty: TensorType::f32(&[2, 3]), below: None };
        let class = Part { role: PartRole::Target, name: "class", ty: TensorType::i32(&[]), below: None };
        assert_eq!(image.of_samples(4), TensorType::f32(&[4, 2, 3]));
        assert_eq!(class.of_samples(4), TensorType::i32(&[4]));

        let batch = Batch::new(&[image, class], 4);
        let mut batch = batch.with("class", (0..4i32).map(i32::to_ne_bytes));
        assert_eq!(batch.parts().iter().map(|filled| filled.bytes.len()).collect::<Vec<_>>(), [96, 16]);
        let classes: Vec<_> = batch.parts_mut()[1].samples_mut().map(|bytes| bytes.to_vec()).collect();
        assert_eq!(classes, [0, 1, 2, 3i32].map(|class| class.to_ne_bytes().to_vec()));
    }
}
