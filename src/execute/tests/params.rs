//! Parameters in 16 bits: losses, bytes, counts. Master weights and stochastic rounding preserve small updates.

use super::batch;
use super::strategies::{launches, live_in, work};
use crate::engine::Engine;
use crate::metrics::Counts;
use compile::{Parameter, SectionKind};
use device::{Phase, Pool, Role};
use memory::{Failure, RunSchedule, predict};
use ops::Member;
use spec::*;
use testing::compile;

const HALVES: [StorageDtype; 2] = [StorageDtype::Bf16, StorageDtype::Fp16];

/// Tensors of the model: of the embedding, the last norm, and two blocks.
const TENSORS: u64 = 2 + 2 + 2 * 12;
/// Norms, each with two vectors, computed in f32.
const NORMS: u64 = 2 * 2 + 1;

/// Parameters in a dtype, with the dtypes of gradients, residual stream and precision that follow from it by default.
fn stored(params: StorageDtype, master_weights: bool) -> RunConfig {
    let mut config = testing::small();
    let strategy = &mut config.strategy;
    (strategy.params, strategy.gradient_dtype, strategy.master_weights) = (params, params, master_weights);
    strategy.residual = if master_weights { StorageDtype::Fp32 } else { params };
    (strategy.precision, strategy.loss_scale) = match params {
        StorageDtype::Fp32 => (Precision::Fp32, None),
        StorageDtype::Bf16 => (Precision::Bf16, None),
        StorageDtype::Fp16 => (
            Precision::Fp16,
            Some(LossScale::Dynamic(DynamicLossScale { initial: 1024.0, ..Default::default() })),
        ),
    };
    config
}

fn with(mut config: RunConfig, change: impl FnOnce(&mut Strategy)) -> RunConfig {
    change(&mut config.strategy);
    config
}

/// Configurations for the tests of losses, each with a name for messages.
fn choices() -> Vec<(String, RunConfig)> {
    let mut choices = Vec::new();
    for (params, master) in HALVES.into_iter().flat_map(|params| [true, false].map(|master| (params, master)))
    {
        let name = format!("{params:?}, master_weights = {master}");
        let config = stored(params, master);
        choices.push((
            format!("{name}, all else in fp32"),
            with(config.clone(), |strategy| {
                (strategy.residual, strategy.gradient_dtype) = (StorageDtype::Fp32, StorageDtype::Fp32);
            }),
        ));
        choices.push((
            format!("{name}, the rest in 16 bits"),
            with(config.clone(), |strategy| {
                strategy.residual = params;
                strategy.optimizer_state = OptimizerState::Bf16;
            }),
        ));
        choices.push((
            format!("{name}, computed with in fp32"),
            with(config.clone(), |strategy| {
                (strategy.residual, strategy.gradient_dtype) = (StorageDtype::Fp32, StorageDtype::Fp32);
                (strategy.precision, strategy.loss_scale) = (Precision::Fp32, None);
            }),
        ));
        choices.push((name, config));
    }
    choices
}

fn losses(config: &RunConfig, steps: usize) -> Vec<f32> {
    let program = compile(config, &testing::target()).unwrap();
    let mut device = testing::device(testing::target());
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    let losses = (0..steps).map(|step| {
        let batch = batch(config, step % 3, config.train.batch_size);
        engine.step(&batch, &config.numbers(step + 1)).unwrap().loss
    });
    losses.collect()
}

#[test]
fn loss_is_within_three_percent_of_fp32_parameters() {
    let full = losses(&testing::small(), 20);
    assert!(full[19] < full[0] - 1.0, "the loss falls: {full:?}");
    let mut seen = vec![full.clone()];
    for (name, config) in choices() {
        let found = losses(&config, 20);
        for (step, (a, b)) in full.iter().zip(&found).enumerate() {
            assert!((a - b).abs() <= 0.03 * a, "{name}, step {}: {a} and {b}", step + 1);
        }
        assert!(!seen.contains(&found), "{name} makes a difference");
        seen.push(found);
    }
}

/// Parameters rounded from master weights once per update equal those cast at every use. Only norms, biases on the
/// residual stream and embeddings differ: without 16-bit parameters they are not rounded.
#[test]
fn master_weights_give_the_parameters_that_casts_give() {
    let cast = with(testing::small(), |strategy| strategy.precision = Precision::Bf16);
    let kept =
        with(stored(StorageDtype::Bf16, true), |strategy| strategy.gradient_dtype = StorageDtype::Fp32);
    let (cast, kept) = (losses(&cast, 4), losses(&kept, 4));
    for (step, (a, b)) in cast.iter().zip(&kept).enumerate() {
        assert!((a - b).abs() <= 3e-3 * a, "step {}: {a} and {b}", step + 1);
    }
}

