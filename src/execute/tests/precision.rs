//! Mixed precision: losses, casts, memory, and skipped steps after an overflow.

use super::batch;
use crate::engine::Engine;
use crate::metrics::{EffectsContext, effects};
use device::{Pool, Role};
use memory::{RunSchedule, live_at, predict};
use spec::*;
use testing::compile;

const HALVES: [Precision; 2] = [Precision::Bf16, Precision::Fp16];

fn in_precision(precision: Precision) -> RunConfig {
    let mut config = testing::small();
    config.strategy.precision = precision;
    config.strategy.loss_scale =
        (precision == Precision::Fp16).then(|| LossScale::Dynamic(DynamicLossScale::default()));
    config
}

/// The losses of twenty steps.
fn losses(config: &RunConfig) -> Vec<f32> {
    let program = compile(config, &testing::target()).unwrap();
    let mut device = testing::device(testing::target());
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    let losses = (0..20).map(|step| {
        let batch = batch(config, step % 3, config.train.batch_size);
        engine.step(&batch, &config.numbers(step + 1)).unwrap().loss
    });
    losses.collect()
}

#[test]
fn loss_is_within_one_percent_of_fp32() {
    let full = losses(&in_precision(Precision::Fp32));
    assert!(full[19] < full[0] - 1.0, "the loss falls: {full:?}");
    for precision in HALVES {
        let half = losses(&in_precision(precision));
        for (step, (a, b)) in full.iter().zip(&half).enumerate() {
            assert!((a - b).abs() <= 0.01 * a, "{precision:?}, step {}: {a} and {b}", step + 1);
        }
        assert_ne!(full, half, "{precision:?} makes no difference");
    }
}

/// A scale so large that the first gradients overflow.
fn overflowing() -> RunConfig {
    let mut config = in_precision(Precision::Fp16);
    let scale =
        DynamicLossScale { initial: 2f64.powi(30), backoff: 2f64.powi(-14), interval: 2, growth: 2.0 };
    config.strategy.loss_scale = Some(LossScale::Dynamic(scale));
    config
}

/// With parameters and states on device or host, with and without 16-bit parameters. A skipped update must still write
/// the parameters that are computed from master weights: unwritten memory is poisoned.
#[test]
fn overflowing_step_is_skipped() {
    for params in [StorageDtype::Fp32, StorageDtype::Fp16] {
        for offload in [(false, false), (true, false), (false, true), (true, true)] {
            let mut config = overflowing();
            config.strategy.params = params;
            config.strategy.gradient_dtype = params;
            (config.strategy.offload.parameters, config.strategy.offload.optimizer) = offload;
            assert_step_is_skipped(&config);
        }
    }
}

fn assert_step_is_skipped(config: &RunConfig) {
    let program = compile(config, &testing::target()).unwrap();
    let mut device = testing::device(testing::target());
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    let before = engine.counts();
    assert_eq!(engine.loss_scale().unwrap(), Some(2f32.powi(30)));
    let untouched = engine.digest().unwrap();
    let batch = batch(config, 0, config.train.batch_size);

    let first = engine.step(&batch, &config.numbers(1)).unwrap();
    assert!(first.loss.is_finite() && !first.gradient_norm.unwrap().is_finite(), "{first:?}");
    assert_eq!(engine.digest().unwrap(), untouched, "parameters and moments do not change");
    assert_eq!((first.loss_scale, engine.counts().skipped_steps), (Some(65536.0), 1));

    let second = engine.step(&batch, &config.numbers(1)).unwrap();
    assert_eq!(second.loss, first.loss, "the skipped step changed nothing");
    assert!(second.gradient_norm.unwrap().is_finite());
    assert_ne!(engine.digest().unwrap(), untouched);
    assert_eq!(second.loss_scale, Some(65536.0));

    let third = engine.step(&batch, &config.numbers(2)).unwrap();
    assert!(third.loss < second.loss);
    assert_eq!(third.loss_scale, Some(131_072.0), "two good steps in a row");
    assert_eq!(engine.loss_scale().unwrap(), third.loss_scale, "the reported scale is the device's");
    let effects = effects(&before, &engine.counts(), EffectsContext::new(config, &program), None);
    assert!(effects.contains("1 step skipped"), "{effects}");
}

