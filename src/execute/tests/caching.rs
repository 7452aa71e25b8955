//! The caching allocator: its effect on results, memory and system requests.

use super::strategies::with;
use super::{STEPS, batch, first_failed_request, trace, trace_on};
use crate::engine::Engine;
use crate::metrics::Counts;
use base::units::Bytes;
use compile::Action;
use device::{Phase, Pool, Role, Target};
use memory::{Evaluations, Prediction, RunSchedule, predict};
use spec::*;
use testing::compile;

const MIB: u64 = 1 << 20;

const PLAIN: Caching =
    Caching { max_split_size_mb: None, expandable_segments: false, garbage_collection_threshold: None };

/// A run with small and large values: the mlp's hidden values of 20 sequences have 2.5 MiB.
fn large(change: impl FnOnce(&mut Strategy)) -> RunConfig {
    let mut config = testing::reshaped(with(change), |model| (model.d_model, model.context) = (128, 64));
    config.train.batch_size = 20;
    config
}

fn caching(change: impl FnOnce(&mut Strategy)) -> RunConfig {
    large(|strategy| {
        strategy.allocator = Allocator::Caching(PLAIN);
        change(strategy);
    })
}

/// The run schedule of `first_failed_request`.
const ONE_STEP: RunSchedule =
    RunSchedule { steps: 1, evaluations: Some(Evaluations { every: 1, batches: 1 }) };

fn predicted(config: &RunConfig, target: &Target, run_schedule: RunSchedule) -> Prediction {
    predict(&compile(config, target).unwrap(), target, run_schedule)
}

/// The counts after `steps` steps, each followed by an evaluation.
fn counts(config: &RunConfig, steps: usize) -> Counts {
    let program = compile(config, &testing::target()).unwrap();
    let mut device = testing::device(testing::target());
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    for step in 0..steps {
        let whole = batch(config, step, config.train.batch_size);
        engine.step(&whole, &config.numbers(step + 1)).unwrap();
        engine.evaluate(&whole).unwrap();
    }
    engine.counts()
}

/// `trace` asserts that memory is as predicted.
#[test]
fn results_do_not_depend_on_addresses() {
    let changes: [fn(&mut Strategy); 6] = [
        |_| {},
        |strategy| strategy.accumulate = 3,
        |strategy| (strategy.recompute, strategy.release) = (Recompute::Block, Release::Scope),
        |strategy| strategy.evaluation_pass = EvaluationPass::Grad,
        |strategy| strategy.offload = Offload { parameters: true, optimizer: true, ..Offload::default() },
        |strategy| (strategy.init, strategy.leak) = (Init::Lazy, Some(Leak::Logits)),
    ];
    let emptied = [EmptyCache::Never, EmptyCache::Step, EmptyCache::Micro];
    let expected = changes.map(|change| trace(&large(change)));
    for combination in testing::combinations(&[changes.len(), emptied.len(), 2], 2) {
        let [change, empty_cache, expandable] = combination[..] else { unreachable!("three axes") };
        let config = caching(|strategy| {
            changes[change](strategy);
            let expandable_segments = expandable > 0;
            strategy.allocator = Allocator::Caching(Caching { expandable_segments, ..PLAIN });
            strategy.empty_cache = emptied[empty_cache];
        });
        assert_eq!(trace(&config), expected[change], "{:?}", config.strategy);
    }
}

/// All requests are made in the first step and evaluation. Later allocations are served from the cache.
#[test]
fn steady_state_makes_no_system_requests() {
    let config = caching(|_| {});
    let [two, three] = [2, 3].map(|steps| counts(&config, steps));
    assert_eq!((three.requests, three.requests_in_evaluation), (two.requests, two.requests_in_evaluation));
    let step = three.cache.since(&two.cache);
    assert!(step.allocations > 0 && step.hits == step.allocations, "{step:?}");
    assert!(step.splits > 0 && step.returned_bytes == 0, "{step:?}");
    // Every cache miss is a request, and so is every host allocation.
    let program = compile(&config, &testing::target()).unwrap();
    let allocated = program.sections[0].code.iter().filter_map(|instruction| match instruction.action {
        Action::Allocate(storage) => Some(program.value(storage).pool),
        _ => None,
    });
    let of_host = allocated.filter(|pool| *pool != Pool::Device).count() as u64;
    assert_eq!(three.cache.allocations - three.cache.hits, three.requests - of_host);

    let direct = counts(&large(|strategy| strategy.allocator = Allocator::Direct), 3);
    assert_eq!(direct.cache, Default::default());
    assert!(10 * three.requests < direct.requests, "{} and {}", three.requests, direct.requests);
}

