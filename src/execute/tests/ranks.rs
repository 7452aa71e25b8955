//! `parallel`: ranks train as one, with equal parameters, and with the memory that is predicted for each.

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread;
use std::time::Duration;

mod programs;

use self::programs::exchanged;
use super::{Trace, batch};
use crate::engine::{Engine, StepReport};
use crate::metrics::Counts;
use compile::{Action, Bucket, Program, When};
use data::{Batch, Order, TrainingStep, seeds};
use device::{
    Collective, CpuDevice, Delay, Device, Phase, Pool, Rank, RankGroup, Role, SharedMemory, Target, to_f32,
};
use memory::{Evaluations, Failure, RunSchedule, predict};
use ops::{DType, Member, ValueId};
use plan::Compiler;
use spec::*;
use testing::compile;
use testing::keys::Updates;

/// Emulated cards are slow.
fn steps() -> usize {
    if testing::on_cuda() { 4 } else { 20 }
}

/// Of the cases by name, those that emulated cards have time for.
fn has_time(name: &str) -> bool {
    const ON_CARDS: [&str; 6] =
        ["plain", "clipping", "own evaluation batch", "in backward", "offloading all", "master weights"];
    !testing::on_cuda() || ON_CARDS.contains(&name)
}

fn most_ranks() -> usize {
    if testing::on_cuda() { 2 } else { 4 }
}

fn target(rank: usize) -> Target {
    Target { rank, ..testing::target() }
}

/// The trace of ranks, which is the same on all. Each one's memory is as predicted.
pub(super) fn trace(config: &RunConfig, target: &Target) -> Trace {
    let traces = on_ranks(config, |index, group| {
        let target = Target { rank: index, ..target.clone() };
        let program = compile(config, &target).unwrap();
        let target_of_rank = target.of_rank(config.ranks());
        // Where there are too few cards, processors take their place.
        let mut device: Box<dyn Device> =
            match testing::on_cuda() && device::check_ranks(0, config.ranks()).is_err() {
                true => Box::new(CpuDevice::with(target_of_rank, None, Some(group)).unwrap()),
                false => testing::rank_device(target_of_rank, None, group),
            };
        let batch = |step: usize, samples: usize| share(config, (step, samples), config.rank(index));
        super::train_on(config, &program, device.as_mut(), &batch).unwrap()
    });
    assert!(traces.iter().all(|trace| *trace == traces[0]), "{:?}", config.strategy);
    traces.into_iter().next().unwrap()
}