/// The scale is a power of two: results are bitwise equal as long as nothing overflows or underflows.
#[test]
fn clipping_uses_unscaled_gradients() {
    let norm = |scale: Option<LossScale>, clip: Option<f64>| {
        let mut config = in_precision(Precision::Fp16);
        config.strategy.loss_scale = scale;
        config.train.clip_norm = clip;
        let program = compile(&config, &testing::target()).unwrap();
        let mut device = testing::device(testing::target());
        let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
        engine.start().unwrap();
        let report = engine.step(&batch(&config, 0, config.train.batch_size), &config.numbers(1)).unwrap();
        report.gradient_norm.map(f64::from)
    };
    let scaled = norm(Some(LossScale::Static(1024.0)), Some(0.5)).unwrap();
    let unscaled = norm(None, Some(0.5)).unwrap();
    assert!((scaled / unscaled - 1.0).abs() < 1e-2, "{scaled} and {unscaled}");
    assert_eq!(
        norm(Some(LossScale::Static(1024.0)), None),
        Some(scaled),
        "a loss scale needs the norm in any case"
    );
    assert_eq!(norm(None, None), None);
}

/// Once per weight and section: two weights and two biases of each block's linear layers with output in half precision,
/// two weights of those that add to the residual stream, and the table.
#[test]
fn each_weight_is_cast_once_in_each_section() {
    for precision in HALVES {
        for (accumulate, recompute) in [(1, Recompute::None), (3, Recompute::None), (1, Recompute::Block)] {
            let mut config = in_precision(precision);
            config.train.batch_size = 5;
            config.strategy.accumulate = accumulate;
            config.strategy.recompute = recompute;
            let program = compile(&config, &testing::target()).unwrap();
            let mut device = testing::device(testing::target());
            let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
            engine.start().unwrap();
            engine.step(&batch(&config, 0, config.train.batch_size), &config.numbers(1)).unwrap();
            // The gradient of the residual stream is cast for each of the two linear layers that add to it.
            let (weights, gradients) = (2 * 6 + 1, 2 * 2);
            let casts = engine.counts().casts;
            assert_eq!(casts, (weights + gradients) * accumulate as u64, "{:?}", config.strategy);
        }
    }
}

/// At the logits, activations are kept in half precision; the residual stream and statistics of norms are in f32.
#[test]
fn activations_are_half_as_large() {
    let [t, c, h, v, batch] = [16, 32, 2, 256, 4u64];
    let rows = batch * t;
    let rounded = |bytes: u64| bytes.next_multiple_of(256);
    for (precision, number) in [(Precision::Fp32, 4), (Precision::Bf16, 2), (Precision::Fp16, 2)] {
        let config = in_precision(precision);
        let program = compile(&config, &testing::target()).unwrap();
        let norm = rounded(rows * c * number) + 2 * rounded(rows * 4);
        let attention = rounded(rows * 3 * c * number)
            + rounded(rows * c * number)
            + rounded(batch * h * t * 4)
            + rounded(rows * c * 4);
        let mlp = 2 * rounded(rows * 4 * c * number) + rounded(rows * c * 4);
        let stream = rounded(rows * c * 4);
        let expected = 2 * (2 * norm + attention + mlp) + stream + norm + rounded(rows * v * number);
        let peak = predict(&program, &testing::target(), RunSchedule::of(&config));
        let position = peak.device.phase_peak(device::Phase::Forward).position;
        let live = live_at(&program, &testing::target(), Pool::Device, position);
        let of_role =
            |role| -> u64 { live.iter().filter(|value| value.role == role).map(|value| value.bytes).sum() };
        assert_eq!(of_role(Role::Activation), expected, "{precision:?}");
    }
}

/// At the logits, casts of matmul weights are live, since backward reads them; those of biases have been freed.
#[test]
fn casts_have_their_own_role() {
    let [c, v] = [32u64, 256];
    let halves = |numbers: u64| (numbers * 2).next_multiple_of(256);
    let (attention, mlp) = (halves(c * 3 * c) + halves(c * c), 2 * halves(c * 4 * c));
    let casts = 2 * (attention + mlp) + halves(v * c);
    let by_role = |precision| {
        let config = in_precision(precision);
        let program = compile(&config, &testing::target()).unwrap();
        let usage = predict(&program, &testing::target(), RunSchedule::of(&config)).device;
        let live = usage.phase_peak(device::Phase::Forward).live;
        [live[Role::Parameter], live[Role::Cast]]
    };
    let [parameters, _] = by_role(Precision::Fp32);
    for (precision, casts) in [(Precision::Fp32, 0), (Precision::Bf16, casts), (Precision::Fp16, casts)] {
        assert_eq!(by_role(precision), [parameters, casts], "{precision:?}");
    }
}
