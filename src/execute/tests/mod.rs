//! Tests of the engine: strategies give equal results, predictions equal the ledger, queues are synchronised.

mod attention;
mod batch_norm;
mod batch_parts;
mod caching;
mod dropout;
mod evaluation;
mod graphs;
mod groups;
mod held_samples;
mod in_backward;
mod inference;
mod initialisation;
mod keep_and_leak;
mod lengths;
mod loader;
mod lora;
mod models;
mod offload;
mod params;
mod placement;
mod precision;
mod prime;
mod profile;
mod ranks;
mod recompute;
mod run_schedule;
mod scopes;
mod states;
mod strategies;
mod threads;
mod vectors;

use std::collections::HashMap;

use crate::engine::Engine;
use crate::metrics::Counts;
use base::units::Bytes;
use compile::{Action, Program, SectionKind};
use data::{Batch, DataSet as _, DigestCache, Order, Part, RandomSet, TrainingStep, seeds};
use device::{Delay, Device, Limits, Pool, Target};
use memory::{Evaluations, Failure, OutOfMemory, RunSchedule, Shortfall, StepWork, predict};
use spec::*;
use testing::choice::Choice;
use testing::compile;
use testing::keys::{OPTIMIZERS, Same, Updates};
use testing::models::set_dropout;

const STEPS: usize = 4;

/// The results of a run: loss and digest after each step, and the loss of the evaluation.
#[derive(Debug, PartialEq)]
struct Trace {
    losses: Vec<f32>,
    digests: Vec<String>,
    evaluation: f64,
}

/// The steps with batches in the token row, and the evaluation.
const BATCHES: [usize; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 99];

/// Token `i` of the batch of a step, or of the tokens behind it.
fn token(step: usize, i: usize) -> i32 {
    ((i * 7 + step * 13 + i * i % 11) % 250) as i32
}

/// A part of the data that is held in memory: that of all these batches.
fn held(config: &RunConfig, part: &Part) -> Vec<u8> {
    let held = match config.sample().positions() {
        Some(tokens) => row(config, config.train.batch_size * tokens),
        None => BATCHES.iter().flat_map(|&step| samples(config, step, part)).collect(),
    };
    let all = config.data_len.expect("tests' data has a size") * part.ty.bytes() as usize;
    assert!(held.len() <= all, "tests' data has {} bytes", held.len());
    held
}

/// A part of the samples of a step, in the order of their numbers.
fn samples(config: &RunConfig, step: usize, part: &Part) -> Vec<u8> {
    let count = if step == 99 { evaluation_samples(config) } else { config.train.batch_size };
    let set = RandomSet { samples: Some(count as u64), seed: step as u64 };
    let source = set.open(&config.sample(), &mut DigestCache::default()).unwrap();
    let mut memory = vec![0; count * part.ty.bytes() as usize];
    source.samples().unwrap().read_part(0, part, &mut memory).unwrap();
    memory
}

/// The token row: all tokens of these batches in the dtype of `loader.dtype`.
fn row(config: &RunConfig, count: usize) -> Vec<u8> {
    let tokens = BATCHES.iter().flat_map(|&step| (0..=count).map(move |i| token(step, i)));
    let size = config.strategy.loader.dtype.dtype().bytes() as usize;
    // Little-endian, as on x86-64 and aarch64.
    tokens.flat_map(|token| token.to_le_bytes()[..size].to_vec()).collect()
}

/// Writes the data to the device, if the run holds it there.
fn hold(engine: &mut Engine, config: &RunConfig) -> Result<(), Failure> {
    match config.strategy.loader.source {
        DataResidence::Device => {
            let mut parts = config.held_parts().into_iter();
            Ok(parts.try_for_each(|part| engine.put_held(&part, 0, &held(config, &part)))?)
        }
        DataResidence::Stream | DataResidence::Ram => Ok(()),
    }
}

