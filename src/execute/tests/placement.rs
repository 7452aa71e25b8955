//! Values in another pool than that of the operations on them, and operations on the host.

use std::fmt::Debug;

use super::{STEPS, Trace, trace, train};
use compile::{Action, Annotations, Bucket, Program, SectionKind, compile_annotated, verify};
use device::{Delay, Phase, Pool, Queue, Role};
use graph::{Graphs, Scope};
use memory::{RunSchedule, predict};
use ops::ValueId;
use spec::*;
use testing::compile;

/// A change of annotations that moves values or operations to the host.
type Move = fn(&mut Annotations, &[Scope]);

const STATES: Move = |annotations, _| annotations.states = Pool::Host;

/// Optimizer states and updates on the host.
const UPDATES: Move =
    |annotations, _| (annotations.states, annotations.update_device) = (Pool::Host, Pool::Host);

/// The same, and gradients are transferred once they are complete.
const OPTIMIZER: Move = |annotations, scopes| {
    UPDATES(annotations, scopes);
    annotations.gradients = Pool::Host;
};

/// Parameters on the host, transferred layer by layer.
const PARAMETERS: Move = |annotations, _| annotations.parameters = Pool::Host;

/// Initialisation on the host, before any parameter is transferred.
const MADE: Move = |annotations, _| annotations.init_pool = Some(Pool::Host);

/// Spilled activations of at least 1000 bytes.
const ACTIVATIONS: Move = |annotations, _| annotations.min_offload_bytes = Some(1000);

/// Everything that the current layer does not need.
const OFFLOADED: Move = |annotations, scopes| {
    OPTIMIZER(annotations, scopes);
    PARAMETERS(annotations, scopes);
    annotations.min_offload_bytes = Some(0);
};
const OFFLOADED_LATE: Move = |annotations, scopes| {
    OFFLOADED(annotations, scopes);
    annotations.ahead = 0;
};

/// Each bucket transferred right before its use, or prefetched early.
const UPDATES_LATE: Move = |annotations, scopes| {
    UPDATES(annotations, scopes);
    annotations.ahead = 0;
};
const UPDATES_EARLY: Move = |annotations, scopes| {
    UPDATES(annotations, scopes);
    annotations.ahead = 3;
};

/// The second of two blocks and the embedding on the host.
const LAYERS: Move = |annotations, scopes| {
    let on_host = |scope: &Scope| {
        let layer = &scopes[scope.layer.index()].path;
        layer == "blocks.1" || layer == "embedding"
    };
    let home = |scope| if on_host(scope) { Pool::Host } else { Pool::Device };
    annotations.devices = scopes.iter().map(home).collect();
};

const ALL: Move = |annotations, scopes| {
    annotations.devices = vec![Pool::Host; scopes.len()];
    UPDATES(annotations, scopes);
};

fn compiled(config: &RunConfig, moved: Move) -> Program {
    let graphs = Graphs::of(config);
    let plan = testing::recompute_plan(&graphs, config, &testing::target()).unwrap();
    compile_annotated(&graphs, config, &testing::target(), &plan, moved).unwrap()
}

/// Runs with different allocators and release times.
fn configs() -> Vec<RunConfig> {
    let config = |allocator, release| {
        let mut config = testing::small();
        config.strategy.allocator = allocator;
        config.strategy.release = release;
        (config.train.batch_size, config.strategy.accumulate) = (5, 3);
        config
    };
    vec![
        config(Allocator::Arena, Release::Eager),
        config(Allocator::Arena, Release::Scope),
        config(Allocator::Direct, Release::Eager),
        config(Allocator::Direct, Release::Step),
    ]
}

/// Whether the device is the CPU, which has the host's kernels.
fn is_host() -> bool {
    !testing::on_cuda()
}

/// Compares traces, bitwise if `exact`. Otherwise losses agree to 1e-5, since host kernels round differently.
fn assert_same(found: &Trace, expected: &Trace, exact: bool, what: &dyn Debug) {
    if exact {
        return assert_eq!(found, expected, "{what:?}");
    }
    for (a, b) in found.losses.iter().zip(&expected.losses) {
        assert!((a - b).abs() <= 1e-5 * b.abs(), "{a} and {b}, {what:?}");
    }
}

/// Asserts that a move does not change the results, with each allocator and release time and each queue delayed.
fn assert_same_results(moved: Move, exact: bool) {
    for config in configs() {
        let plain = compile(&config, &testing::target()).unwrap();
        let expected = train(&config, &plain, testing::device(testing::target()).as_mut()).unwrap();
        let program = compiled(&config, moved);
        let found = train(&config, &program, testing::device(testing::target()).as_mut()).unwrap();
        assert_same(&found, &expected, exact, &config.strategy);
        assert_eq!(found.digests.len(), STEPS);
        for delay in [Delay::Compute, Delay::Copy, Delay::Host] {
            let mut device = testing::delayed_device(testing::target(), delay);
            let slow = train(&config, &program, device.as_mut()).unwrap();
            assert_eq!(slow, found, "{delay:?}, {:?}", config.strategy);
        }
    }
}

