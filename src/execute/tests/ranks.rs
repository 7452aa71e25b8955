//! Ranks that share a batch: gradients and losses of all ranks sum to those of a single one.

use super::batch;
use crate::engine::Engine;
use data::{Order, TrainingStep, seeds};
use device::{Rank, Target};
use memory::Failure;
use plan::Compiler;
use spec::*;
use testing::compile;

fn target(rank: Rank) -> Target {
    Target { rank, ..testing::target() }
}

/// A batch of five in two micro-batches: of two ranks, one has two samples and the other three.
fn config() -> RunConfig {
    let mut config = testing::small();
    config.train.batch_size = 5;
    config.train.clip_norm = None;
    config.strategy.accumulate = 2;
    config
}

/// The gradients of a rank before the update, and its part of the loss.
fn part(config: &RunConfig, rank: Rank) -> (Vec<f32>, f32) {
    let program = compile(config, &target(rank)).unwrap();
    let whole = batch(config, 0, config.train.batch_size);
    let own = rank.samples(config.train.batch_size);
    let mut share = config.empty_batch(own.len());
    for (share, whole) in share.parts_mut().iter_mut().zip(whole.parts()) {
        let sample = whole.bytes.len() / config.train.batch_size;
        share.bytes.copy_from_slice(&whole.bytes[own.start * sample..own.end * sample]);
    }
    let step = TrainingStep {
        seed: config.train.seed,
        number: 0,
        samples: config.train.batch_size as u64,
        order: Order::Drawn,
    };
    seeds::fill(&step, own.start as u64..own.end as u64, &mut share);
    let mut device = testing::device(target(rank));
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    engine.gradients(&share, &config.numbers(1)).unwrap();
    let mut gradients: Vec<f32> = Vec::new();
    for parameter in &program.parameters {
        let take = |piece: &[u8]| -> Result<(), Failure> {
            gradients.extend(piece.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)));
            Ok(())
        };
        engine.read(parameter.gradient.unwrap(), take).unwrap();
    }
    let loss = engine.update().unwrap().loss;
    engine.close().unwrap();
    (gradients, loss)
}

#[test]
fn parts_of_ranks_sum_to_the_whole() {
    let config = testing::reshaped(config(), |model| model.dropout.residual = 0.3);
    let (whole, loss) = part(&config, Rank::ALONE);
    let [first, second] = [0, 1].map(|index| part(&config, Rank { index, of: 2 }));
    assert!((first.1 + second.1 - loss).abs() <= 1e-6 * loss, "{} + {} and {loss}", first.1, second.1);
    assert!((second.1 / first.1 - 1.5).abs() < 0.05, "three samples have more weight than two");
    let squares = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| x * x).sum::<f32>().sqrt();
    let sums = first.0.iter().zip(&second.0).map(|(a, b)| a + b);
    let distance = squares(&mut sums.zip(&whole).map(|(sum, whole)| sum - whole));
    assert!(distance <= 1e-6 * squares(&mut whole.iter().copied()), "{distance}");
}

#[test]
fn program_of_a_rank_is_instantiated_at_another_size() {
    let (config, rank) = (config(), Rank { index: 1, of: 2 });
    let mut larger = config.clone();
    larger.train.batch_size = 9;
    let target = target(rank);
    let mut compiler = Compiler::new(&target);
    compiler.compile(&larger).unwrap();
    assert_eq!(compiler.compile(&config).unwrap().program, compile(&config, &target).unwrap());
}