fn batch(config: &RunConfig, step: usize, samples: usize) -> Batch {
    let sample = config.sample();
    if sample.positions().is_none() {
        let mut batch = testing::random_batch(config, step, samples);
        if config.strategy.loader.source == DataResidence::Device {
            let first =
                BATCHES.iter().position(|other| *other == step).expect("the data has the step's samples");
            let places = batch.parts_mut().iter_mut().filter(|filled| filled.part.name == "place");
            for index in places.flat_map(|place| place.bytes.as_chunks_mut::<8>().0) {
                *index =
                    (u64::from_ne_bytes(*index) + (first * config.train.batch_size) as u64).to_ne_bytes();
            }
        }
        return batch;
    }
    let count = samples * sample.positions().expect("the model works on tokens");
    let token = |i: usize| token(step, i);
    let tokens = (0..count).map(|i| token(i).to_ne_bytes());
    let context = count / samples;
    // Document lengths, if documents are separate; then some padding.
    let len = |i: usize| 3 + (i / context + step) % 4;
    let is_apart = config.data.text().is_some_and(|text| text.documents != DocumentArrangement::Joined);
    let target = |i: usize| {
        let place = i % context;
        let is_last = (place + 1).is_multiple_of(len(i)) || place + 2 > context.max(3);
        if is_apart && is_last { -1 } else { token(i + 1) }
    };
    let targets = (0..count).map(|i| target(i).to_ne_bytes());
    let mut batch = config.empty_batch(samples);
    batch = if batch.part("place").is_some() {
        let row = BATCHES.iter().position(|other| *other == step).expect("the step has a batch in the row");
        let stride = config.train.batch_size * context + 1;
        let place = |sample: usize| ((row * stride + sample * context) as u64).to_ne_bytes();
        batch.with("place", (0..samples).flat_map(|sample| place(sample).as_chunks::<4>().0.to_vec()))
    } else {
        batch.with("tokens", tokens).with("targets", targets)
    };
    let of_step = TrainingStep {
        seed: config.train.seed,
        number: step as u64,
        samples: samples as u64,
        order: Order::Drawn,
    };
    seeds::fill(&of_step, 0..samples as u64, &mut batch);
    if batch.part("weights").is_some() {
        let weight = |sample: usize| if is_apart { 1.0 + sample as f32 / 4.0 } else { 1.0 };
        batch = batch.with("weights", (0..samples).map(|sample| weight(sample).to_ne_bytes()));
    }
    if batch.part("starts").is_some() {
        let starts = (0..count).map(|i| i % context / len(i) * len(i));
        batch = batch.with("starts", starts.map(|start| (start as i32).to_ne_bytes()));
    }
    batch
}

/// Samples of an evaluation batch.
fn evaluation_samples(config: &RunConfig) -> usize {
    config.evaluation_batch().unwrap_or(config.train.batch_size)
}

/// Trains for some steps with freed memory poisoned.
fn train(config: &RunConfig, program: &Program, device: &mut dyn Device) -> Result<Trace, Failure> {
    train_on(config, program, device, &|step, samples| batch(config, step, samples))
}

/// Trains on batches, made for a step and a number of samples.
fn train_on(
    config: &RunConfig,
    program: &Program,
    device: &mut dyn Device,
    batch: &dyn Fn(usize, usize) -> Batch,
) -> Result<Trace, Failure> {
    let target = device.target().clone();
    let mut engine = Engine::new(program, device, true)?;
    engine.start()?;
    hold(&mut engine, config)?;
    let mut trace = Trace { losses: Vec::new(), digests: Vec::new(), evaluation: 0.0 };
    for step in 0..STEPS {
        let report = engine.step(&batch(step, config.train.batch_size), &config.numbers(step + 1))?;
        trace.losses.push(report.loss);
        trace.digests.push(engine.digest()?);
        trace.evaluation = engine.evaluate(&batch(99, evaluation_samples(config)))?;
    }
    let run_schedule = RunSchedule { steps: STEPS, evaluations: Some(Evaluations { every: 1, batches: 1 }) };
    let predicted = predict(program, &target, run_schedule);
    assert_eq!(engine.cache_stats(), predicted.cache_stats);
    let Counts { flops, bytes_to_host, bytes_to_device, .. } = engine.counts();
    let StepWork { to_host_bytes, to_device_bytes, .. } = predicted.work;
    assert_eq!(flops / STEPS as u64, predicted.hardware_flops);
    let tolerance = if program.lengths.is_some() { 1000 } else { 0 };
    for (counted, of_step) in [(bytes_to_host, to_host_bytes), (bytes_to_device, to_device_bytes)] {
        // Means over steps of different lengths are rounded copy by copy.
        assert!((counted / STEPS as u64).abs_diff(of_step) <= tolerance, "{counted} and {of_step} a step");
    }
    assert_eq!(engine.ledger().usage(Pool::Device), &predicted.device);
    assert_eq!(engine.ledger().usage_at(Pool::Host), &predicted.host);
    assert_eq!(engine.ledger().usage(Pool::Pinned), &predicted.pinned);
    engine.close()?;
    Ok(trace)
}