/// What each rank gets.
fn on_ranks<T: Send>(config: &RunConfig, run: impl Fn(usize, RankGroup) -> T + Sync) -> Vec<T> {
    let memory = SharedMemory::new(config.ranks()).unwrap();
    thread::scope(|scope| {
        let start = |index: usize| {
            let (memory, run) = (&memory, &run);
            scope.spawn(move || run(index, memory.join(index, Duration::from_secs(100)).unwrap()))
        };
        let running: Vec<_> = (0..config.ranks()).map(start).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// What a rank has after its steps.
struct Trained {
    reports: Vec<StepReport>,
    /// After each step.
    digests: Vec<String>,
    /// The parameters that it has, by bucket, and the ranges of their tensors in the whole.
    buckets: Vec<Vec<f32>>,
    members: Vec<Vec<Range<usize>>>,
    /// By bucket: the sites of the tensors.
    sites: Vec<Vec<u32>>,
    evaluation: f64,
    counts: Counts,
}

impl Trained {
    fn losses(&self) -> impl Iterator<Item = f32> + '_ {
        self.reports.iter().map(|report| report.loss)
    }
}

/// A rank's samples of a batch of a step.
fn share(config: &RunConfig, (step, samples): (usize, usize), rank: Rank) -> Batch {
    let whole = batch(config, step, samples);
    let own = rank.samples(samples);
    let mut share = config.empty_batch(own.len());
    for (share, whole) in share.parts_mut().iter_mut().zip(whole.parts()) {
        let sample = whole.bytes.len() / samples;
        share.bytes.copy_from_slice(&whole.bytes[own.start * sample..own.end * sample]);
    }
    let step = TrainingStep {
        seed: config.train.seed,
        number: step as u64,
        samples: samples as u64,
        order: Order::Drawn,
    };
    seeds::fill(&step, own.start as u64..own.end as u64, &mut share);
    share
}

fn run_rank(config: &RunConfig, mut device: Box<dyn Device>, target: &Target, steps: usize) -> Trained {
    let rank = config.rank(target.rank);
    let program = compile(config, target).unwrap();
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    super::hold(&mut engine, config).unwrap();
    let mut trained = Trained {
        reports: Vec::new(),
        digests: Vec::new(),
        buckets: Vec::new(),
        members: Vec::new(),
        sites: Vec::new(),
        evaluation: 0.0,
        counts: Counts::default(),
    };
    for step in 0..steps {
        let batch = share(config, (step % 8, config.train.batch_size), rank);
        trained.reports.push(engine.step(&batch, &config.numbers(step + 1)).unwrap());
        trained.digests.push(engine.digest().unwrap());
    }
    let samples = super::evaluation_samples(config);
    trained.evaluation = engine.evaluate(&share(config, (99, samples), rank)).unwrap();
    trained.counts = engine.counts();
    let evaluations = Some(Evaluations { every: steps, batches: 1 });
    let predicted = predict(&program, target, RunSchedule { steps, evaluations });
    assert_eq!(trained.counts.sent_bytes, steps as u64 * predicted.work.sent_bytes());
    assert_eq!(engine.ledger().usage(Pool::Device), &predicted.device, "rank {}", rank.index);
    assert_eq!(engine.ledger().usage_at(Pool::Host), &predicted.host, "rank {}", rank.index);
    let is_number = |bucket: &&Bucket| {
        matches!(program.ty(bucket.parameters).dtype, DType::F32 | DType::BF16 | DType::F16)
    };
    for bucket in program.buckets.iter().filter(is_number) {
        let mut bytes = Vec::new();
        let take = |piece: &[u8]| -> Result<(), Failure> {
            bytes.extend_from_slice(piece);
            Ok(())
        };
        engine.read(bucket.parameters, take).unwrap();
        trained.buckets.push(to_f32(program.ty(bucket.parameters).dtype, &bytes));
        let range = |member: &Member| member.offset..member.offset + member.elements();
        trained.members.push(bucket.members.iter().map(range).collect());
        trained.sites.push(bucket.members.iter().map(|member| member.site).collect());
    }
    engine.close().unwrap();
    trained
}

/// The parameters by tensor; those that ranks divide are put together.
fn parameters(all: &[Trained]) -> Vec<Vec<f32>> {
    let mut tensors = Vec::new();
    for (index, members) in all[0].members.iter().enumerate() {
        let end = members.iter().map(|range| range.end).max().unwrap();
        let whole = match all[0].buckets[index].len() < end {
            true => all.iter().flat_map(|rank| rank.buckets[index].clone()).collect(),
            false => all[0].buckets[index].clone(),
        };
        tensors.extend(members.iter().map(|range| whole[range.clone()].to_vec()));
    }
    tensors
}

/// All ranks of a run, the first first.
fn run_delayed(config: &RunConfig, steps: usize, delay: Option<Delay>) -> Vec<Trained> {
    on_ranks(config, |index, group| {
        let device = testing::rank_device(target(index), delay, group);
        run_rank(config, device, &target(index), steps)
    })
}

fn run(config: &RunConfig) -> Vec<Trained> {
    run_delayed(config, steps(), None)
}

fn with_ranks(config: &RunConfig, ranks: usize) -> RunConfig {
    let mut config = config.clone();
    config.strategy.parallel.data = ranks;
    config
}

/// A batch of five in two micro-batches: of two ranks, one has three samples and the other two; of three, one has one.
fn uneven() -> RunConfig {
    let mut config = testing::small();
    config.train.batch_size = 5;
    config.strategy.accumulate = 2;
    config
}

/// Asserts that 2, 3 and 4 ranks train as one does: losses, evaluation and norms to 1e-6, each parameter tensor to
/// `tolerance`; and that all ranks end each step with the same bits.
fn assert_trains_as_one(name: &str, config: &RunConfig, tolerance: f64) {
    let alone = run(&with_ranks(config, 1));
    let expected = parameters(&alone);
    let [alone] = <[Trained; 1]>::try_from(alone).ok().unwrap();
    for ranks in 2..=most_ranks() {
        let all = run(&with_ranks(config, ranks));
        assert!(all.iter().all(|rank| rank.digests == all[0].digests), "{name}: {ranks} ranks differ");
        assert!(all.iter().all(|rank| rank.losses().eq(all[0].losses())), "{name}: {ranks} ranks");
        let close = |found: f64, expected: f64, tolerance: f64, what: &str| {
            let within = (found - expected).abs() <= tolerance * expected.abs();
            assert!(within, "{name}: {what} of {ranks} ranks: {found} and {expected}");
        };
        for (step, (found, expected)) in all[0].reports.iter().zip(&alone.reports).enumerate() {
            close(
                f64::from(found.loss),
                f64::from(expected.loss),
                tolerance.max(1e-6),
                &format!("loss {step}"),
            );
            assert_eq!(found.loss_scale, expected.loss_scale);
            if let (Some(found), Some(expected)) = (found.gradient_norm, expected.gradient_norm) {
                assert_eq!(found.is_finite(), expected.is_finite());
                if found.is_finite() {
                    close(f64::from(found), f64::from(expected), 30.0 * tolerance, &format!("norm {step}"));
                }
            }
        }
        close(all[0].evaluation, alone.evaluation, tolerance.max(1e-6), "evaluation");
        for (found, expected) in parameters(&all).iter().zip(&expected) {
            let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
            let difference = found.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b));
            let distance = norm(&mut difference.into_iter());
            let length = norm(&mut expected.iter().map(|x| f64::from(*x)));
            assert!(distance <= tolerance * length, "{name}: {ranks} ranks: {distance} of {length}");
        }
    }
}