#[test]
fn states_on_the_host_are_bitwise_equal() {
    assert_same_results(STATES, true);
}

/// The host holds all states, the device those of a few buckets at a time.
#[test]
fn device_holds_states_of_few_buckets_at_a_time() {
    let config = testing::reshaped(testing::small(), |model| model.layers = 12);
    let plain =
        predict(&compile(&config, &testing::target()).unwrap(), &testing::target(), RunSchedule::of(&config));
    let program = compiled(&config, STATES);
    let found = predict(&program, &testing::target(), RunSchedule::of(&config));
    let most = |bucket: usize| {
        let states = program.buckets[bucket].states.iter();
        states.map(|state| program.ty(state.value).bytes().next_multiple_of(256)).sum::<u64>()
    };
    let [all, largest] = [
        (0..program.buckets.len()).map(most).sum::<u64>(),
        (0..program.buckets.len()).map(most).max().unwrap(),
    ];
    let states = |usage: &device::Usage| usage.steady_peak().live[Role::Optimizer];
    assert_eq!(states(&plain.device), all);
    assert_eq!(found.host.steady_peak().live[Role::Optimizer], all);
    let update = found.device.phase_peak(Phase::Update).live[Role::Optimizer];
    assert!(largest <= update && update <= 4 * largest, "{update} bytes of buckets of {largest}");
    assert!(found.device.steady_peak().live.total() < plain.device.steady_peak().live.total());
}

/// Each state is transferred once each way in a step: to the device before its update, and back after it.
#[test]
fn states_are_prefetched_before_their_update() {
    let program = compiled(&testing::small(), STATES);
    let code = &program.section(SectionKind::Update).unwrap().code;
    let position = |like: &dyn Fn(&Action) -> bool| code.iter().position(|i| like(&i.action)).unwrap();
    let mut updates: Vec<usize> = Vec::new();
    for bucket in &program.buckets {
        let update = position(&|action| {
            matches!(action, Action::Launch { op, .. } if op.as_update().is_some())
                && action.reads()[0] == bucket.parameters
        });
        for state in &bucket.states {
            let comes = position(
                &|action| matches!(action, Action::Copy { queue: Queue::Copy, from, .. } if *from == state.value),
            );
            let goes = position(&|action| {
                let to = |to| program.value(to).previous == Some(state.value);
                matches!(*action, Action::Copy { queue: Queue::Copy, to: id, .. } if to(id))
            });
            assert!(comes < update && update < goes);
            assert!(
                updates.last().is_none_or(|before| comes < *before),
                "prefetched during the update before"
            );
        }
        updates.push(update);
    }
}

#[test]
fn updates_on_the_host_do_not_change_results() {
    assert_same_results(UPDATES, is_host());
}

#[test]
fn earlier_prefetch_takes_more_memory() {
    let config = testing::small();
    let brought = [UPDATES_LATE, UPDATES, UPDATES_EARLY].map(|moved| {
        let program = compiled(&config, moved);
        train(&config, &program, testing::device(testing::target()).as_mut()).unwrap();
        let host = predict(&program, &testing::target(), RunSchedule::of(&config)).host;
        host.phase_peak(Phase::Update).live[Role::Gradient]
    });
    assert!(brought[0] < brought[1] && brought[1] < brought[2], "{brought:?}");
    assert_same_results(UPDATES_EARLY, is_host());
}

#[test]
fn layers_on_the_host_do_not_change_results() {
    assert_same_results(LAYERS, is_host());
    assert_same_results(ALL, is_host());
}

#[test]
fn offload_does_not_change_results() {
    assert_same_results(ACTIVATIONS, true);
    assert_same_results(OFFLOADED, is_host());
}

#[test]
fn initialisation_on_the_host_does_not_change_results() {
    assert_same_results(MADE, is_host());
}

/// Whole layers and parts of layers on the host, with each allocator and release time.
#[test]
fn placed_layers_do_not_change_results() {
    const PLACES: [&[&str]; 4] =
        [&["blocks.1"], &["blocks.0.attention", "blocks.1.mlp"], &["embedding", "head"], &["*"]];
    for (place, config) in PLACES.iter().flat_map(|place| configs().into_iter().map(move |c| (place, c))) {
        let expected = trace(&config);
        let mut placed = config.clone();
        placed.strategy.place = place.iter().map(|layer| ((*layer).to_owned(), LayerDevice::Host)).collect();
        let found = trace(&placed);
        assert_same(&found, &expected, is_host(), &placed.strategy);
        let program = compile(&placed, &testing::target()).unwrap();
        for delay in [Delay::Compute, Delay::Copy, Delay::Host] {
            let mut device = testing::delayed_device(testing::target(), delay);
            assert_eq!(train(&placed, &program, device.as_mut()).unwrap(), found, "{delay:?}, {place:?}");
        }
    }
}