fn trace(config: &RunConfig) -> Trace {
    trace_on(config, testing::target())
}

fn trace_on(config: &RunConfig, target: Target) -> Trace {
    if config.ranks() > 1 {
        return ranks::trace(config, &target);
    }
    let program = compile(config, &target).unwrap();
    let mut device = testing::device(target);
    train(config, &program, device.as_mut()).unwrap()
}

#[test]
fn training_learns() {
    let config = testing::small();
    let program = compile(&config, &testing::target()).unwrap();
    let mut device = testing::device(testing::target());
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    let batch = batch(&config, 0, config.train.batch_size);
    let mut step = |step| engine.step(&batch, &config.numbers(step)).unwrap().loss;
    let losses: Vec<f32> = (1..9).map(&mut step).collect();
    assert!((losses[0] - 256f32.ln()).abs() < 0.2, "the first loss is that of chance: {losses:?}");
    assert!(losses[7] < losses[0] - 1.0, "repeating one batch lowers its loss: {losses:?}");
}

/// Few on a GPU, since an emulated one is slow.
fn random_combinations() -> usize {
    if testing::on_cuda() { 8 } else { 300 }
}

#[test]
fn pairwise_combinations_are_as_equal_as_declared() {
    let choices = testing::pairwise().into_iter();
    assert_equal_as_declared(choices.map(|choice| (choice, OPTIMIZERS[0], 0.0)));
}

#[test]
fn random_combinations_are_as_equal_as_declared() {
    let choices = testing::sample(testing::tenth(random_combinations())).into_iter();
    // Every third combination has dropout, and optimizers alternate: all pairs occur.
    let others = OPTIMIZERS.iter().copied().cycle().zip([0.0, 0.0, 0.2].into_iter().cycle());
    assert_equal_as_declared(
        choices.zip(others).map(|(choice, (optimizer, dropout))| (choice, optimizer, dropout)),
    );
}

/// Asserts that results are bitwise equal without the keys that declare so, and within the declared tolerance without
/// the others. `train` asserts that memory is predicted byte for byte.
fn assert_equal_as_declared(choices: impl Iterator<Item = (Choice, Updates, f64)>) {
    let mut references: HashMap<(Choice, Updates, bool), (f64, Trace)> = HashMap::new();
    for (number, (choice, optimizer, dropout)) in choices.enumerate() {
        // The number of threads does not change results. Two threads are slow with small operations, hence only some
        // runs.
        let threads = if number % 4 == 0 || testing::full() { 2 } else { 1 };
        let key = (choice.reference(), optimizer, dropout > 0.0);
        let expected = references
            .entry(key)
            .or_insert_with_key(|(reference, ..)| (dropout, trace_of(reference, optimizer, dropout, 2)));
        let settings = choice.settings();
        let found = trace_of(&choice, optimizer, dropout, threads);
        assert_eq!(found, expected.1, "{settings:?}, {optimizer:?}, dropout {dropout}, {threads} threads");
    }
    let mut plains: HashMap<(Choice, Updates, bool), Trace> = HashMap::new();
    let is_comparable = |reference: &Choice| !reference.has_other_statistics() && !reference.skips_steps();
    let comparable = references.iter().filter(|((reference, ..), _)| is_comparable(reference));
    for ((reference, optimizer, drops), (dropout, found)) in comparable {
        let plain = plains
            .entry((reference.plain_of_model(), optimizer, *drops))
            .or_insert_with_key(|(plain, ..)| trace_of(plain, optimizer, *dropout, 2));
        let tolerance = match reference.same() {
            Same::Bitwise | Same::Arithmetic => 0.0,
            Same::Rounding => 1e-5,
            Same::Training(share) => share,
            Same::Start => 0.01,
        };
        let steps = if reference.same() == Same::Start { 1 } else { STEPS };
        for (step, (a, b)) in plain.losses.iter().zip(&found.losses).enumerate().take(steps) {
            let settings = reference.settings();
            let step = step + 1;
            let close = (a - b).abs() <= tolerance * a;
            assert!(close, "{settings:?}, {optimizer:?}, dropout {dropout}, step {step}: {a} and {b}");
        }
    }
}

