//! Batches of random tensors.

use data::{Batch, DataSet, DigestCache, Order, RandomSet, TrainingStep, seeds};
use spec::RunConfig;

/// The batch of a step, for a model that does not work on tokens. No sample is missing.
pub fn random_batch(config: &RunConfig, step: usize, samples: usize) -> Batch {
    let mut batch = config.empty_batch(samples);
    let set = RandomSet { samples: Some(samples as u64), seed: step as u64 };
    let of_step = TrainingStep {
        seed: config.train.seed,
        number: 0,
        samples: samples as u64,
        order: Order::Shuffled { keeps_last: true },
    };
    let source = set.open(&config.sample(), &mut DigestCache::default()).expect("nothing is read");
    source.fill_training(&of_step, 0..samples as u64, &mut batch).expect("nothing is read");
    seeds::fill(&of_step, 0..samples as u64, &mut batch);
    batch
}
