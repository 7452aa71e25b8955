//! `keep` and `leak`: values that are held until their section ends, or for ever.

use super::strategies::{Activations, BATCH, L, V, launches, live_in, program, with, work};
use super::{batch, trace};
use crate::engine::Engine;
use base::units::Bytes;
use compile::{Program, SectionKind};
use device::{Pool, Role, Target};
use memory::{Failure, OutOfMemory, RunSchedule, predict};
use spec::*;
use testing::compile;

const SIZES: Activations = Activations { rounding: 256, micro_batch: BATCH };

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A run with these values kept and other changes of the strategy.
fn keeping(keep: &[&str], change: impl FnOnce(&mut Strategy)) -> RunConfig {
    with(|strategy| {
        change(strategy);
        strategy.keep = names(keep);
    })
}

fn activations(program: &Program, kind: SectionKind, after: &'static str) -> u64 {
    live_in(program, Pool::Device, kind, Role::Activation, launches(after))
}

const ATTENTION: [&str; 2] = ["blocks.0.attention.out", "blocks.1.attention.out"];

#[test]
fn keep_holds_its_values_to_the_end_of_the_section() {
    let logits = SIZES.f32(SIZES.rows() * V);
    let eager = program(&testing::small());
    for (keep, more) in [(&["head.logits"][..], logits), (&ATTENTION, L * SIZES.stream())] {
        let kept = program(&keeping(keep, |_| {}));
        for (kind, after) in
            [(SectionKind::First, "embedding-backward"), (SectionKind::Evaluation, "cross-entropy")]
        {
            let [kept, eager] = [&kept, &eager].map(|program| activations(program, kind, after));
            // An evaluation's last operation reads the logits in any case.
            let there = if kind == SectionKind::Evaluation && keep[0] == "head.logits" { logits } else { 0 };
            assert_eq!(kept, eager + more - there, "{keep:?} in {}", kind.name());
        }
    }
}

/// The gradient of the logits is computed in place unless they are kept: then both are live at the peak.
#[test]
fn kept_value_is_not_overwritten() {
    let peak = |config: &RunConfig| {
        predict(&program(config), &testing::target(), RunSchedule::of(config))
            .device
            .steady_peak()
            .live
            .total()
    };
    let logits = SIZES.f32(SIZES.rows() * V);
    assert_eq!(peak(&keeping(&["head.logits"], |_| {})), peak(&testing::small()) + logits);
    // All slices are kept.
    let sliced = program(&keeping(&["head.logits"], |strategy| strategy.loss_chunks = 7));
    let found = activations(&sliced, SectionKind::First, "embedding-backward");
    let slices = 6 * SIZES.f32(10 * V) + SIZES.f32(4 * V);
    assert_eq!(found, SIZES.stream() + 256 + slices);
}

/// Changes of the lifetimes of values.
const CHANGES: [fn(&mut Strategy); 6] = [
    |_| {},
    |strategy| (strategy.loss_chunks, strategy.accumulate) = (7, 3),
    |strategy| (strategy.recompute, strategy.precision) = (Recompute::Block, Precision::Bf16),
    |strategy| (strategy.allocator, strategy.evaluation_pass) = (Allocator::Direct, EvaluationPass::Grad),
    |strategy| (strategy.allocator, strategy.init) = (Allocator::Direct, Init::Lazy),
    |strategy| strategy.offload.activations = ActivationOffload::From(Bytes(0)),
];

#[test]
fn keep_is_bitwise_equal() {
    for change in CHANGES {
        let plain = trace(&with(change));
        for keep in [&["head.logits"][..], &ATTENTION, &["blocks.0.mlp.hidden", "embedding.x"]] {
            assert_eq!(trace(&keeping(keep, change)), plain, "{keep:?}");
        }
    }
}

#[test]
fn kept_values_count_as_late_frees() {
    let logits = BATCH * super::strategies::T * V * 4;
    let (counts, effects) = work(&keeping(&["head.logits"], |_| {}));
    assert_eq!((counts.late_frees, counts.late_freed_bytes), (2, 2 * logits));
    assert_eq!(effects, "1 value freed late (64.0 KiB), 1 value freed late in evaluation");
    let (counts, effects) = work(&keeping(&["head.logits"], |strategy| strategy.loss_chunks = 7));
    assert_eq!((counts.late_frees, counts.late_freed_bytes), (2 * 7, 2 * logits));
    assert_eq!(effects, "7 loss slices, 7 values freed late (64.0 KiB), 7 values freed late in evaluation");
    let (counts, _) = work(&keeping(&ATTENTION, |strategy| strategy.accumulate = 2));
    assert_eq!(counts.late_frees, 2 * 2 * L, "in each micro-batch");
}

/// `release = "step"` holds all values already.
#[test]
fn keep_with_late_release_has_no_effect() {
    let late = |strategy: &mut Strategy| strategy.release = Release::Step;
    assert_eq!(program(&keeping(&["head.logits"], late)), program(&with(late)));
    assert_ne!(program(&keeping(&["head.logits"], |_| {})), program(&testing::small()));
}

fn leaking(leak: Leak, change: impl FnOnce(&mut Strategy)) -> RunConfig {
    with(|strategy| {
        change(strategy);
        strategy.leak = Some(leak);
    })
}

const LEAKS: [Leak; 3] = [Leak::Loss, Leak::Logits, Leak::Graph];

