//! Dropout: elements are dropped in training only.

use super::{batch, trace};
use crate::engine::Engine;
use compile::Program;
use device::Phase;
use memory::{RunSchedule, predict};
use spec::*;
use testing::compile;

fn dropping() -> RunConfig {
    testing::reshaped(testing::small(), |model| {
        model.dropout = Dropout { embedding: 0.1, attention: 0.2, residual: 0.3 };
    })
}

/// Dropout sites of the training or evaluation sections, in the order of execution.
fn sites(program: &Program, evaluations: bool) -> Vec<u32> {
    let sections = program.sections.iter().filter(|section| section.kind.is_in_evaluation() == evaluations);
    let ops =
        sections.flat_map(|section| &section.code).filter_map(|instruction| match &instruction.action {
            compile::Action::Launch { op, .. } => op.drops(),
            _ => None,
        });
    ops.map(|dropped| dropped.site).collect()
}

#[test]
fn each_rate_changes_the_losses() {
    let config = dropping();
    let first = trace(&config);
    assert_eq!(trace(&config), first);
    let rates: [fn(&mut Dropout); 3] =
        [|rates| rates.embedding = 0.0, |rates| rates.attention = 0.0, |rates| rates.residual = 0.0];
    for change in rates {
        let other = testing::reshaped(config.clone(), |model| change(&mut model.dropout));
        assert_ne!(trace(&other).losses, first.losses);
    }
}

/// With the same parameters and tokens.
#[test]
fn sample_seeds_change_the_dropped_elements() {
    let config = dropping();
    let loss = |of: &RunConfig| {
        let program = compile(&config, &testing::target()).unwrap();
        let mut device = testing::device(testing::target());
        let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
        engine.start().unwrap();
        let batch = batch(of, 0, config.train.batch_size);
        let loss = engine.step(&batch, &config.numbers(1)).unwrap().loss;
        engine.close().unwrap();
        loss
    };
    let mut other = config.clone();
    other.train.seed += 1;
    assert_eq!(loss(&config), loss(&config));
    assert_ne!(loss(&config), loss(&other));
}

/// An evaluation with gradients keeps the same values with and without dropout.
#[test]
fn evaluation_with_gradients_keeps_the_same_values() {
    let kept = |config: &RunConfig| {
        let mut config = config.clone();
        config.strategy.evaluation_pass = EvaluationPass::Grad;
        let program = compile(&config, &testing::target()).unwrap();
        let predicted = predict(&program, &testing::target(), RunSchedule::of(&config));
        predicted.device.phase_peak(Phase::Evaluation).live
    };
    let plain = testing::reshaped(dropping(), |model| model.dropout = Dropout::default());
    assert_eq!(kept(&dropping()), kept(&plain));
}

/// Loss and memory of an evaluation are those of the model without dropout.
#[test]
fn evaluation_and_inference_drop_nothing() {
    let evaluated = |config: &RunConfig| {
        let program = compile(config, &testing::target()).unwrap();
        let mut device = testing::device(testing::target());
        let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
        engine.start().unwrap();
        let loss = engine.evaluate(&batch(config, 3, config.train.batch_size)).unwrap();
        engine.close().unwrap();
        let predicted = predict(&program, &testing::target(), RunSchedule::of(config));
        (loss, predicted.device.phase_peak(Phase::Evaluation).live.total(), sites(&program, true))
    };
    let configs = [1, 3].map(|accumulate| {
        let mut config = dropping();
        config.strategy.accumulate = accumulate;
        config
    });
    for config in configs {
        let plain = testing::reshaped(config.clone(), |model| model.dropout = Dropout::default());
        let (loss, peak, sites) = evaluated(&plain);
        assert_eq!(evaluated(&config), (loss, peak, sites));
    }
    let mut config = dropping();
    config.measure.what = Task::Inference;
    let program = compile(&config, &testing::target()).unwrap();
    assert_eq!(self::sites(&program, false), [0; 0]);
    assert_eq!(config.empty_batch(2).all().count(), 2, "tokens and targets");
}

/// In forward and backward of each micro-batch: the embedding, attention weights and the residual of each part of a
/// block.
#[test]
fn every_site_is_drawn_in_forward_recomputation_and_backward() {
    let program = compile(&dropping(), &testing::target()).unwrap();
    let forward = [0, 1, 2, 3, 4, 5, 6];
    let backward = [6, 5, 4, 3, 2, 1, 0];
    assert_eq!(sites(&program, false), [forward, backward].concat());
    let mut config = dropping();
    config.strategy.recompute = Recompute::Block;
    let program = compile(&config, &testing::target()).unwrap();
    // A block is recomputed except its last residual, which is the next block's input.
    let backward = [4, 5, 6, 5, 4, 1, 2, 3, 2, 1, 0];
    assert_eq!(sites(&program, false), [&forward[..], &backward].concat());
}

/// Seeds take 8 bytes for each sample, on device and host. No masks are stored; materialized attention stores its
/// weights after dropout.
#[test]
fn dropout_masks_are_not_stored() {
    let live = |config: &RunConfig| {
        let program = compile(config, &testing::target()).unwrap();
        let predicted = predict(&program, &testing::target(), RunSchedule::of(config));
        predicted.device.phase_peak(Phase::Forward).live
    };
    for (attention, squares) in [(spec::Attention::Fused, 0), (spec::Attention::Materialized, 2)] {
        let mut config = dropping();
        config.strategy.attention = attention;
        let plain = testing::reshaped(config.clone(), |model| model.dropout = Dropout::default());
        let (found, plain) = (live(&config), live(&plain));
        // f32[B,H,T,T] of each block; seeds are rounded up to the target's alignment.
        let square = 4 * 4 * 2 * 16 * 16;
        let (role, input) = (device::Role::Activation, device::Role::Input);
        assert_eq!(found[role] - plain[role], squares * square);
        assert_eq!(found[input] - plain[input], testing::target().alignment.0);
    }
}