#[test]
fn emptied_cache_is_requested_again() {
    let each_step = |empty_cache| {
        let config = caching(|strategy| (strategy.empty_cache, strategy.accumulate) = (empty_cache, 2));
        let [two, three] = [2, 3].map(|steps| counts(&config, steps));
        (three.requests - two.requests, three.cache.since(&two.cache).returned_bytes)
    };
    let [never, step, micro] = [EmptyCache::Never, EmptyCache::Step, EmptyCache::Micro].map(each_step);
    assert_eq!(never, (0, 0));
    assert!(0 < step.0 && step.0 < micro.0, "{step:?}, {micro:?}");
    assert!(0 < step.1 && step.1 < micro.1, "{step:?}, {micro:?}");
    assert!(step.1 % (2 * MIB) == 0 && micro.1 % (2 * MIB) == 0, "whole segments");
}

/// More is reserved than live, and no more is live than with the direct allocator.
#[test]
fn reserved_memory_is_whole_segments() {
    let at = |config: &RunConfig| predicted(config, &testing::target(), RunSchedule::of(config)).device;
    let (cached, direct) =
        (at(&caching(|_| {})), at(&large(|strategy| strategy.allocator = Allocator::Direct)));
    assert!(cached.reserved_peak % (2 * MIB) == 0 && cached.reserved_peak > cached.peak());
    // The direct allocator rounds each value up to pages.
    assert!(cached.peak() < direct.peak() && direct.reserved_peak < cached.reserved_peak);
}

/// Logits of 11.3 MiB get a segment of 12 MiB, whose rest is too small to divide: it is live, and its role is rounding.
#[test]
fn undivided_remainders_are_live() {
    const VOCABULARY: u64 = 2314;
    let config = testing::reshaped(caching(|_| {}), |model| model.vocabulary = VOCABULARY as usize);
    let rest = 12 * MIB - 20 * 64 * VOCABULARY * 4;
    let of = |expandable_segments| {
        let mut config = config.clone();
        config.strategy.allocator = Allocator::Caching(Caching { expandable_segments, ..PLAIN });
        predicted(&config, &testing::target(), RunSchedule::of(&config)).device
    };
    let [plain, expandable] = [false, true].map(of);
    let rounding = |usage: &device::Usage| usage.phase_peaks.map(|peak| peak.live[Role::Rounding]);
    assert!(rest <= MIB && rounding(&plain).contains(&rest), "{rest}: {:?}", rounding(&plain));
    assert_eq!(rounding(&expandable), [0; Phase::ALL.len()]);
    // `trace` asserts that the engine counts the same.
    trace(&config);
}

/// At every limit: the same operation, request and fragmented bytes.
#[test]
fn out_of_memory_is_predicted() {
    for settings in [
        PLAIN,
        Caching { max_split_size_mb: Some(21), garbage_collection_threshold: Some(0.7), ..PLAIN },
        Caching { expandable_segments: true, ..PLAIN },
    ] {
        let config = caching(|strategy| strategy.allocator = Allocator::Caching(settings));
        let most = predicted(&config, &testing::target(), ONE_STEP).device.reserved_peak;
        let mut in_pieces = 0;
        for limit in (2 * MIB..most).step_by(2 * MIB as usize) {
            let target = testing::target().with_memory(Bytes(limit));
            let prediction = predicted(&config, &target, ONE_STEP);
            assert_eq!(prediction.out_of_memory, first_failed_request(&config, &target), "{limit} of {most}");
            in_pieces += prediction.out_of_memory.as_ref().map_or(0, |found| found.pieces.bytes);
            let short = prediction.short(&target).device;
            assert_eq!(short > 0, prediction.out_of_memory.is_some());
            let enough = target.with_memory(Bytes(limit + short));
            assert_eq!(first_failed_request(&config, &enough), None, "{limit} of {most}");
        }
        assert!(in_pieces > 0);
    }
}

/// The limit is less than the run reserves with enough memory, so that cached blocks must be returned. The two
/// micro-batches differ in size.
#[test]
fn cache_is_emptied_before_a_run_fails() {
    let config = caching(|strategy| strategy.accumulate = 2);
    let mut config =
        testing::reshaped(config, |model| (model.d_model, model.heads, model.vocabulary) = (256, 4, 4096));
    config.train.batch_size = 17;
    let run_schedule = RunSchedule { steps: STEPS, evaluations: Some(Evaluations { every: 1, batches: 1 }) };
    let free = predicted(&config, &testing::target(), run_schedule);
    assert_eq!(free.cache_stats.returned_bytes, 0);
    let small = testing::target().with_memory(Bytes(free.device.steady_peak().live.total()));
    let enough = Bytes(small.memory.0 + predicted(&config, &small, run_schedule).short(&small).device);
    assert!(enough.0 < free.device.reserved_peak, "{enough} of {}", free.device.reserved_peak);

    let target = testing::target().with_memory(enough);
    let lean = predicted(&config, &target, run_schedule);
    assert!(lean.out_of_memory.is_none() && lean.cache_stats.returned_bytes > 0, "{lean:?}");
    assert!(lean.device.reserved_peak <= enough.0);
    assert_eq!(lean.device.phase_peaks, free.device.phase_peaks);
    assert_eq!(trace_on(&config, target), trace(&config));
    let less = testing::target().with_memory(Bytes(enough.0 - 1));
    assert!(predicted(&config, &less, run_schedule).out_of_memory.is_some());
}
