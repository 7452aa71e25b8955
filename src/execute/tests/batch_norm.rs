//! Batch norm and its buffers: running statistics.

use super::batch;
use crate::engine::Engine;
use device::Role;
use memory::{RunSchedule, predict};
use spec::RunConfig;
use testing::compile;
use testing::keys::{KEYS, position};

/// Batch norm of 8, 8, 12 and 12 channels.
fn config() -> RunConfig {
    let model = position(KEYS, "model");
    let of_lists = KEYS[model].values.iter().position(|text| text.contains("batch_norm"));
    testing::small_with(&testing::choice(&[(model, of_lists.expect("a model has batch norm"))]))
}

/// A mean and a variance of each channel, in f32. Each vector begins at a multiple of 256 bytes, as parameters do.
#[test]
fn running_statistics_have_a_role_of_their_own() {
    let (config, target) = (config(), testing::target());
    let program = compile(&config, &target).unwrap();
    let predicted = predict(&program, &target, RunSchedule::of(&config));
    assert_eq!(predicted.device.steady_peak().live[Role::Buffer], 4 * 2 * 256);
    let parameters = 2 * 8 * 9 + 2 * (8 + 8) + 8 * 8 * 9 + 8 * 12 * 9 + 12 + 2 * (12 + 12) + 12 * 10 + 10;
    assert_eq!(predicted.parameters, parameters);
    assert_eq!(predicted.trainable_parameters, parameters);
}

/// An evaluation normalises by the running statistics and leaves them as they are; a step changes them.
#[test]
fn evaluation_reads_running_statistics() {
    // Steps change no parameter, but the statistics.
    let config = testing::with_optimizer(&config(), &["optimizer.sgd = { lr = 1e-30 }"]);
    let program = compile(&config, &testing::target()).unwrap();
    let mut device = testing::device(testing::target());
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    let batch = batch(&config, 0, config.train.batch_size);
    // Means of 0 and variances of 1, which are not the batch's.
    let before = engine.evaluate(&batch).unwrap();
    let first = engine.step(&batch, &config.numbers(1)).unwrap().loss;
    assert!(
        (before - f64::from(first)).abs() > 1e-3,
        "{before} is not the loss by the batch's statistics, {first}"
    );
    let digest = engine.digest().unwrap();
    let once = engine.evaluate(&batch).unwrap();
    assert_eq!(engine.evaluate(&batch).unwrap(), once);
    assert_eq!(engine.digest().unwrap(), digest);

    engine.step(&batch, &config.numbers(2)).unwrap();
    assert_ne!(engine.evaluate(&batch).unwrap(), once);
}
