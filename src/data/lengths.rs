//! Padded lengths: documents are padded to the longest of their micro-batch, as PyTorch's collators do.

use std::ops::Range;

use super::order::{Order, TrainingStep};
use super::source::SampleLengths;

/// A run's batches, as far as they determine padded lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSequence {
    pub seed: u64,
    pub order: Order,
    /// Optimizer steps.
    pub steps: usize,
    pub training: Batching,
    /// Batches of an evaluation; 0 without evaluations.
    pub evaluation_batches: usize,
    pub evaluation: Batching,
    /// Lengths are multiples of this, at most the model's context.
    pub multiple: usize,
}

/// How a batch is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Samples of a batch.
    pub samples: usize,
    /// Samples of a micro-batch; the last one of a batch may have fewer.
    pub micro_batch: usize,
}

/// The padded length of every micro-batch of a run, in tokens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PaddedLengths {
    /// Of a micro-batch with the longest sample of the data.
    longest: usize,
    training: MicroBatches,
    evaluation: MicroBatches,
}

/// A micro-batch of padded samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaddedMicroBatch {
    /// Tokens of each sample, padding included.
    pub length: usize,
    /// Whether a sample has padding.
    pub has_padding: bool,
}

/// Micro-batches of steps or of an evaluation, batch after batch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct MicroBatches {
    lengths: Vec<u32>,
    have_padding: Vec<bool>,
    /// Micro-batches of a batch.
    per_batch: usize,
}

impl MicroBatches {
    fn new(micro_batches: impl Iterator<Item = PaddedMicroBatch>, per_batch: usize) -> MicroBatches {
        let parts = micro_batches.map(|each| (each.length as u32, each.has_padding));
        let (lengths, have_padding) = parts.unzip();
        MicroBatches { lengths, have_padding, per_batch }
    }

    /// `None` after the last batch.
    fn get(&self, batch: usize, micro_batch: usize) -> Option<PaddedMicroBatch> {
        let index = batch * self.per_batch + micro_batch;
        let length = *self.lengths.get(index)? as usize;
        Some(PaddedMicroBatch { length, has_padding: self.have_padding[index] })
    }

    /// The lengths of a batch; none after the last.
    fn of(&self, batch: usize) -> &[u32] {
        self.lengths.get(batch * self.per_batch..(batch + 1) * self.per_batch).unwrap_or_default()
    }
}

impl Batching {
    /// Micro-batches of a batch.
    fn count(self) -> usize {
        self.samples.div_ceil(self.micro_batch)
    }

    /// The samples of each micro-batch.
    fn micro_batches(self) -> impl Iterator<Item = Range<u64>> {
        let end = self.samples;
        let starts = (0..end).step_by(self.micro_batch);
        starts.map(move |start| start as u64..(start + self.micro_batch).min(end) as u64)
    }
}

impl PaddedLengths {
    /// The lengths of a run on samples of at most `context` tokens. `None` if a split that the run reads has no samples, or
    /// an epoch no batch.
    pub fn new(samples: &SampleLengths, context: usize, batches: &BatchSequence) -> Option<PaddedLengths> {
        let evaluates = batches.evaluation_batches > 0;
        let smallest = match batches.order {
            Order::Shuffled { keeps_last: false } => batches.training.samples,
            Order::Shuffled { keeps_last: true } | Order::Drawn => 1,
        };
        if samples.training.len() < smallest || (evaluates && samples.evaluation.is_empty()) {
            return None;
        }
        // Missing samples of an epoch's last batch have no tokens.
        let padded = |length: u32| (length.max(1) as usize).next_multiple_of(batches.multiple).min(context);
        let longest = |lengths: &[u32]| lengths.iter().copied().max().unwrap_or(0);
        let evaluated = if evaluates { longest(&samples.evaluation) } else { 0 };
        let of = |split: &[u32], sample: Option<u64>| sample.map_or(0, |sample| split[sample as usize]);

        let micro_batch = |lengths: &mut dyn Iterator<Item = u32>| {
            let (shortest, longest) = lengths.fold((u32::MAX, 0), |(shortest, longest), length| {
                (shortest.min(length), longest.max(length))
            });
            let length = padded(longest);
            PaddedMicroBatch { length, has_padding: (shortest as usize) < length }
        };

        let training = (0..batches.steps as u64).flat_map(|number| {
            let step = TrainingStep {
                seed: batches.seed,
                number,
                samples: batches.training.samples as u64,
                order: batches.order,
            };
            let split = &samples.training;
            let length = move |sample| of(split, step.sample_index(sample, split.len() as u64));
            batches.training.micro_batches().map(move |range| micro_batch(&mut range.map(length)))
        });
        let evaluation = (0..batches.evaluation_batches).flat_map(|batch| {
            let (split, first) = (&samples.evaluation, (batch * batches.evaluation.samples) as u64);
            let length = move |sample: u64| of(split, Some((first + sample) % split.len() as u64));
            batches.evaluation.micro_batches().map(move |range| micro_batch(&mut range.map(length)))
        });
        Some(PaddedLengths {
            longest: padded(longest(&samples.training).max(evaluated)),
            training: MicroBatches::new(training, batches.training.count()),
            evaluation: MicroBatches::new(evaluation, batches.evaluation.count()),
        })
    }