/// Parameters are transferred both ways and gradients once they are complete; states stay on the host.
#[test]
fn updates_on_the_host_hold_a_few_buckets_at_a_time() {
    let config = testing::reshaped(testing::small(), |model| model.layers = 12);
    let program = compiled(&config, OPTIMIZER);
    let found = predict(&program, &testing::target(), RunSchedule::of(&config));
    let bytes = |id| program.ty(id).bytes().next_multiple_of(256);
    let buckets = |of: fn(&Bucket) -> ValueId| program.buckets.iter().map(move |bucket| bytes(of(bucket)));
    let (parameters, gradients) =
        (buckets(|bucket| bucket.parameters), buckets(|bucket| bucket.gradients.unwrap()));
    let few = |found: u64, largest: u64| {
        assert!(largest / 2 <= found && found <= 4 * largest, "{found} bytes of buckets of {largest}");
    };
    few(found.host.phase_peak(Phase::Update).live[Role::Parameter], parameters.max().unwrap());
    few(found.device.phase_peak(Phase::Backward).live[Role::Gradient], gradients.clone().max().unwrap());
    assert_eq!(found.host.phase_peak(Phase::Backward).live[Role::Gradient], gradients.sum::<u64>());
    assert_eq!(found.device.steady_peak().live[Role::Optimizer], 0);
    let mut device = testing::device(testing::target());
    train(&config, &program, device.as_mut()).unwrap();
}

/// Random combinations to test. None on a GPU, since an emulated one is slow.
fn combinations() -> usize {
    if is_host() { 24 } else { 0 }
}

/// Random combinations of strategies, frozen layers and moves.
#[test]
fn random_moves_do_not_change_results() {
    let moves =
        [STATES, UPDATES, LAYERS, MADE, ALL, OPTIMIZER, PARAMETERS, ACTIVATIONS, OFFLOADED, OFFLOADED_LATE];
    let moves = moves.into_iter().cycle();
    let frozen: [&[&str]; 3] = [&[], &["embedding", "blocks.0"], &["blocks.1"]];
    for ((choice, moved), frozen) in
        testing::sample(combinations()).into_iter().zip(moves).zip(frozen.into_iter().cycle())
    {
        let choice = choice.of_one_rank();
        let mut config = testing::small_with(&choice);
        config.strategy.freeze = frozen.iter().map(|layer| (*layer).to_owned()).collect();
        let trained = |moved: Move| {
            let program = compiled(&config, moved);
            train(&config, &program, testing::device(testing::target()).as_mut()).unwrap()
        };
        let (found, expected) = (trained(moved), trained(|_, _| {}));
        assert_same(&found, &expected, is_host(), &(choice.settings(), frozen));
    }
}

/// The verifier notices a missing wait of the compute queue before an eager free; with later releases, at least one
/// missing wait of each queue.
#[test]
fn verifier_notices_missing_waits() {
    // Start-up frees nothing and needs no waits.
    let queues = |program: &Program| {
        let later = program.sections.iter().filter(|section| section.kind != SectionKind::Start);
        let code = later.flat_map(|section| &section.code);
        Queue::ALL.map(|queue| code.clone().any(|instruction| instruction.queue() == queue))
    };
    let moves = [STATES, UPDATES, LAYERS].into_iter().enumerate();
    for ((nth, moved), config) in
        moves.flat_map(|moved| configs().into_iter().map(move |config| (moved, config)))
    {
        let program = compiled(&config, moved);
        let mut noticed = [false; Queue::ALL.len()];
        for section in 0..program.sections.len() {
            for wait in 0..program.sections[section].code.len() {
                let mut broken = program.clone();
                let code = &mut broken.sections[section].code;
                let Action::Wait { queue, .. } = code.remove(wait).action else { continue };
                let found = verify(&broken).is_err();
                let kind = program.sections[section].kind.name();
                // With only one other queue, each wait of the compute queue is necessary.
                let always = nth == 0 && queue == Queue::Compute && config.strategy.release == Release::Eager;
                assert!(found || !always, "{kind} {wait}, {:?}", config.strategy);
                noticed[queue as usize] |= found;
            }
        }
        assert_eq!(noticed, queues(&program));
    }
}
