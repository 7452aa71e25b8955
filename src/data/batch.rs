//! Batches: the named, typed parts that a model requests of each sample.

use std::fmt;
use std::ops::DerefMut;

use super::ids::Ids;
use ops::{DType, Shape, TensorType};

/// The parts that a model requests of each sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub parts: Vec<Part>,
    /// The length, if samples are slices of a longer sequence.
    pub length: Option<KeyedCount>,
    /// Tokens per sample, if the model works on tokens; the unit of its speed.
    pub tokens: Option<usize>,
}

#[cfg(test)]
impl Sample {
    /// For data sets that ignore the sample.
    pub(crate) const NONE: Sample = Sample { parts: Vec::new(), length: None, tokens: None };
}

/// A named tensor of each sample, such as `tokens` or `targets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
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
        Part { name: "seeds", ty: TensorType::i32(&[2]), below: None }
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
        let image = Part { name: "image", ty: TensorType::f32(&[2, 3]), below: None };
        let class = Part { name: "class", ty: TensorType::i32(&[]), below: None };
        assert_eq!(image.of_samples(4), TensorType::f32(&[4, 2, 3]));
        assert_eq!(class.of_samples(4), TensorType::i32(&[4]));

        let batch = Batch::new(&[image, class], 4);
        let mut batch = batch.with("class", (0..4i32).map(i32::to_ne_bytes));
        assert_eq!(batch.parts().iter().map(|filled| filled.bytes.len()).collect::<Vec<_>>(), [96, 16]);
        let classes: Vec<_> = batch.parts_mut()[1].samples_mut().map(|bytes| bytes.to_vec()).collect();
        assert_eq!(classes, [0, 1, 2, 3i32].map(|class| class.to_ne_bytes().to_vec()));
    }
}