/// Plain descent: AdamW divides gradients by their size, and so makes the rounding of the smallest as large as a step.
fn descending(mut config: RunConfig) -> RunConfig {
    config = testing::with_optimizer(&config, &["optimizer.sgd = { lr = 0.1, momentum = 0.9 }"]);
    config
}

fn changed(change: impl FnOnce(&mut RunConfig)) -> RunConfig {
    changed_from(descending(uneven()), change)
}

fn changed_from<T>(mut config: RunConfig, change: impl FnOnce(&mut RunConfig) -> T) -> RunConfig {
    change(&mut config);
    config
}

#[test]
fn ranks_train_as_one() {
    let cases: [(&str, RunConfig); 9] = [
        ("plain", changed(|_| {})),
        ("one micro-batch", changed(|config| config.strategy.accumulate = 1)),
        ("dropout", testing::reshaped(changed(|_| {}), |model| model.dropout.residual = 0.3)),
        ("packed", changed(|config| config.data = testing::of_documents(DocumentArrangement::Packed))),
        ("clipping", changed(|config| config.train.clip_norm = Some(0.05))),
        ("frozen", changed(|config| config.strategy.freeze = vec!["blocks.0".to_owned()])),
        ("factors", changed(|config| config.strategy.lora = Some(Lora::new(4, 8.0, vec!["*".to_owned()])))),
        (
            "untied",
            testing::reshaped(changed(|config| config.strategy.loss_chunks = 3), |model| model.tied = false),
        ),
        ("own evaluation batch", changed(|config| config.evaluation.as_mut().unwrap().batch_size = Some(7))),
    ];
    for (name, config) in cases.into_iter().filter(|(name, _)| has_time(name)) {
        assert_trains_as_one(name, &config, 1e-5);
    }
}

#[test]
fn ranks_train_as_one_with_strategies() {
    let in_backward = |config: &mut RunConfig| {
        config.strategy.update = Update::InBackward;
        (config.strategy.accumulate, config.train.clip_norm) = (1, None);
    };
    let cases: [(&str, RunConfig); 7] = [
        ("in backward", changed(in_backward)),
        ("recomputing", changed(|config| config.strategy.recompute = Recompute::Block)),
        ("kept gradients", changed(|config| config.strategy.gradients = Gradients::Zero)),
        ("lazy", changed(|config| config.strategy.init = Init::Lazy)),
        ("host", changed(|config| config.strategy.init = Init::Host)),
        ("offloading", changed(|config| config.strategy.offload.optimizer = true)),
        ("offloading all", changed(|config| config.strategy.offload.parameters = true)),
    ];
    for (name, config) in cases.into_iter().filter(|(name, _)| has_time(name)) {
        assert_trains_as_one(name, &config, 1e-5);
    }
}

fn sharing(mut config: RunConfig, shard: Shard) -> RunConfig {
    config.strategy.parallel.shard = shard;
    config
}

const SHARDS: [Shard; 4] = [Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Parameters];