fn trace_of(choice: &Choice, optimizer: Updates, dropout: f64, threads: usize) -> Trace {
    let mut config = testing::with_optimizer(&testing::small_with(choice), optimizer);
    set_dropout(&mut config.model, dropout);
    trace_on(&config, Target { threads, ..testing::target() })
}

/// Splits: 3 + 3 + 2, 4 + 3, 2 + 2 + 1, 2 + 1, 4 times 2, 7 times 1.
#[test]
fn losses_do_not_depend_on_micro_batches() {
    let plain = (Gradients::Free, Recompute::None, 1);
    let lean = (Gradients::Zero, Recompute::Block, 3);
    let splits = [(8, 3, plain), (7, 2, lean), (5, 3, lean), (3, 2, plain), (8, 5, plain), (7, 7, plain)];
    for (batch_size, accumulate, (gradients, recompute, loss_chunks)) in splits {
        let mut config = testing::small();
        config.train.batch_size = batch_size;
        let whole = trace(&config);
        config.strategy = Strategy { accumulate, gradients, recompute, loss_chunks, ..config.strategy };
        let split = trace(&config);
        let losses = |trace: &Trace| -> Vec<f64> {
            let evaluation = trace.evaluation / batch_size as f64;
            trace.losses.iter().map(|loss| f64::from(*loss)).chain([evaluation]).collect()
        };
        for (found, expected) in losses(&split).iter().zip(losses(&whole)) {
            let difference = (found - expected).abs();
            assert!(difference <= 1e-5 * expected, "{:?}: {found} and {expected}", config.strategy);
        }
    }
}

/// Configurations whose programs have every kind of event, with different memory layouts.
fn with_events() -> Vec<RunConfig> {
    let config = |release, recompute| {
        let mut config = testing::small();
        config.train.batch_size = 5;
        config.strategy.accumulate = 3;
        config.strategy.release = release;
        config.strategy.recompute = recompute;
        config
    };
    vec![
        config(Release::Eager, Recompute::None),
        config(Release::Eager, Recompute::Block),
        config(Release::Step, Recompute::None),
        config(Release::Scope, Recompute::Block),
    ]
}

#[test]
fn delayed_queues_do_not_change_results() {
    for config in with_events() {
        let expected = trace(&config);
        let program = compile(&config, &testing::target()).unwrap();
        for delay in [Delay::Compute, Delay::Copy] {
            let mut device = testing::delayed_device(testing::target(), delay);
            assert_eq!(train(&config, &program, device.as_mut()).unwrap(), expected, "{delay:?}");
        }
    }
}

/// Without any one event, some delay gives wrong results. Which work must precede a batch's transfer depends on the
/// batch's address, so each event is tried in several layouts.
#[test]
fn no_event_is_idle() {
    let programs: Vec<_> = with_events()
        .into_iter()
        .map(|config| (compile(&config, &testing::target()).unwrap(), trace(&config), config))
        .collect();
    use SectionKind::{Evaluation, EvaluationTail, First, Micro, Tail, Update};
    for kind in [First, Micro, Tail, Update, Evaluation, EvaluationTail] {
        for nth in 0..waits(&programs[0].0, kind).len() {
            let noticed = programs.iter().any(|(program, expected, config)| {
                let mut broken = program.clone();
                let wait = waits(program, kind)[nth];
                broken.section_mut(kind).unwrap().code.remove(wait);
                [Delay::Compute, Delay::Copy].into_iter().any(|delay| {
                    // An invalid token id makes the kernel panic: that counts as noticed.
                    let run = std::panic::catch_unwind(|| {
                        let mut device = testing::delayed_device(testing::target(), delay);
                        train(config, &broken, device.as_mut()).unwrap()
                    });
                    run.map_or(true, |trace| trace != *expected)
                })
            });
            assert!(noticed, "{} wait {nth}", kind.name());
        }
    }
}

