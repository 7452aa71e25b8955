//! Random tensors: inputs and targets of any shape, made when they are requested.

use std::ops::Range;
use std::path::PathBuf;

use super::samples::{
    ChosenSample, HeldSamples, InputMemory, PARTS, SampleMemory, SampleSet, TargetMemory, is_of_samples,
};
use super::{
    Batch, Contents, DataError, DataSet, DigestCache, Inspected, Part, Sample, Source, TrainingStep, digest,
    sampling,
};

/// Sites of random draws, so that they are independent of all others.
const TRAINING: u64 = 0x7261_6e64_5f74_7261;
const EVALUATION: u64 = 0x7261_6e64_5f65_7661;

/// Random tensors: a sample is a pure function of the seed and its number.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomSet {
    /// Number of training samples, and of evaluation samples; `None`: new ones in each step.
    pub samples: Option<u64>,
    pub seed: u64,
}

#[derive(Debug)]
struct RandomContents {
    digest: String,
    samples: Option<u64>,
}

/// Opened random tensors.
#[derive(Debug)]
struct RandomTensors {
    seed: u64,
    contents: RandomContents,
}

impl RandomSet {
    fn contents(&self) -> RandomContents {
        let RandomSet { samples, seed } = self;
        let text = format!("random tensors, seed {seed}, samples {samples:?}");
        RandomContents { digest: digest::combine(&[digest::of_bytes(text.as_bytes())]), samples: *samples }
    }
}

impl DataSet for RandomSet {
    fn name(&self) -> &'static str {
        "random"
    }

    fn paths(&self) -> &[PathBuf] {
        &[]
    }

    fn is_known_unread(&self) -> bool {
        true
    }

    fn has_epochs(&self) -> bool {
        self.samples.is_some()
    }

    fn inspect(&self, _cache: &mut DigestCache) -> Inspected {
        Ok(Box::new(self.contents()))
    }

    fn open(&self, _sample: &Sample, _cache: &mut DigestCache) -> Result<Box<dyn Source>, DataError> {
        Ok(Box::new(RandomTensors { seed: self.seed, contents: self.contents() }))
    }
}

impl Contents for RandomContents {
    fn digest(&self) -> &str {
        &self.digest
    }

    fn samples(&self, _sample: &Sample) -> u64 {
        self.samples.unwrap_or(0)
    }

    fn splits(&self) -> Option<[u64; 2]> {
        self.samples.map(|samples| [samples; 2])
    }

    fn parts(&self) -> &'static [&'static str] {
        PARTS
    }

    /// Any shape, and classes up to the requested bound.
    fn part(&self, requested: &Part) -> Option<Part> {
        is_of_samples(requested.role).then_some(*requested)
    }

    /// Never fails: there is at least one sample of each.
    fn check_size(&self, _sample: &Sample, _evaluates: bool) -> Result<(), DataError> {
        Ok(())
    }
}

impl RandomTensors {
    /// Two numbers of 24 bits per draw, from 0 to 1 and converted.
    fn put(numbers: &mut [[u8; 4]], draw: impl Fn(u64) -> u64, converted: impl Fn(f32) -> f32) {
        let uniform = |bits: u64| (bits >> 40) as f32 / (1 << 24) as f32;
        for (pair, numbers) in (0..).zip(numbers.chunks_mut(2)) {
            let bits = draw(pair);
            for (number, bits) in numbers.iter_mut().zip([bits, bits << 32]) {
                *number = converted(uniform(bits)).to_ne_bytes();
            }
        }
    }
}

impl SampleSet for RandomTensors {
    fn of_training(&self, step: &TrainingStep, number: u64) -> Option<ChosenSample> {
        let Some(count) = self.contents.samples else {
            let seed = self.seed ^ step.seed.rotate_left(32);
            let draw = sampling::draw(seed, TRAINING, step.number, number);
            return Some(ChosenSample { index: number, draw: Some(draw) });
        };
        step.sample_index(number, count).map(|index| self.unchanged(index))
    }

    fn present(&self, step: &TrainingStep) -> u64 {
        self.contents.samples.map_or(step.samples, |count| step.present(count))
    }

    fn of_evaluation(&self, number: u64) -> ChosenSample {
        let (first, number) = self.contents.samples.map_or((0, number), |count| (count, number % count));
        ChosenSample { index: first + number, draw: Some(sampling::draw(self.seed, EVALUATION, number, 0)) }
    }

    fn unchanged(&self, index: u64) -> ChosenSample {
        match self.contents.samples {
            Some(count) if index >= count => self.of_evaluation(index - count),
            _ => ChosenSample { index, draw: Some(sampling::draw(self.seed, TRAINING, index, 0)) },
        }
    }