/// Each rank has a share of the states, and updates that share of the parameters.
#[test]
fn ranks_that_divide_states_train_as_one() {
    let groups: Updates = &["optimizer.sgd = { lr = 0.1, momentum = 0.9, groups = [
        { match = 'blocks.1', lr = 0.02 }, { match = '*.bias', weight_decay = 0.2 }] }"];
    let cases: [(&str, RunConfig, f64); 10] = [
        ("plain", changed(|_| {}), 1e-5),
        ("groups", testing::with_optimizer(&uneven(), groups), 1e-5),
        ("host", changed(|config| config.strategy.init = Init::Host), 1e-5),
        ("bf16 states", changed(|config| config.strategy.optimizer_state = OptimizerState::Bf16), 0.02),
        ("clipping", changed(|config| config.train.clip_norm = Some(0.05)), 1e-5),
        ("frozen", changed(|config| config.strategy.freeze = vec!["blocks.0".to_owned()]), 1e-5),
        (
            "factors",
            changed(|config| config.strategy.lora = Some(Lora::new(4, 8.0, vec!["*".to_owned()]))),
            1e-5,
        ),
        ("kept gradients", changed(|config| config.strategy.gradients = Gradients::Zero), 1e-5),
        ("lazy", changed(|config| config.strategy.init = Init::Lazy), 1e-5),
        (
            "master weights",
            changed(|config| {
                config.strategy.params = StorageDtype::Bf16;
                config.strategy.precision = Precision::Bf16;
                config.strategy.gradient_dtype = StorageDtype::Fp32;
            }),
            0.02,
        ),
    ];
    for (name, config, tolerance) in cases.into_iter().filter(|(name, ..)| has_time(name)) {
        assert_trains_as_one(name, &sharing(config.clone(), Shard::Optimizer), tolerance);
        // All ranks have the same number of micro-batches: eight samples in two, or five in one.
        let even = |mut config: RunConfig| {
            config.train.batch_size = 8;
            config
        };
        let one = |mut config: RunConfig| {
            config.strategy.accumulate = 1;
            config
        };
        for shard in [Shard::Gradients, Shard::Parameters] {
            let is_lazy = config.strategy.init == Init::Lazy && shard == Shard::Parameters;
            if !is_lazy {
                for config in [even(config.clone()), one(config.clone())] {
                    assert_trains_as_one(&format!("{name}, {shard:?}"), &sharing(config, shard), tolerance);
                }
            }
        }
    }
}

/// Sums of one micro-batch, updates, casts and blocks of 8-bit states are the same wherever a bucket is divided.
#[test]
fn shards_change_no_bit() {
    let adamw = || {
        let config = testing::with_optimizer(&uneven(), &["optimizer.adamw = { lr = 1e-2 }"]);
        changed_from(config, |config| (config.strategy.accumulate, config.train.clip_norm) = (1, None))
    };
    let eight_bit = |config: &mut RunConfig| {
        config.strategy.optimizer_state = OptimizerState::EightBit;
        config.strategy.quantize.from = 256;
    };
    let cases: [(&str, RunConfig); 5] = [
        ("plain", adamw()),
        // Evaluation adds biases to the residual stream in fp32, training before dropout in bf16.
        (
            "bf16",
            changed_from(
                testing::reshaped(adamw(), |model| (model.bias, model.dropout.residual) = (true, 0.1)),
                |config| config.strategy.precision = Precision::Bf16,
            ),
        ),
        ("8-bit states", changed_from(adamw(), eight_bit)),
        ("in backward", changed_from(adamw(), |config| config.strategy.update = Update::InBackward)),
        (
            "in backward, recomputing in bf16",
            changed_from(adamw(), |config| {
                config.strategy.update = Update::InBackward;
                config.strategy.recompute = Recompute::Block;
                config.strategy.precision = Precision::Bf16;
            }),
        ),
    ];
    let cases = cases.into_iter().take(if testing::on_cuda() { 2 } else { 5 });
    for (name, config) in cases {
        for ranks in 2..=most_ranks().min(3) {
            let of_shard = |shard| run(&sharing(with_ranks(&config, ranks), shard));
            let whole = of_shard(Shard::None);
            for shard in &SHARDS[1..] {
                let shared = of_shard(*shard);
                assert!(shared[0].losses().eq(whole[0].losses()), "{name}: {ranks} ranks, {shard:?}");
                let [of_shares, of_whole] = [&shared, &whole].map(|all| tensors(all));
                assert!(of_shares == of_whole, "{name}: {ranks} ranks, {shard:?}");
            }
        }
    }
}

/// The parameters by site: buckets can differ.
fn tensors(all: &[Trained]) -> BTreeMap<u32, Vec<f32>> {
    all[0].sites.iter().flatten().copied().zip(parameters(all)).collect()
}

