//! Batches: of each sample, the named and typed parts that a model asks for.

use std::fmt;
use std::ops::DerefMut;

use super::ids::Ids;
use super::row::{PLACE, WEIGHTS, is_missing};
use super::seeds;
use ops::{DType, Shape, TensorType};

/// What a model asks for of each sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub parts: Vec<Part>,
    /// How long it is, if it is a stretch of something longer.
    pub length: Option<Given>,
    /// How many tokens it has, if the model works on tokens: what its speed is counted in.
    pub tokens: Option<usize>,
}

#[cfg(test)]
impl Sample {
    /// For data that does not ask what it is for.
    pub(crate) const NONE: Sample = Sample { parts: Vec::new(), length: None, tokens: None };
}

/// One of the things that a sample consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub name: &'static str,
    /// Of one sample: `[T]` of a sequence, `[]` of a class, up to three dimensions.
    pub ty: TensorType,
    /// Of whole numbers that tell things apart: all are from 0 to below this. Data that does not say it may have any.
    pub below: Option<Given>,
}

/// A count, and the key of the experiment that decides it: of the model for what is asked for, of the data for what is
/// found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// In full: `model.transformer.context`.
    pub key: &'static str,
    pub count: usize,
}

impl Part {
    /// As it is loaded where ids are loaded in some type: these are what is below something.
    #[must_use]
    pub fn loaded_as(self, dtype: DType) -> Part {
        match self.below {
            Some(_) => Part { ty: TensorType { dtype, ..self.ty }, ..self },
            None => self,
        }
    }

    /// The part of this many samples, one after the other.
    pub fn of_samples(&self, samples: usize) -> TensorType {
        let dims = [&[samples], self.ty.shape.dims()].concat();
        TensorType { dtype: self.ty.dtype, shape: Shape::new(&dims) }
    }
}

/// Where a part lies: memory of this process, or what a device lends.
pub type Memory = Box<dyn DerefMut<Target = [u8]> + Send>;

/// Some samples in the host's memory, part by part.
#[derive(Debug)]
pub struct Batch {
    parts: Vec<Filled>,
    /// What chance starts from, if a model leaves anything to it: no data has it.
    seeds: Option<Filled>,
}

/// A part of all samples of a batch.
pub struct Filled {
    pub part: Part,
    /// Sample after sample, in the machine's byte order.
    pub bytes: Memory,
}

impl fmt::Debug for Filled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filled").field("part", &self.part).finish_non_exhaustive()
    }
}

impl Batch {
    /// Memory of this process for this many samples, as yet without anything that makes sense.
    pub fn new(parts: &[Part], samples: usize) -> Batch {
        Batch { parts: parts.iter().map(|part| Filled::new(*part, samples)).collect(), seeds: None }
    }

    /// In memory of another's, which is as large as each part of the samples is; with what chance starts from, where there is
    /// memory for that.
    pub fn within(parts: Vec<(Part, Memory)>, seeds: Option<Memory>) -> Batch {
        let filled = |(part, bytes)| Filled { part, bytes };
        Batch {
            parts: parts.into_iter().map(filled).collect(),
            seeds: seeds.map(|bytes| Filled { part: seeds::part(), bytes }),
        }
    }

    /// With memory for what chance starts from, too.
    #[must_use]
    pub fn with_seeds(self, samples: usize) -> Batch {
        Batch { seeds: Some(Filled::new(seeds::part(), samples)), ..self }
    }

    /// What data has.
    pub fn parts(&self) -> &[Filled] {
        &self.parts
    }

    pub fn parts_mut(&mut self) -> &mut [Filled] {
        &mut self.parts
    }

    /// What chance starts from.
    pub(super) fn seeds_mut(&mut self) -> Option<&mut Filled> {
        self.seeds.as_mut()
    }

    /// All that there is.
    pub fn all(&self) -> impl Iterator<Item = &Filled> {
        self.parts.iter().chain(&self.seeds)
    }

    pub fn part(&self, name: &str) -> Option<&Filled> {
        self.all().find(|filled| filled.part.name == name)
    }

    /// With the elements of a part, from the first sample's to the last one's; ids may be i32 whatever they are loaded in.
    ///
    /// Panics if there is no such part, or not as many elements of that size.
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

/// What a target is that nothing is told from.
pub(super) const MASKED: i32 = -1;

impl Batch {
    /// How many of its tokens are padding, and how many it has, each sample `context`; if some may be.
    pub fn padding(&self, context: usize) -> Option<[u64; 2]> {
        self.part(WEIGHTS)?;
        if let Some(places) = self.part(PLACE) {
            let places = places.bytes.chunks_exact(places.part.ty.bytes() as usize);
            let all = places.len();
            return Some(
                [places.filter(|place| is_missing(place)).count(), all].map(|n| (n * context) as u64),
            );
        }
        let targets = self.part("targets")?;
        let targets = targets.bytes.chunks_exact(targets.part.ty.dtype.bytes() as usize);
        let all = targets.len() as u64;
        // The bits of -1, and of the largest number that stands for it, are ones.
        let masked = targets.filter(|target| target.iter().all(|byte| *byte == u8::MAX)).count();
        Some([masked as u64, all])
    }
}

impl Filled {
    fn new(part: Part, samples: usize) -> Filled {
        // Not zeros, which the system would hand out without making them resident.
        Filled { part, bytes: Box::new(vec![1; part.of_samples(samples).bytes() as usize]) }
    }

    /// The same number in each element, of a part of f32.
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
    fn parts_have_their_types_and_their_samples_in_order() {
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