    fn read(&self, chosen: ChosenSample, memory: SampleMemory<'_>) -> Result<(), DataError> {
        let of_sample = chosen.draw.unwrap_or_default();
        let draw = |site| move |element| sampling::draw(of_sample, site, element, 0);
        let integers = |site, count: usize| {
            (0..).map(move |element| sampling::scale(draw(site)(element), count as u64) as u32)
        };
        match memory.input {
            Some(InputMemory::Ids { mut ids, count }) => ids.put(integers(0, count)),
            // Mean 0 and variance 1.
            Some(InputMemory::Numbers(numbers)) => {
                RandomTensors::put(numbers, draw(0), |share| (share - 0.5) * 12f32.sqrt());
            }
            Some(InputMemory::Pixels(_)) | None => {}
        }
        match memory.targets {
            Some(TargetMemory::Classes { mut ids, count }) => ids.put(integers(1, count)),
            Some(TargetMemory::Numbers(numbers)) => RandomTensors::put(numbers, draw(1), |share| share),
            None => {}
        }
        Ok(())
    }

    fn prepare(&self, _chosen: ChosenSample, held: &[u8], part: &Part, memory: &mut [u8]) {
        InputMemory::of(part.ty.dtype, memory).copy_from(held);
    }
}

impl Source for RandomTensors {
    fn contents(&self) -> &dyn Contents {
        &self.contents
    }

    fn samples(&self) -> Option<&dyn HeldSamples> {
        Some(self)
    }

    fn fill_training(
        &self,
        step: &TrainingStep,
        samples: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        self.fill_step(step, samples, &[], batch)
    }

    fn fill_evaluation(&self, _of: u64, samples: Range<u64>, batch: &mut Batch) -> Result<(), DataError> {
        self.fill_evaluated(samples, &[], batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{INPUT, TARGETS};
    use crate::{KeyedCount, Order, PartRole, row};
    use ops::TensorType;

    /// An odd number of elements, and classes.
    fn parts() -> [Part; 3] {
        let below = Some(KeyedCount { key: "", count: 10 });
        [
            Part { role: PartRole::Input, name: INPUT, ty: TensorType::f32(&[3, 67]), below: None },
            Part { role: PartRole::Target, name: TARGETS, ty: TensorType::i32(&[]), below },
            row::weights(),
        ]
    }

    fn floats(batch: &Batch, name: &str) -> Vec<f32> {
        let (numbers, _) = batch.part(name).unwrap().bytes.as_chunks();
        numbers.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    }

    fn classes(batch: &Batch) -> Vec<i32> {
        let (numbers, _) = batch.part(TARGETS).unwrap().bytes.as_chunks();
        numbers.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect()
    }

    fn training(set: &RandomSet, step: &TrainingStep, samples: Range<u64>) -> Batch {
        let source = set.open(&Sample::NONE, &mut DigestCache::default()).unwrap();
        let mut batch = Batch::new(&parts(), (samples.end - samples.start) as usize);
        source.fill_training(step, samples, &mut batch).unwrap();
        batch
    }

    const ENDLESS: RandomSet = RandomSet { samples: None, seed: 3 };
    const FIRST: TrainingStep = TrainingStep { seed: 7, number: 0, samples: 200, order: Order::Drawn };

    #[test]
    fn inputs_are_standardized_and_classes_uniform() {
        let batch = training(&ENDLESS, &FIRST, 0..200);
        let numbers = floats(&batch, INPUT);
        let mean =
            |numbers: &mut dyn Iterator<Item = f32>| numbers.map(f64::from).sum::<f64>() / (200 * 201) as f64;
        assert!(mean(&mut numbers.iter().copied()).abs() < 0.02);
        assert!((mean(&mut numbers.iter().map(|x| x * x)) - 1.0).abs() < 0.02);
        let classes = classes(&batch);
        assert!((0..10).all(|class| classes.contains(&class)), "{classes:?}");
        assert!(classes.iter().all(|class| (0..10).contains(class)));
    }

    #[test]
    fn sample_ranges_match_the_whole_step() {
        for set in [ENDLESS, RandomSet { samples: Some(50), ..ENDLESS }] {
            let (whole, part) = (training(&set, &FIRST, 0..8), training(&set, &FIRST, 3..5));
            assert_eq!(floats(&part, INPUT), floats(&whole, INPUT)[3 * 201..5 * 201]);
            assert_eq!(classes(&part), classes(&whole)[3..5]);
            for other in [TrainingStep { seed: 8, ..FIRST }, TrainingStep { number: 1, ..FIRST }] {
                assert_ne!(floats(&training(&set, &other, 0..8), INPUT), floats(&whole, INPUT));
            }
        }
    }

    /// The second step of an epoch of five samples in batches of four has one sample.
    #[test]
    fn missing_samples_have_no_weight() {
        let set = RandomSet { samples: Some(5), ..ENDLESS };
        let order = Order::Shuffled { keeps_last: true };
        let batch = training(&set, &TrainingStep { number: 1, samples: 4, order, ..FIRST }, 0..4);
        assert_eq!(floats(&batch, row::weights().name), [4.0, 0.0, 0.0, 0.0]);
        assert_eq!(classes(&batch)[1..], [-1; 3]);
        assert!(floats(&batch, INPUT)[201..].iter().all(|number| *number == 0.0));
    }
}
