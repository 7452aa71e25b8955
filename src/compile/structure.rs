//! What of a configuration decides memory, and what of that decides structure.

use crate::spec::{Data, Evaluation, Measure, Model, Optimizer, RunConfig};

/// The same configuration with everything that has no part in memory set to one and the same: runs that are equal
/// here need the same memory, byte for byte.
pub fn memory_part(config: &RunConfig) -> RunConfig {
    let mut part = config.clone();
    let Data::Text(text) = &mut part.data;
    text.paths.clear();
    text.split = 1.0;
    part.train.seed = 0;
    part.train.clip_norm = config.train.clip_norm.map(|_| 1.0);
    let Optimizer::AdamW(optimizer) = &mut part.train.optimizer;
    optimizer.lr = 1.0;
    optimizer.beta1 = 0.0;
    optimizer.beta2 = 0.0;
    optimizer.epsilon = 1.0;
    optimizer.weight_decay = 0.0;
    part.evaluation = config.evaluation.as_ref().map(|_| Evaluation { every: 1, batches: 1 });
    part.measure = Measure { warmup_steps: 0, steps: 1 };
    part
}

/// The same configuration with sizes that belong to no run: dimensions are distinct primes, so that two types are
/// equal here only if they are equal at all sizes. Layers and strategies stay: they decide which operations a
/// step has and how long its values live.
pub fn structure(config: &RunConfig) -> RunConfig {
    const MICRO_BATCH: usize = 1009;
    const HEADS: usize = 7;
    const PER_HEAD: usize = 1019;
    let mut structure = memory_part(config);
    let Model::Transformer(model) = &mut structure.model;
    model.d_model = HEADS * PER_HEAD;
    model.heads = HEADS;
    model.context = 1013;
    model.vocabulary = 1_000_003;
    // One further micro-batch is like any other.
    structure.strategy.accumulate = config.strategy.accumulate.min(2);
    structure.train.batch_size = MICRO_BATCH * structure.strategy.accumulate;
    structure
}
