//! `evaluation.batch_size` and `evaluation.collect`: expected bytes and work, and equal results.

use super::strategies::{Activations, BATCH, T, V, program, with, work};
use super::{batch, evaluation_samples, trace};
use crate::engine::Engine;
use base::units::Bytes;
use compile::SectionKind;
use device::{Phase, Target, Usage};
use memory::{Failure, OutOfMemory, Prediction, RunSchedule, predict};
use spec::*;
use testing::compile;

const SIZES: Activations = Activations { rounding: 256, micro_batch: BATCH };
const BATCHES: u64 = 9;

/// Every kind of collected outputs.
fn every_kind() -> impl Iterator<Item = Collect> {
    let kinds = [CollectedOutput::Logits, CollectedOutput::Loss].into_iter().flat_map(|what| {
        [CollectedIn::Device, CollectedIn::Host].into_iter().flat_map(move |to| {
            [false, true].into_iter().map(move |concatenate| Collect { what, to, concatenate })
        })
    });
    kinds.collect::<Vec<_>>().into_iter()
}

/// A run that evaluates `BATCHES` batches after each step.
fn collecting(collect: Option<Collect>, change: impl FnOnce(&mut Strategy)) -> RunConfig {
    let mut config = with(change);
    let batches = BATCHES as usize;
    config.evaluation = Some(Evaluation { every: 1, batches, collect, ..Evaluation::default() });
    config
}

fn predicted(config: &RunConfig) -> Prediction {
    predict(&program(config), &testing::target(), RunSchedule::of(config))
}

fn evaluation_peak(usage: &Usage) -> u64 {
    usage.phase_peak(Phase::Evaluation).live.total()
}

/// Changes of the lifetimes, pools and slices of outputs.
const CHANGES: [fn(&mut Strategy); 7] = [
    |_| {},
    |strategy| (strategy.loss_chunks, strategy.accumulate) = (7, 3),
    |strategy| (strategy.release, strategy.precision) = (Release::Step, Precision::Bf16),
    |strategy| (strategy.allocator, strategy.evaluation_pass) = (Allocator::Direct, EvaluationPass::Grad),
    |strategy| (strategy.allocator, strategy.leak) = (CACHING, Some(Leak::Logits)),
    |strategy| strategy.place = vec![("head".to_owned(), LayerDevice::Host)],
    |strategy| strategy.offload.activations = ActivationOffload::From(Bytes(0)),
];

const CACHING: Allocator = Allocator::Caching(Caching {
    max_split_size_mb: None,
    expandable_segments: false,
    garbage_collection_threshold: None,
});

#[test]
fn collected_outputs_are_bitwise_neutral() {
    for change in CHANGES {
        let plain = trace(&collecting(None, change));
        for collect in every_kind() {
            assert_eq!(trace(&collecting(Some(collect), change)), plain, "{collect:?}");
        }
    }
}

/// A list has all batches. A concatenation of the last batch has, for a moment, all batches twice.
#[test]
fn collected_outputs_have_the_expected_bytes() {
    let plain = predicted(&collecting(None, |_| {}));
    let base = plain.device.live.total();
    for collect in every_kind() {
        let each = match collect.what {
            CollectedOutput::Logits => 4 * BATCH * T * V,
            CollectedOutput::Loss => 4,
        };
        let rounded = |count: u64| (count * each).next_multiple_of(SIZES.rounding);
        // Pages, in host memory.
        let [all, joined] = match collect.concatenate {
            false => [BATCHES * rounded(1), 0],
            true => [rounded(BATCHES - 1) + rounded(1), rounded(BATCHES)],
        };
        let found = predicted(&collecting(Some(collect), |_| {}));
        let [device, host] = [&found.device, &found.host].map(evaluation_peak);
        let [plain_device, plain_host] = [&plain.device, &plain.host].map(evaluation_peak);
        let forward = match (collect.what, collect.concatenate) {
            // The last forward pass, beside the outputs of all others.
            (_, false) => plain_device + all - rounded(1),
            (_, true) => plain_device + rounded(BATCHES - 1),
        };
        match collect.to {
            CollectedIn::Device => {
                assert_eq!(device, forward.max(base + all + joined), "{collect:?}");
                assert_eq!(host, plain_host, "{collect:?}");
            }
            CollectedIn::Host => {
                assert_eq!(device, plain_device, "{collect:?}");
                assert_eq!(host, plain_host + all + joined, "{collect:?}");
            }
        }
        let on = |device| if device == collect.to { BATCHES * each } else { 0 };
        assert_eq!(found.collected_bytes, [CollectedIn::Device, CollectedIn::Host].map(on));
        // Nothing is left, and training is not affected.
        assert_eq!(found.device.live, plain.device.live);
        assert_eq!(found.host.live, plain.host.live);
        for phase in [Phase::Start, Phase::Forward, Phase::Backward, Phase::Update] {
            assert_eq!(found.device.phase_peak(phase), plain.device.phase_peak(phase));
        }
    }
}