    /// The lengths of a run whose micro-batches all have one length.
    pub fn of_one(length: usize) -> PaddedLengths {
        let [training, evaluation] = [(); 2].map(|()| MicroBatches::new(std::iter::empty(), 1));
        PaddedLengths { longest: length, training, evaluation }
    }

    /// The length of a micro-batch with the longest sample of the data.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// A micro-batch of a step; both are counted from 0.
    pub fn training_batch(&self, step: usize, micro_batch: usize) -> PaddedMicroBatch {
        self.training.get(step, micro_batch).unwrap_or(self.later_batch())
    }

    /// A micro-batch of an evaluation batch.
    pub fn evaluation_batch(&self, batch: usize, micro_batch: usize) -> PaddedMicroBatch {
        self.evaluation.get(batch, micro_batch).unwrap_or(self.later_batch())
    }

    /// Batches after the run's count as the longest.
    fn later_batch(&self) -> PaddedMicroBatch {
        PaddedMicroBatch { length: self.longest, has_padding: true }
    }

    /// The length of a micro-batch of a step.
    pub fn training(&self, step: usize, micro_batch: usize) -> usize {
        self.training_batch(step, micro_batch).length
    }

    /// Micro-batches of a step.
    pub fn per_step(&self) -> usize {
        self.training.per_batch
    }

    /// Micro-batches of an evaluation batch.
    pub fn per_evaluation_batch(&self) -> usize {
        self.evaluation.per_batch
    }

    /// The lengths of a step's micro-batches.
    pub fn of_step(&self, step: usize) -> &[u32] {
        self.training.of(step)
    }

    /// The lengths of the micro-batches of an evaluation batch.
    pub fn of_evaluation(&self, number: usize) -> &[u32] {
        self.evaluation.of(number)
    }

    /// Tokens of a step of `samples` samples, padding included.
    pub fn tokens_of_step(&self, step: usize, samples: usize, micro_batch: usize) -> usize {
        let micro_batches = Batching { samples, micro_batch }.micro_batches();
        let tokens =
            |(number, of): (usize, Range<u64>)| (of.end - of.start) as usize * self.training(step, number);
        micro_batches.enumerate().map(tokens).sum()
    }

    /// The length of a micro-batch of an evaluation batch.
    pub fn evaluation(&self, batch: usize, micro_batch: usize) -> usize {
        self.evaluation_batch(batch, micro_batch).length
    }