/// Gradients in 16 bits are rounded on each rank.
#[test]
fn ranks_train_nearly_as_one_in_16_bits() {
    let params = |config: &mut RunConfig, params: StorageDtype| {
        config.strategy.params = params;
        config.strategy.gradient_dtype = params;
        config.strategy.residual = params;
        config.strategy.precision = Precision::Bf16;
    };
    assert_trains_as_one("bf16", &changed(|config| params(config, StorageDtype::Bf16)), 0.05);
}

/// Gradients that overflow on one rank skip the step on all: those of the last sample, if it weighs too much.
#[test]
fn a_step_is_skipped_on_all_ranks() {
    let config = with_ranks(
        &changed(|config| {
            config.data = testing::of_documents(DocumentArrangement::Padded);
            config.strategy.precision = Precision::Fp16;
            config.strategy.loss_scale = Some(LossScale::Static(1024.0));
        }),
        2,
    );
    let skipped = |weight: f32| {
        on_ranks(&config, |index, group| {
            let (target, rank) = (target(index), config.rank(index));
            let program = compile(&config, &target).unwrap();
            let mut device = testing::rank_device(target, None, group);
            let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
            engine.start().unwrap();
            let before = engine.digest().unwrap();
            let samples = config.train.batch_size;
            let mut batch = share(&config, (0, samples), rank);
            if index == 1 {
                let own = rank.samples(samples).len();
                let weights = (0..own).map(|at| if at + 1 == own { weight } else { 1.0 });
                batch = batch.with("weights", weights.map(f32::to_ne_bytes));
            }
            let report = engine.step(&batch, &config.numbers(1)).unwrap();
            let is_finite = report.gradient_norm.is_some_and(f32::is_finite);
            let skipped = engine.counts().skipped_steps;
            assert_eq!((skipped == 0, engine.digest().unwrap() != before), (is_finite, is_finite));
            engine.close().unwrap();
            skipped
        })
    };
    assert_eq!(skipped(1.0), [0, 0]);
    assert_eq!(skipped(1e7), [1, 1]);
}

#[test]
fn ranks_with_other_optimizers_end_with_the_same_bits() {
    const OPTIMIZERS: [Updates; 4] = [
        &["optimizer.adamw = { lr = 1e-2 }"],
        &["optimizer.lion = { lr = 1e-3 }"],
        &["optimizer.adafactor = { lr = 1e-2 }"],
        &["optimizer.muon = { lr = 1e-2, adamw = { lr = 1e-3 } }"],
    ];
    for &updates in &OPTIMIZERS[if testing::on_cuda() { 3.. } else { 0.. }] {
        let (config, optimizer) = (testing::with_optimizer(&uneven(), updates), updates[0]);
        let all = run_delayed(&with_ranks(&config, most_ranks().min(3)), 4, None);
        assert!(all.iter().all(|rank| rank.digests == all[0].digests), "{optimizer}");
        let alone = run_delayed(&config, 4, None);
        for (found, expected) in all[0].losses().zip(alone[0].losses()) {
            assert!((found - expected).abs() <= 1e-4 * expected, "{optimizer}: {found} and {expected}");
        }
    }
}

/// Timing changes no bit, and no event is missing: whichever queue is delayed until something waits for it.
#[test]
fn delays_change_no_bit() {
    let offloading = changed(|config| config.strategy.offload.optimizer = true);
    let shared = SHARDS.map(|shard| sharing(changed(|config| config.train.batch_size = 8), shard));
    for config in shared.into_iter().chain([offloading]) {
        let config = with_ranks(&config, 2);
        let trained = |delay| run_delayed(&config, 3, delay);
        let plain = trained(None);
        for delay in [None, Some(Delay::Communication), Some(Delay::Compute), Some(Delay::Copy)] {
            let delayed = trained(delay);
            assert!(delayed.iter().all(|rank| rank.digests == plain[0].digests), "{delay:?}");
        }
    }
}

/// Of two ranks, each sends its half of the numbers and later the sums of that half.
#[test]
fn ranks_send_what_is_counted() {
    let config = with_ranks(&changed(|_| {}), 2);
    let of_step = exchanged(&compile(&config, &target(0)).unwrap());
    let bytes: u64 = of_step.iter().map(|(_, bytes)| bytes).sum();
    let all = run_delayed(&config, 3, None);
    assert!(all.iter().all(|rank| rank.counts.sent_bytes == 3 * bytes));
}