/// The logits of 125 batches of 8 x 512 tokens and 30,522 words in fp32: 58.2 GiB as a list, twice as much while the
/// last batch is concatenated, and none of it on the device if they are collected on the host.
#[test]
fn logits_of_a_validation_are_predicted() {
    let mut model = Transformer::new(12, 768, 12, 512);
    model.vocabulary = 30_522;
    let mut config = RunConfig { model: Model::Transformer(model), ..testing::small() };
    config.train.batch_size = 8;
    config.measure.steps = 1;
    let target = Target { memory: Bytes(1 << 50), ..testing::target() };
    let mut peaks = |collect: Option<Collect>| {
        config.evaluation = Some(Evaluation { batches: 125, collect, ..Evaluation::default() });
        let program = compile(&config, &target).unwrap();
        let found = predict(&program, &target, RunSchedule::of(&config));
        (evaluation_peak(&found.device), found.host.reserved_peak, found.device.live.total())
    };
    let each = 4 * 8 * 512 * 30_522;
    let logits = |to, concatenate| Some(Collect { what: CollectedOutput::Logits, to, concatenate });
    let (plain, plain_host, base) = peaks(None);
    let (list, _, _) = peaks(logits(CollectedIn::Device, false));
    assert_eq!(list, plain + 124 * each);
    assert_eq!(Bytes(125 * each).to_string(), "58.2 GiB");
    let (concatenated, _, _) = peaks(logits(CollectedIn::Device, true));
    assert_eq!(concatenated, base + 250 * each);
    let (device, host, _) = peaks(logits(CollectedIn::Host, false));
    assert_eq!((device, host), (plain, plain_host + 125 * each));
}

#[test]
fn collected_bytes_are_counted() {
    let collect = |what, to| Some(Collect { what, to, concatenate: true });
    let logits = 4 * BATCH * T * V;
    let (counts, effects) = work(&collecting(collect(CollectedOutput::Logits, CollectedIn::Device), |_| {}));
    assert_eq!(counts.collected_bytes, [logits, 0], "of one batch");
    assert_eq!(effects, "64.0 KiB collected per evaluation");
    let split = |strategy: &mut Strategy| strategy.accumulate = 4;
    let (counts, effects) = work(&collecting(collect(CollectedOutput::Loss, CollectedIn::Host), split));
    assert_eq!(counts.collected_bytes, [0, 4 * 4], "of four micro-batches");
    assert_eq!(effects, "4 micro-batches, 16 B collected per evaluation on the host");
    let (counts, effects) = work(&collecting(None, |_| {}));
    assert_eq!((counts.collected_bytes, &*effects), ([0, 0], ""));
}

/// A step and an evaluation under a limit. Returns the first failed request, if any.
fn first_failed_request(config: &RunConfig, target: &Target) -> Option<OutOfMemory> {
    let program = compile(config, target).unwrap();
    let mut device = testing::device(target.clone());
    let mut run = || -> Result<(), Failure> {
        let mut engine = Engine::new(&program, device.as_mut(), true)?;
        engine.start()?;
        engine.step(&batch(config, 0, config.train.batch_size), &config.numbers(1))?;
        for _ in 0..BATCHES {
            engine.evaluate_batch(&batch(config, 0, evaluation_samples(config)))?;
        }
        engine.finish_evaluation()
    };
    match run() {
        Ok(()) => None,
        Err(Failure::OutOfMemory(found)) => Some(*found),
        Err(failure) => panic!("{failure:?}"),
    }
}

