//! `parallel`: ranks train as one, with equal parameters, and with the memory that is predicted for each.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use super::{Trace, batch};
use crate::engine::{Engine, StepReport};
use crate::metrics::Counts;
use compile::{Action, Bucket, Program, When};
use data::{Batch, Order, TrainingStep, seeds};
use device::{
    Collective, CpuDevice, Delay, DeviceKind, Pool, Rank, RankGroup, Role, SharedMemory, Target, to_f32,
};
use memory::{Evaluations, Failure, RunSchedule, predict};
use ops::{DType, Member, ValueId};
use plan::Compiler;
use spec::*;
use testing::compile;
use testing::keys::Updates;

const STEPS: usize = 20;

/// Ranks exchange gradients on processors only.
fn target(rank: usize) -> Target {
    Target { rank, kind: DeviceKind::Cpu, ..testing::target() }
}

/// The trace of ranks, which is the same on all. Each one's memory is as predicted.
pub(super) fn trace(config: &RunConfig, target: &Target) -> Trace {
    let traces = on_ranks(config, |index, group| {
        let target = Target { rank: index, ..target.clone() };
        let program = compile(config, &target).unwrap();
        let mut device = CpuDevice::with(target.of_rank(config.ranks()), None, Some(group)).unwrap();
        let batch = |step: usize, samples: usize| share(config, (step, samples), config.rank(index));
        super::train_on(config, &program, &mut device, &batch).unwrap()
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

fn run_rank(config: &RunConfig, mut device: CpuDevice, target: &Target, steps: usize) -> Trained {
    let rank = config.rank(target.rank);
    let program = compile(config, target).unwrap();
    let mut engine = Engine::new(&program, &mut device, true).unwrap();
    engine.start().unwrap();
    super::hold(&mut engine, config).unwrap();
    let mut trained = Trained {
        reports: Vec::new(),
        digests: Vec::new(),
        buckets: Vec::new(),
        members: Vec::new(),
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
    assert_eq!(trained.counts.sent_bytes, steps as u64 * predicted.work.sent_bytes);
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
        let device = CpuDevice::with(target(index), delay, Some(group)).unwrap();
        run_rank(config, device, &target(index), steps)
    })
}

fn run(config: &RunConfig) -> Vec<Trained> {
    run_delayed(config, STEPS, None)
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
    for ranks in 2..=4 {
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
    let mut config = descending(uneven());
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
    for (name, config) in cases {
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
    for (name, config) in cases {
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
    for (name, config, tolerance) in cases {
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

/// A share is of the padded bucket: states take one part in n of their whole, rounded up to 256 elements a rank.
#[test]
fn ranks_that_divide_states_hold_their_share() {
    for ranks in 2..=4 {
        let config = testing::with_optimizer(&uneven(), &["optimizer.adamw = { lr = 1e-2 }"]);
        let whole = with_ranks(&config, ranks);
        let program = compile(&whole, &target(0)).unwrap();
        for rank in 0..ranks {
            let shared = compile(&sharing(whole.clone(), Shard::Optimizer), &target(rank)).unwrap();
            for (bucket, of_whole) in shared.buckets.iter().zip(&program.buckets) {
                let elements = program.ty(of_whole.parameters).elements().next_multiple_of(256 * ranks);
                assert_eq!(shared.ty(bucket.parameters).elements(), elements);
                assert_eq!(shared.ty(bucket.gradients.unwrap()).elements(), elements);
                let states = bucket.states.iter().map(|state| shared.ty(state.value).elements());
                assert!(states.eq([elements / ranks; 2]), "{ranks} ranks");
            }
            // To each of the others, a rank sends its share of gradients, of its parameters, and its norm.
            let parameters: u64 =
                shared.buckets.iter().map(|bucket| shared.ty(bucket.parameters).bytes()).sum();
            let sent: u64 = shared
                .step()
                .flat_map(|section| &section.code)
                .map(|instruction| shared.sent_bytes(&instruction.action))
                .sum();
            let norm = 4;
            assert_eq!(sent, (ranks as u64 - 1) * (2 * parameters / ranks as u64 + norm));
        }
    }
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
            let mut device = CpuDevice::with(target, None, Some(group)).unwrap();
            let mut engine = Engine::new(&program, &mut device, true).unwrap();
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
    for updates in OPTIMIZERS {
        let (config, optimizer) = (testing::with_optimizer(&uneven(), updates), updates[0]);
        let all = run_delayed(&with_ranks(&config, 3), 4, None);
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

/// What a rank exchanges in a step, in order: the kinds and sizes.
fn exchanged(program: &Program) -> Vec<(Collective, u64)> {
    let mut exchanged = Vec::new();
    for section in program.step() {
        for iteration in 1..=section.repeat_count {
            for instruction in &section.code {
                let Action::Exchange { collective, from, to } = instruction.action else { continue };
                if instruction.when == When::Always || iteration == section.repeat_count {
                    exchanged.push((collective, program.ty(from).bytes().max(program.ty(to).bytes())));
                }
            }
        }
    }
    exchanged
}

/// All ranks exchange the same in the same order, whatever their samples. Sums are those of all gradients.
#[test]
fn ranks_exchange_the_same() {
    for (ranks, shard) in (1..=4).flat_map(|ranks| SHARDS.map(|shard| (ranks, shard))) {
        for (accumulate, batch_size) in [(1, 5), (2, 5), (3, 5), (2, 8)] {
            let config = changed(|config| {
                (config.strategy.accumulate, config.train.batch_size) = (accumulate, batch_size);
            });
            let config = sharing(with_ranks(&config, ranks), shard);
            if CONFLICTS.iter().any(|conflict| (conflict.check)(&config).is_some()) {
                continue;
            }
            let programs: Vec<Program> =
                (0..ranks).map(|rank| compile(&config, &target(rank)).unwrap()).collect();
            let of_first = exchanged(&programs[0]);
            assert!(programs.iter().all(|program| exchanged(program) == of_first), "{shard:?}");
            if ranks == 1 {
                assert!(of_first.is_empty());
                continue;
            }
            let is_sum = |(collective, _): &&(Collective, u64)| *collective != Collective::AllGather;
            let sums: u64 = of_first.iter().filter(is_sum).map(|(_, bytes)| bytes).sum();
            let elements = |bucket: &Bucket| programs[0].ty(bucket.whole).elements() as u64;
            let gradients: u64 = programs[0].buckets.iter().map(|bucket| 4 * elements(bucket)).sum();
            let times = if shard >= Shard::Gradients { programs[0].micro_batches() as u64 } else { 1 };
            assert_eq!(sums, times * gradients, "{ranks} ranks, {shard:?}");
        }
    }
}

/// Of what ranks divide, a rank has one part in n; whole buckets live for one layer and the next.
#[test]
fn ranks_hold_whole_buckets_layer_by_layer() {
    let config = testing::reshaped(changed(|config| config.train.batch_size = 8), |model| model.layers = 6);
    for shard in [Shard::Gradients, Shard::Parameters] {
        let program = compile(&sharing(with_ranks(&config, 4), shard), &target(1)).unwrap();
        for bucket in &program.buckets {
            let elements = |id| program.ty(id).elements();
            assert_eq!(elements(bucket.gradients.unwrap()) * 4, elements(bucket.whole));
            let parts = if shard == Shard::Parameters { 4 } else { 1 };
            assert_eq!(elements(bucket.parameters) * parts, elements(bucket.whole));
        }
        // By role: the most whole buckets of blocks that are live at once.
        let most = |role: Role| {
            let mut most = 0;
            for section in program.step().filter(|section| section.samples > 0) {
                let is_whole = |id: ValueId| {
                    let value = program.value(id);
                    let is_block = program.scope(value.scope).path.starts_with("blocks.");
                    let persists = section.live_in.contains(&id) || section.live_out.contains(&id);
                    value.role == role && is_block && !persists
                };
                let mut live = 0;
                for instruction in &section.code {
                    match instruction.action {
                        Action::Allocate(id) if is_whole(id) => live += 1,
                        Action::Free(id) if is_whole(id) => live -= 1,
                        _ => {}
                    }
                    most = most.max(live);
                }
            }
            most
        };
        // Beside a whole, a share of the sums waits to be added.
        assert!((2..=3).contains(&most(Role::Gradient)), "{shard:?}: {}", most(Role::Gradient));
        assert_eq!(most(Role::Parameter), if shard == Shard::Parameters { 2 } else { 0 });
    }
}

/// Parameters that are kept from forward to backward are gathered once in each micro-batch; the distance in layers decides
/// when. Neither changes a bit.
#[test]
fn gathers_are_kept_and_early_as_chosen() {
    let config = testing::reshaped(changed(|config| config.train.batch_size = 8), |model| model.layers = 6);
    let gathering = |keep_gathered, ahead| {
        let mut config = sharing(with_ranks(&config, 2), Shard::Parameters);
        (config.strategy.parallel.keep_gathered, config.strategy.parallel.ahead) = (keep_gathered, ahead);
        config
    };
    // Gathers of parameters in a step, and the most bytes of gathered parameters.
    let gathers = |config: &RunConfig| {
        let program = compile(config, &target(0)).unwrap();
        let gathers = |(collective, bytes): &&(Collective, u64)| {
            *collective == Collective::AllGather && *bytes > 4 * program.share.unwrap().of as u64
        };
        let peak = predict(&program, &target(0), RunSchedule::of(config)).device.peak();
        (exchanged(&program).iter().filter(gathers).count(), peak)
    };
    let plain = run(&gathering(false, 1));
    // Each bucket in forward and backward of both micro-batches; the last one's stays between them.
    let buckets = compile(&config, &target(0)).unwrap().buckets.len();
    let (often, peak) = gathers(&gathering(false, 1));
    assert_eq!(often, 2 * (2 * buckets - 1));
    let (once, kept_peak) = gathers(&gathering(true, 1));
    assert_eq!(once, 2 * buckets);
    assert!(kept_peak > peak);
    let peaks = [0, 1, 3].map(|ahead| gathers(&gathering(false, ahead)).1);
    assert!(peaks.is_sorted() && peaks[0] < peaks[2], "{peaks:?}");
    for (keep_gathered, ahead) in [(true, 1), (false, 0), (false, 3), (true, 0)] {
        let all = run(&gathering(keep_gathered, ahead));
        assert!(all.iter().zip(&plain).all(|(rank, plain)| rank.digests == plain.digests), "{ahead} ahead");
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

/// Gradients are exchanged while backward goes on: in the last micro-batch, each bucket once it is complete.
#[test]
fn exchange_begins_before_backward_ends() {
    let program = compile(&with_ranks(&changed(|_| {}), 2), &target(0)).unwrap();
    let last = program.step().filter(|section| section.samples > 0).last().unwrap();
    let is_exchange = |action: &Action| matches!(action, Action::Exchange { .. });
    let first = last.code.iter().position(|instruction| is_exchange(&instruction.action)).unwrap();
    let launches = last.code[first..].iter().filter(|of| matches!(of.action, Action::Launch { .. }));
    assert!(launches.count() > 10, "operations follow the first exchange");
}

/// One rank is the program without the key.
#[test]
fn one_rank_exchanges_nothing() {
    let config = changed(|_| {});
    let program = compile(&config, &target(0)).unwrap();
    assert_eq!(program, compile(&with_ranks(&config, 1), &target(0)).unwrap());
    assert!(exchanged(&program).is_empty());
}

/// Memory beyond that of the rank's samples: none.
#[test]
fn ranks_need_the_memory_of_their_samples() {
    let mut config = changed(|config| config.train.batch_size = 8);
    let peak = |config: &RunConfig| {
        let target = target(0);
        predict(&compile(config, &target).unwrap(), &target, RunSchedule::of(config)).device.peak()
    };
    let two = peak(&with_ranks(&config, 2));
    config.train.batch_size = 4;
    assert_eq!(two, peak(&config));
}

#[test]
fn program_of_a_rank_is_instantiated_at_another_size() {
    let config = with_ranks(&uneven(), 2);
    let mut larger = config.clone();
    larger.train.batch_size = 9;
    let target = Target { threads: 3, ..target(1) };
    let mut compiler = Compiler::new(&target);
    compiler.compile(&larger).unwrap();
    assert_eq!(compiler.compile(&config).unwrap().program, compile(&config, &target).unwrap());
}