/// The indices of a section's waits.
fn waits(program: &Program, kind: SectionKind) -> Vec<usize> {
    let code = &program.section(kind).unwrap().code;
    (0..code.len()).filter(|&index| matches!(code[index].action, Action::Wait { .. })).collect()
}

/// Runs a step and an evaluation under a limit. Returns the first failed request, if any.
fn first_failed_request(config: &RunConfig, target: &Target) -> Option<OutOfMemory> {
    let program = compile(config, target).unwrap();
    let mut device = testing::device(target.clone());
    let run = |device: &mut dyn Device| -> Result<(), Failure> {
        let mut engine = Engine::new(&program, device, true)?;
        engine.start()?;
        engine.step(&batch(config, 0, config.train.batch_size), &config.numbers(1))?;
        engine.evaluate(&batch(config, 0, config.train.batch_size))?;
        Ok(())
    };
    match run(device.as_mut()) {
        Ok(()) => None,
        Err(Failure::OutOfMemory(found)) => Some(*found),
        Err(Failure::Device(error)) => panic!("{error}"),
        Err(Failure::Weights(error)) => panic!("{error}"),
    }
}

#[test]
fn out_of_memory_is_predicted() {
    for allocator in [Allocator::Arena, Allocator::Direct] {
        let mut config = testing::small();
        config.strategy.allocator = allocator;
        let predicted = |target: &Target| {
            let program = compile(&config, target).unwrap();
            predict(&program, target, RunSchedule::of(&config))
        };
        let free = predicted(&testing::target());
        let most = free.device.reserved_peak;
        // Limits that fail in every phase, and one that is a byte short.
        for limit in (0..16).map(|sixteenth| most * sixteenth / 16).chain([most - 1]) {
            let target = testing::target().with_memory(Bytes(limit));
            let predicted = predicted(&target);
            assert!(predicted.out_of_memory.is_some(), "{limit} of {most}");
            assert_eq!(predicted.out_of_memory, first_failed_request(&config, &target), "{limit} of {most}");
            assert_eq!(
                predicted.device.reserved_peak, most,
                "the predicted peak does not depend on the limit"
            );
            let short = predicted.short(&target).device;
            let enough = target.with_memory(Bytes(limit + short));
            assert_eq!(first_failed_request(&config, &enough), None, "{limit} of {most}");
        }
    }
}

fn host_limited(bytes: u64) -> Target {
    testing::target().limited_to(Limits { memory: None, host_memory: Some(Bytes(bytes)) })
}

/// One limit covers both host pools, pageable and pinned.
#[test]
fn out_of_host_memory_is_predicted() {
    let mut pools = Vec::new();
    for (allocator, pinned) in [
        (Allocator::Arena, true),
        (Allocator::Arena, false),
        (Allocator::Direct, true),
        (Allocator::Direct, false),
    ] {
        let mut config = testing::small();
        config.strategy.allocator = allocator;
        config.strategy.offload = Offload { optimizer: true, pinned, ..Offload::default() };
        let predicted = |target: &Target| {
            let program = compile(&config, target).unwrap();
            predict(&program, target, RunSchedule::of(&config))
        };
        let free = predicted(&testing::target());
        let most = free.host.reserved_peak;
        for limit in (0..8).map(|eighth| most * eighth / 8).chain([most - 1]) {
            let target = host_limited(limit);
            let predicted = predicted(&target);
            assert_eq!(predicted.out_of_memory, first_failed_request(&config, &target), "{limit} of {most}");
            let short = Shortfall { device: 0, host: most - limit };
            assert_eq!(predicted.short(&target), short);
            let found = predicted.out_of_memory.unwrap();
            pools.push(found.pool);
            assert!(found.requested > 0 && !found.value.is_empty(), "{found:?}");
            let enough = host_limited(limit + short.host);
            assert_eq!(first_failed_request(&config, &enough), None, "{limit} of {most}");
        }
    }
    for pool in [Pool::Host, Pool::Pinned] {
        assert!(pools.contains(&pool), "{pools:?}");
    }
    assert!(!pools.contains(&Pool::Device));
}