/// Bytes that a micro-batch leaks, or a step in the case of the loss, from the model's dimensions.
fn leaked_bytes(leak: Leak, sizes: &Activations) -> u64 {
    match leak {
        Leak::Loss => sizes.f32(1),
        Leak::Logits => sizes.f32(sizes.rows() * V),
        // All of the blocks except the last matmul's output, the embedding's output, the head's norm, and the token
        // ids. The logits' gradient is computed with the loss and needs nothing more.
        Leak::Graph => L * sizes.block() + sizes.stream() + sizes.norm() + sizes.f32(sizes.rows()),
    }
}

#[test]
fn leak_has_the_predicted_bytes() {
    for leak in LEAKS {
        for accumulate in [1, 2, 4] {
            let config = leaking(leak, |strategy| strategy.accumulate = accumulate);
            let sizes = Activations { rounding: 256, micro_batch: BATCH / accumulate as u64 };
            // A step has one loss, independent of its micro-batches.
            let times = if leak == Leak::Loss { 1 } else { accumulate as u64 };
            let each = times * leaked_bytes(leak, &sizes);
            let predicted = predict(&program(&config), &testing::target(), RunSchedule::of(&config));
            assert_eq!(predicted.leaked_bytes, each, "{leak:?}, {accumulate} micro-batches");
            let (counts, effects) = work(&config);
            assert_eq!(counts.leaked_bytes, 2 * each);
            let mistake = match leak {
                Leak::Loss => "no .item()",
                Leak::Logits => "kept outputs",
                Leak::Graph => "retain_graph",
            };
            assert!(effects.contains(&format!("{} leaked per step: {mistake}", Bytes(each))), "{effects}");
        }
    }
}

#[test]
fn leak_is_bitwise_equal() {
    for change in CHANGES {
        let plain = trace(&with(change));
        for leak in LEAKS {
            assert_eq!(trace(&leaking(leak, change)), plain, "{leak:?}");
        }
    }
}

fn leaks_by_allocator() -> impl Iterator<Item = (Leak, Allocator)> {
    let of = |leak| [Allocator::Arena, Allocator::Direct].map(|allocator| (leak, allocator));
    LEAKS.into_iter().flat_map(of)
}

/// Live bytes grow by the same amount with every step, and so do reserved bytes, in pages.
#[test]
fn peak_after_any_number_of_steps_is_predicted() {
    for (leak, allocator) in leaks_by_allocator() {
        let mut config = leaking(leak, |strategy| strategy.allocator = allocator);
        let program = program(&config);
        let mut device_after = |steps: usize| {
            config.measure = Measure { warmup_steps: 0, steps, ..Measure::default() };
            predict(&program, &testing::target(), RunSchedule::of(&config)).device
        };
        let [two, three, many] = [2, 3, 1_000_000].map(&mut device_after);
        let each = three.steady_peak().live.total() - two.steady_peak().live.total();
        let each_reserved = three.reserved_peak - two.reserved_peak;
        assert!(each > 0 && each <= each_reserved, "{leak:?}, {allocator:?}");
        assert_eq!(many.steady_peak().live.total(), two.steady_peak().live.total() + 999_998 * each);
        assert_eq!(many.reserved_peak, two.reserved_peak + 999_998 * each_reserved);
    }
}

/// Under every limit, the prediction gives the failing step and request: runs of that many steps fit, runs of one more
/// do not.
#[test]
fn step_of_out_of_memory_is_predicted() {
    for (leak, allocator) in leaks_by_allocator() {
        let mut config = leaking(leak, |strategy| (strategy.allocator, strategy.accumulate) = (allocator, 2));
        config.evaluation = Some(Evaluation { every: 3, ..Evaluation::default() });
        let program = program(&config);
        config.measure = Measure { warmup_steps: 0, steps: 1, ..Measure::default() };
        let one = predict(&program, &testing::target(), RunSchedule::of(&config)).device.reserved_peak;
        for more in [0, 1, 4096, 100_000, 1_000_000] {
            let target = testing::target().with_memory(Bytes(one + more));
            let mut predicted = |steps| {
                config.measure = Measure { warmup_steps: 0, steps, ..Measure::default() };
                predict(&program, &target, RunSchedule::of(&config))
            };
            let room = predicted(1).steps_until_oom.unwrap() as usize;
            assert!(room > 0);
            assert_eq!(predicted(room).out_of_memory, None, "{leak:?}, {allocator:?}, {room}");
            let found = predicted(room + 1).out_of_memory.unwrap();
            assert_eq!(predicted(room + 99).out_of_memory.as_ref(), Some(&found));
            if room < 20 {
                assert_eq!(
                    train_until_out_of_memory(&config, &target),
                    (room, found),
                    "{leak:?}, {allocator:?}"
                );
            }
        }
    }
}

/// Trains until memory runs out. Returns the completed steps and the failed request.
fn train_until_out_of_memory(config: &RunConfig, target: &Target) -> (usize, OutOfMemory) {
    let program = compile(config, target).unwrap();
    let mut device = testing::device(target.clone());
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    let samples = config.train.batch_size;
    let every = config.evaluation.as_ref().unwrap().every;
    let train = |engine: &mut Engine| -> Result<(), Failure> {
        (1..).try_for_each(|step| {
            engine.step(&batch(config, step, samples), &config.numbers(step))?;
            if step % every == 0 {
                engine.evaluate(&batch(config, step, samples))?;
            }
            Ok(())
        })
    };
    match train(&mut engine) {
        Err(Failure::OutOfMemory(found)) => (engine.counts().steps as usize, *found),
        other => panic!("did not run out of memory: {other:?}"),
    }
}
