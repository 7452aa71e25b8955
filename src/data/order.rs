//! The order of training samples: drawn with replacement, or shuffled epochs.

use super::sampling::{draw, start};

/// The site of the draws that shuffle epochs, so that they are independent of all other draws of a run.
const SITE: u64 = 0x6570_6f63_6873_2e2e;

/// Rounds of the Feistel network; four give a pseudorandom permutation (Luby and Rackoff 1988).
const ROUNDS: u64 = 6;

/// The order of training samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Drawn with replacement.
    Drawn,
    /// Epochs that visit every sample once, each in its own random order.
    Shuffled {
        /// Whether an epoch ends with an incomplete batch if its samples are not a multiple of the batch. Otherwise
        /// those samples are dropped.
        keeps_last: bool,
    },
}

/// An optimizer step, as far as it determines the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainingStep {
    /// The run's seed.
    pub seed: u64,
    /// Counted from 0.
    pub number: u64,
    /// The batch size, also for the smaller last batch of an epoch.
    pub samples: u64,
    pub order: Order,
}

impl TrainingStep {
    /// The index, below `count`, of the step's sample with this number; `None` if the last batch of an epoch has fewer
    /// samples. A pure function of its arguments: no order is stored.
    ///
    /// `count` is at least 1, and at least a batch unless incomplete batches are kept.
    pub(super) fn sample_index(&self, sample: u64, count: u64) -> Option<u64> {
        let Order::Shuffled { keeps_last } = self.order else {
            return Some(start(self.seed, self.number, sample, count));
        };
        let (epoch, step) = self.within_epoch(count, keeps_last);
        let index = step * self.samples + sample;
        (index < count).then(|| shuffled(self.seed, epoch, index, count))
    }

    /// Number of samples of the step, if the data set has `count`.
    pub(super) fn present(&self, count: u64) -> u64 {
        match self.order {
            Order::Drawn => self.samples,
            Order::Shuffled { keeps_last } => {
                let (_, step) = self.within_epoch(count, keeps_last);
                self.samples.min(count - step * self.samples)
            }
        }
    }

    /// The step's epoch, and its number within the epoch.
    fn within_epoch(&self, count: u64, keeps_last: bool) -> (u64, u64) {
        let steps = if keeps_last { count.div_ceil(self.samples) } else { count / self.samples };
        (self.number / steps, self.number % steps)
    }
}

/// A random permutation of `0..count`: a Feistel network over the next power of four, with cycle walking until the
/// result is below `count` (Black and Rogaway 2002).
fn shuffled(seed: u64, epoch: u64, index: u64, count: u64) -> u64 {
    let bits = (64 - (count - 1).leading_zeros()).max(2);
    let half = bits.div_ceil(2);
    let mask = (1 << half) - 1;
    let mut number = index;
    loop {
        let (mut left, mut right) = (number >> half, number & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (draw(seed, SITE + round, epoch, right) & mask));
        }
        number = left << half | right;
        if number < count {
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn step(number: u64, samples: u64, order: Order) -> TrainingStep {
        TrainingStep { seed: 7, number, samples, order }
    }

    #[test]
    fn epoch_visits_every_sample_once() {
        for count in (1..300).chain([1023, 1024, 1025, 4097]) {
            let order = |seed, epoch| -> Vec<u64> {
                (0..count).map(|index| shuffled(seed, epoch, index, count)).collect()
            };
            let first = order(7, 0);
            assert!(first.iter().all(|number| *number < count));
            assert_eq!(first.iter().collect::<HashSet<_>>().len() as u64, count, "{count}");
            if count > 20 {
                assert_ne!(first, order(7, 1), "each epoch has its own order");
                assert_ne!(first, order(8, 0), "each seed has its own order");
            }
        }
    }

    /// Over many epochs, the first index maps to every sample equally often.
    #[test]
    fn orders_are_uniform() {
        let mut counts = [0; 10];
        (0..10_000).for_each(|epoch| counts[shuffled(3, epoch, 0, 10) as usize] += 1);
        // Six standard deviations of a binomial of 10,000 draws are 180.
        assert!(counts.iter().all(|count| (820..=1180).contains(count)), "{counts:?}");
    }

    #[test]
    fn last_incomplete_batch_is_dropped_or_kept() {
        let of = |number, order| -> Vec<Option<u64>> {
            (0..4).map(|sample| step(number, 4, order).sample_index(sample, 10)).collect()
        };
        let keep = Order::Shuffled { keeps_last: true };
        let drop = Order::Shuffled { keeps_last: false };
        for epoch in 0..3 {
            let kept: Vec<u64> = (0..3).flat_map(|at| of(3 * epoch + at, keep)).flatten().collect();
            assert_eq!(kept.iter().collect::<HashSet<_>>().len(), 10, "all samples");
            let present = |at| step(3 * epoch + at, 4, keep).present(10);
            assert_eq!([present(0), present(1), present(2)], [4, 4, 2]);
            assert_eq!(of(3 * epoch + 2, keep)[2..], [None, None]);

            let dropped: Vec<u64> = (0..2).flat_map(|at| of(2 * epoch + at, drop)).flatten().collect();
            assert_eq!(dropped.iter().collect::<HashSet<_>>().len(), 8, "whole batches");
            assert_eq!(dropped, kept[..8], "same order");
        }
    }
}