/// Updates smaller than half a ULP, of norm weights, which are initially 1.
#[test]
fn small_updates_need_master_weights_or_stochastic_rounding() {
    let has_changed = |config: RunConfig| {
        let mut config = testing::with_optimizer(&config, &["optimizer.sgd = { lr = 1e-2 }"]);
        config.train.clip_norm = None;
        let program = compile(&config, &testing::target()).unwrap();
        let mut device = testing::device(testing::target());
        let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
        engine.start().unwrap();
        for step in 0..20 {
            let batch = batch(&config, step % 3, config.train.batch_size);
            engine.step(&batch, &config.numbers(step + 1)).unwrap();
        }
        let named = |name: &str| {
            let named = |parameter: &&Parameter| program.full_name(parameter.value) == name;
            program.parameters.iter().find(named).expect("the model has this parameter").clone()
        };
        // The master weight, if there is one, is trained.
        let Parameter { value, bucket, .. } = named("head.norm.weight");
        let master = program.buckets[bucket]
            .states
            .iter()
            .find(|state| program.value(state.value).role == Role::MasterWeight);
        let mut bytes = Vec::new();
        let trained = master.map_or(value, |master| master.value);
        engine
            .read(trained, |piece| -> Result<(), Failure> {
                bytes.extend_from_slice(piece);
                Ok(())
            })
            .unwrap();
        let one =
            if master.is_some() { 1f32.to_ne_bytes().to_vec() } else { 0x3F80u16.to_ne_bytes().to_vec() };
        bytes[..32 * one.len()] != one.repeat(32)
    };
    let of = |change: fn(&mut Strategy)| has_changed(with(stored(StorageDtype::Bf16, false), change));
    assert!(!of(|_| {}), "the update is not rounded away");
    assert!(of(|strategy| strategy.rounding = Rounding::Stochastic));
    assert!(has_changed(stored(StorageDtype::Bf16, true)));
}

/// By role, in the forward pass, when states and gradients are live.
#[test]
fn parameters_take_the_bytes_of_their_dtype() {
    for params in HALVES {
        for master in [true, false] {
            for gradients in [StorageDtype::Fp32, params] {
                let config = with(stored(params, master), |strategy| {
                    (strategy.gradient_dtype, strategy.gradients) = (gradients, Gradients::Zero);
                });
                let program = compile(&config, &testing::target()).unwrap();
                let usage = predict(&program, &testing::target(), RunSchedule::of(&config)).device;
                let live = usage.phase_peak(Phase::Forward).live;
                let rounded = |bytes: u64| bytes.next_multiple_of(256);
                // Members begin at multiples of 256 bytes in the narrowest dtype that they are stored in.
                let all = |bytes: u64| -> u64 {
                    let ends = program.buckets.iter().map(|bucket| {
                        bucket.members.iter().fold(0, |end: u64, member| {
                            end.next_multiple_of(128) + Member::elements(member) as u64
                        })
                    });
                    ends.map(|end| rounded(bytes * end)).sum()
                };
                let name = format!("{params:?}, {master}, {gradients:?}");
                assert_eq!(live[Role::Parameter], all(2), "{name}");
                assert_eq!(live[Role::MasterWeight], if master { all(4) } else { 0 }, "{name}");
                let of_gradients = if gradients == StorageDtype::Fp32 { 4 } else { 2 };
                assert_eq!(live[Role::Gradient], all(of_gradients), "{name}");
                assert_eq!(
                    live[Role::Optimizer] - if params == StorageDtype::Fp16 { 512 } else { 0 },
                    2 * all(4),
                    "{name}"
                );
            }
        }
    }
}

/// With a residual stream in 16 bits, the inputs of all norms have half the bytes.
#[test]
fn residual_stream_takes_the_bytes_of_its_dtype() {
    let config = stored(StorageDtype::Bf16, false);
    let [full, half] = [StorageDtype::Fp32, StorageDtype::Bf16].map(|residual| {
        let config = with(config.clone(), |strategy| strategy.residual = residual);
        let program = compile(&config, &testing::target()).unwrap();
        let loss = launches("cross-entropy-with-gradient");
        live_in(&program, Pool::Device, SectionKind::First, Role::Activation, loss)
    });
    let rows = (testing::small().train.batch_size * 16 * 32) as u64;
    assert_eq!(full - half, 2 * NORMS * rows);
}

#[test]
fn parameters_are_cast_once_for_each_update() {
    let counted = |config: &RunConfig| {
        let (Counts { casts, parameter_bytes_in_16_bits, random_roundings, .. }, effects) = work(config);
        (casts, parameter_bytes_in_16_bits / 2, random_roundings / 2, effects)
    };
    let program = compile(&stored(StorageDtype::Bf16, true), &testing::target()).unwrap();
    let bytes: u64 = program.buckets.iter().map(|bucket| program.ty(bucket.parameters).bytes()).sum();
    let numbers = program.parameter_count(|_| true);
    // Casts of norms, which are computed in f32, in two steps.
    let of_norms = 2 * 2 * NORMS;
    let (casts, stored_bytes, random, effects) = counted(&stored(StorageDtype::Bf16, false));
    assert_eq!((casts, stored_bytes, random), (of_norms, bytes, 0));
    assert!(effects.contains(" of parameters in 16 bits"), "{effects}");
    let rounding =
        with(stored(StorageDtype::Bf16, false), |strategy| strategy.rounding = Rounding::Stochastic);
    assert_eq!(counted(&rounding).2, numbers);
    // Biases added to the residual stream in f32, and gradients of the stream for two layers of each block.
    let of_stream = 2 * 2 * 2 + 2 * 2 * 2;
    let (casts, ..) = counted(&stored(StorageDtype::Bf16, true));
    // And the parameters from master weights, one cast per bucket.
    assert_eq!(casts, of_norms + of_stream + 2 * TENSORS + program.buckets.len() as u64);
}
