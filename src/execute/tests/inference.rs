//! Inference: steps consist of the forward pass only.

use std::collections::HashMap;

use super::strategies::{Activations, BATCH, C, L, T, V, launches, live, program, with, work};
use super::{Trace, batch, trace};
use crate::engine::Engine;
use compile::SectionKind;
use device::Role;
use spec::*;
use testing::choice::Choice;
use testing::compile;

fn inference(change: impl FnOnce(&mut Strategy)) -> RunConfig {
    let mut config = with(change);
    config.measure.what = Task::Inference;
    config
}

/// The losses of two steps on one batch, and of an evaluation of that batch.
fn losses(config: &RunConfig) -> ([f32; 2], f64) {
    let program = compile(config, &testing::target()).unwrap();
    let mut device = testing::device(testing::target());
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    let batch = batch(config, 0, config.train.batch_size);
    let before = engine.digest().unwrap();
    let evaluated = engine.evaluate(&batch).unwrap() / config.train.batch_size as f64;
    let mut step = || engine.step(&batch, &config.numbers(1)).unwrap().loss;
    let losses = [step(), step()];
    if !config.trains() {
        assert_eq!(engine.digest().unwrap(), before, "parameters do not change");
    }
    (losses, evaluated)
}

#[test]
fn inference_has_the_first_loss_of_training() {
    let changes: [fn(&mut Strategy); 5] = [
        |_| {},
        |strategy| (strategy.loss_chunks, strategy.precision) = (7, Precision::Bf16),
        |strategy| (strategy.accumulate, strategy.offload.parameters) = (3, true),
        |strategy| (strategy.attention, strategy.init) = (Attention::Materialized, Init::Lazy),
        |strategy| {
            (strategy.precision, strategy.loss_scale) = (Precision::Fp16, Some(LossScale::Static(128.0)))
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let ([found, again], evaluated) = losses(&inference(change));
        let ([expected, learnt], _) = losses(&with(change));
        assert_eq!(found, expected, "change {number}");
        assert_eq!(again, found, "change {number}");
        assert!(learnt < found, "change {number}");
        assert!((evaluated - f64::from(found)).abs() < 1e-6 * evaluated, "change {number}");
    }
}

/// There are no gradients and states, and no activations are kept.
#[test]
fn inference_keeps_only_parameters() {
    let config = inference(|_| {});
    let program = program(&config);
    let roles = [Role::Gradient, Role::Optimizer, Role::MasterWeight];
    assert!(program.values.iter().all(|value| !roles.contains(&value.role)));
    let sizes = Activations { rounding: 256, micro_batch: BATCH };
    let found = live(&program, SectionKind::First, Role::Activation, launches("cross-entropy"));
    assert_eq!(found, sizes.f32(BATCH * T * V) + sizes.f32(1), "logits and their loss");
    // The residual stream and its norm, and the mlp's hidden values before and after the activation.
    let found = live(&program, SectionKind::First, Role::Activation, launches("linear-gelu"));
    assert_eq!(found, 2 * (sizes.stream() + sizes.f32(BATCH * T * 4 * C)));
}

#[test]
fn inference_has_the_flops_of_the_forward_pass() {
    let (counts, effects) = work(&inference(|_| {}));
    let rows = BATCH * T;
    let block = 2 * rows * 12 * C * C + 4 * rows * T * C;
    assert_eq!(counts.flops, 2 * (L * block + 2 * rows * C * V), "in two steps");
    assert_eq!((counts.trained_parameters, counts.micro_batches), (0, 2));
    assert_eq!(effects, "forward only");
}

/// Such keys are reported to have no effect.
#[test]
fn training_keys_do_not_change_the_inference_program() {
    let plain = program(&inference(|_| {}));
    let changes: [fn(&mut Strategy); 5] = [
        |strategy| strategy.recompute = Recompute::Block,
        |strategy| strategy.gradients = Gradients::Zero,
        |strategy| strategy.optimizer_state = OptimizerState::EightBit,
        |strategy| strategy.leak = Some(Leak::Graph),
        |strategy| strategy.freeze = vec!["embedding".to_owned()],
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert_eq!(program(&inference(change)), plain, "change {number}");
    }
}

/// In all pairwise combinations: keys that are bitwise equal in training are so in inference.
#[test]
fn bitwise_equal_keys_do_not_change_inference() {
    let inference = |choice: &Choice| {
        let mut config = testing::small_with(choice);
        // Inference has no backward and so no recompute plan to search.
        if matches!(config.strategy.recompute, Recompute::Budget(_)) {
            config.strategy.recompute = Recompute::Block;
        }
        config.measure.what = Task::Inference;
        config
    };
    let mut references: HashMap<Choice, Trace> = HashMap::new();
    for choice in testing::pairwise() {
        let found = trace(&inference(&choice));
        let of = |reference: &Choice| trace(&inference(reference));
        let expected = references.entry(choice.reference()).or_insert_with_key(of);
        assert_eq!(&found, expected, "{:?}", choice.settings());
    }
}
