//! Which of the data a training step sees: samples that are drawn each on its own, or epochs, in each of which all come once.

use super::TrainingStep;
use super::sampling::{draw, start};

/// Epochs are shuffled by a site of their own: no other draw of a run may repeat them.
const SITE: u64 = 0x6570_6f63_6873_2e2e;

/// As many as make of any numbers any order: four are enough for what looks random (Luby and Rackoff 1988).
const ROUNDS: u64 = 6;

/// Which samples come when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each is drawn from all: one may come again before another has come.
    Drawn,
    /// In epochs, in each of which all come once, in an order of its own.
    Shuffled {
        /// Whether an epoch ends with a step of fewer samples, where they are no whole number of batches. Otherwise those are
        /// left out of it.
        keeps_last: bool,
    },
}

impl TrainingStep {
    /// Which of so many samples one of the step is; none where the last step of an epoch has no more. A pure function of its
    /// arguments: no order is kept anywhere.
    ///
    /// There is at least one sample, and a whole batch of them unless the last step of an epoch is kept.
    pub(super) fn chosen(&self, sample: u64, count: u64) -> Option<u64> {
        let Order::Shuffled { keeps_last } = self.order else {
            return Some(start(self.seed, self.number, sample, count));
        };
        let (epoch, step) = self.within_epoch(count, keeps_last);
        let index = step * self.samples + sample;
        (index < count).then(|| shuffled(self.seed, epoch, index, count))
    }

    /// How many samples it has of so many.
    pub(super) fn present(&self, count: u64) -> u64 {
        match self.order {
            Order::Drawn => self.samples,
            Order::Shuffled { keeps_last } => {
                let (_, step) = self.within_epoch(count, keeps_last);
                self.samples.min(count - step * self.samples)
            }
        }
    }

    /// Which epoch it is in, and which of its steps it is.
    fn within_epoch(&self, count: u64, keeps_last: bool) -> (u64, u64) {
        let steps = if keeps_last { count.div_ceil(self.samples) } else { count / self.samples };
        (self.number / steps, self.number % steps)
    }
}

/// Where a number below `count` comes in an epoch's order: a Feistel network over the next power of four, gone through again
/// until it gives a number that there is (Black and Rogaway 2002). It gives each once.
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
    fn each_comes_once_in_an_epoch_whatever_their_number() {
        for count in (1..300).chain([1023, 1024, 1025, 4097]) {
            let order = |seed, epoch| -> Vec<u64> {
                (0..count).map(|index| shuffled(seed, epoch, index, count)).collect()
            };
            let first = order(7, 0);
            assert!(first.iter().all(|number| *number < count));
            assert_eq!(first.iter().collect::<HashSet<_>>().len() as u64, count, "{count}");
            if count > 20 {
                assert_ne!(first, order(7, 1), "each epoch has an order of its own");
                assert_ne!(first, order(8, 0), "and so has each seed");
            }
        }
    }

    /// Where the first number of many orders goes: everywhere as often.
    #[test]
    fn orders_are_uniform() {
        let mut counts = [0; 10];
        (0..10_000).for_each(|epoch| counts[shuffled(3, epoch, 0, 10) as usize] += 1);
        // Six standard deviations of a binomial of 10,000 draws are 180.
        assert!(counts.iter().all(|count| (820..=1180).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_last_step_of_an_epoch_is_left_out_or_has_fewer_samples() {
        let of = |number, order| -> Vec<Option<u64>> {
            (0..4).map(|sample| step(number, 4, order).chosen(sample, 10)).collect()
        };
        let keep = Order::Shuffled { keeps_last: true };
        let drop = Order::Shuffled { keeps_last: false };
        for epoch in 0..3 {
            let kept: Vec<u64> = (0..3).flat_map(|at| of(3 * epoch + at, keep)).flatten().collect();
            assert_eq!(kept.iter().collect::<HashSet<_>>().len(), 10, "all of them");
            let present = |at| step(3 * epoch + at, 4, keep).present(10);
            assert_eq!([present(0), present(1), present(2)], [4, 4, 2]);
            assert_eq!(of(3 * epoch + 2, keep)[2..], [None, None]);

            let dropped: Vec<u64> = (0..2).flat_map(|at| of(2 * epoch + at, drop)).flatten().collect();
            assert_eq!(dropped.iter().collect::<HashSet<_>>().len(), 8, "whole batches");
            assert_eq!(dropped, kept[..8], "in the same order");
        }
    }
}