/// With the collected bytes at the failed request.
#[test]
fn evaluation_out_of_memory_is_predicted() {
    for allocator in [Allocator::Arena, Allocator::Direct, CACHING] {
        for concatenate in [false, true] {
            let collect = Collect { what: CollectedOutput::Logits, to: CollectedIn::Device, concatenate };
            let config = collecting(Some(collect), |strategy| strategy.allocator = allocator);
            let run_schedule = RunSchedule { steps: 1, ..RunSchedule::of(&config) };
            let on = |target: &Target| predict(&compile(&config, target).unwrap(), target, run_schedule);
            let training = collecting(None, |strategy| strategy.allocator = allocator);
            let training =
                predict(&program(&training), &testing::target(), run_schedule).device.reserved_peak;
            let most = on(&testing::target()).device.reserved_peak;
            if most == training {
                assert!(
                    allocator.is_caching() && !concatenate,
                    "{allocator:?}: segments of training have room"
                );
                continue;
            }
            for limit in [training, training.midpoint(most), most - 1] {
                let target = testing::target().with_memory(Bytes(limit));
                let prediction = on(&target);
                assert_eq!(prediction.out_of_memory, first_failed_request(&config, &target), "{allocator:?}");
                let Some(found) = &prediction.out_of_memory else {
                    assert!(allocator.is_caching(), "only a cache can return memory");
                    continue;
                };
                assert_eq!((found.phase, found.step), (Phase::Evaluation, None));
                assert!(found.collected.is_multiple_of(4 * BATCH * T * V), "{found:?}");
                assert!(found.collected > 0 || limit == training, "{found:?}");
                let short = prediction.short(&target).device;
                let enough = target.with_memory(Bytes(limit + short));
                assert_eq!(first_failed_request(&config, &enough), None, "{allocator:?}");
            }
        }
    }
}

/// A run whose evaluation batches have their own size.
fn with_own_batch(samples: usize, change: impl FnOnce(&mut Strategy)) -> RunConfig {
    let mut config = with(change);
    config.evaluation = Some(Evaluation { every: 1, batch_size: Some(samples), ..Evaluation::default() });
    config
}

/// One forward pass, whatever the micro-batches of training. Its activations are those of a step of that size, and only
/// its batch in host memory is added to training.
#[test]
fn evaluation_batches_have_their_own_size() {
    for (samples, accumulate) in [(1, 1), (3, 1), (3, 2), (4, 2), (7, 1), (11, 4)] {
        let split = |strategy: &mut Strategy| strategy.accumulate = accumulate;
        let mut plain = with(split);
        plain.evaluation = Some(Evaluation { every: 1, ..Evaluation::default() });
        let own = with_own_batch(samples, split);
        let mut other = plain.clone();
        (other.train.batch_size, other.strategy.accumulate) = (samples, 1);
        let [plain, found, other] = [&plain, &own, &other].map(predicted);
        let above_base = |of: &Prediction| evaluation_peak(&of.device) - of.device.live.total();
        assert_eq!(above_base(&found), above_base(&other), "{samples} samples");
        for phase in [Phase::Start, Phase::Forward, Phase::Backward, Phase::Update] {
            assert_eq!(found.device.phase_peak(phase).live, plain.device.phase_peak(phase).live);
        }
        // Tokens and targets, i32.
        let parts = 2 * (samples as u64 * T * 4).next_multiple_of(SIZES.rounding);
        assert_eq!(found.pinned.live.total(), plain.pinned.live.total() + parts);
        let program = program(&own);
        let sections =
            program.evaluation().map(|section| (section.kind, section.repeat_count, section.samples));
        assert_eq!(sections.collect::<Vec<_>>(), [(SectionKind::Evaluation, 1, samples)]);
        assert_eq!(work(&own).0.evaluation_passes, 1);
    }
}

/// The mean loss over the same samples, in one batch or in two, up to rounding; training is bitwise the same.
#[test]
fn evaluation_batch_does_not_change_training() {
    let evaluated = |samples: usize| {
        let trace = trace(&with_own_batch(samples, |_| {}));
        (trace.evaluation, trace.losses, trace.digests)
    };
    let mut plain = with(|_| {});
    plain.evaluation = Some(Evaluation { every: 1, ..Evaluation::default() });
    let plain = trace(&plain);
    let (evaluation, losses, digests) = evaluated(BATCH as usize);
    assert_eq!((evaluation, &losses, &digests), (plain.evaluation, &plain.losses, &plain.digests));
    for samples in [1, 3, 9] {
        let (evaluation, losses, digests) = evaluated(samples);
        assert_ne!(evaluation, plain.evaluation);
        assert_eq!((&losses, &digests), (&plain.losses, &plain.digests), "{samples}");
    }
    // With dropout, which evaluations do not have.
    let mut config = with_own_batch(3, |_| {});
    super::set_dropout(&mut config.model, 0.2);
    let dropped = trace(&config);
    config.evaluation = Some(Evaluation { every: 1, ..Evaluation::default() });
    assert_eq!(dropped.digests, trace(&config).digests);
}