    /// The distinct lengths of the run's micro-batches, ascending.
    pub fn distinct(&self) -> Vec<usize> {
        let mut lengths: Vec<usize> = self
            .training
            .lengths
            .iter()
            .chain(&self.evaluation.lengths)
            .map(|length| *length as usize)
            .collect();
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    /// Whether each micro-batch has a sample with padding.
    pub fn all_have_padding(&self) -> bool {
        self.training.have_padding.iter().chain(&self.evaluation.have_padding).all(|has_padding| *has_padding)
    }

    /// Steps with known lengths.
    pub fn steps(&self) -> usize {
        self.training.lengths.len() / self.training.per_batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCHES: BatchSequence = BatchSequence {
        seed: 3,
        order: Order::Shuffled { keeps_last: true },
        steps: 3,
        training: Batching { samples: 4, micro_batch: 3 },
        evaluation_batches: 2,
        evaluation: Batching { samples: 2, micro_batch: 2 },
        multiple: 8,
    };

    fn samples() -> SampleLengths {
        SampleLengths { training: vec![5, 30, 9, 16, 17, 2, 1, 40, 3, 8], evaluation: vec![4, 9, 20] }
    }

    /// Counted by hand from the order of the samples: the longest sample of each micro-batch, rounded up.
    #[test]
    fn micro_batches_are_padded_to_their_longest_sample() {
        let samples = samples();
        let lengths = PaddedLengths::new(&samples, 40, &BATCHES).unwrap();
        for step in 0..3 {
            let order = TrainingStep { seed: 3, number: step, samples: 4, order: BATCHES.order };
            let length =
                |sample| order.sample_index(sample, 10).map_or(0, |index| samples.training[index as usize]);
            let [a, b, c, d] = [0, 1, 2, 3].map(length);
            let expected = [a.max(b).max(c), d].map(|longest| longest.max(1).next_multiple_of(8) as usize);
            assert_eq!([0, 1].map(|micro| lengths.training(step as usize, micro)), expected, "{step}");
        }
        // The last batch of the epoch has two samples; its second micro-batch has none.
        assert_eq!(lengths.training(2, 1), 8);
        // 4 and 9; 20 and, from the front again, 4.
        assert_eq!([0, 1].map(|batch| lengths.evaluation(batch, 0)), [16, 24]);
        assert_eq!((lengths.longest(), lengths.steps()), (40, 3));
        // 4 and 9 tokens in 16; a micro-batch of one sample of 40 tokens has no padding.
        assert!(lengths.evaluation_batch(0, 0).has_padding);
        let one = Batching { samples: 4, micro_batch: 1 };
        let alone = BatchSequence { training: one, multiple: 1, ..BATCHES };
        let lengths = PaddedLengths::new(&samples, 40, &alone).unwrap();
        assert!((0..4).all(|number| !lengths.training_batch(0, number).has_padding));
        assert_eq!(lengths.training_batch(3, 0), PaddedMicroBatch { length: 40, has_padding: true });
    }

    #[test]
    fn multiples_end_at_the_context() {
        let lengths = PaddedLengths::new(&samples(), 40, &BatchSequence { multiple: 32, ..BATCHES }).unwrap();
        assert_eq!(lengths.longest(), 40);
        assert_eq!(lengths.distinct(), [32, 40]);
        let all = PaddedLengths::of_one(40);
        assert_eq!((all.training(0, 0), all.evaluation(1, 0), all.distinct()), (40, 40, vec![]));
    }

    /// The data may be too small for a variant of the run that nobody trains.
    #[test]
    fn epoch_without_a_whole_batch_has_no_lengths() {
        let of = |samples, keeps_last| {
            let training = Batching { samples, micro_batch: 3 };
            let batches = BatchSequence { training, order: Order::Shuffled { keeps_last }, ..BATCHES };
            PaddedLengths::new(&super::tests::samples(), 40, &batches).is_some()
        };
        assert_eq!([of(10, false), of(11, false), of(11, true)], [true, false, true]);
    }

    #[test]
    fn run_without_evaluations_ignores_their_samples() {
        let samples = SampleLengths { training: vec![5], evaluation: vec![90] };
        let longest = |evaluation_batches| {
            let batches = BatchSequence { evaluation_batches, multiple: 1, ..BATCHES };
            PaddedLengths::new(&samples, 100, &batches).unwrap().longest()
        };
        assert_eq!([longest(0), longest(2)], [5, 90]);
        let none = SampleLengths { evaluation: Vec::new(), ..samples.clone() };
        assert_eq!(PaddedLengths::new(&none, 100, &BATCHES), None);
    }
}
