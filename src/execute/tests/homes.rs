//! Values that live elsewhere than they are computed with.

use super::{STEPS, train};
use crate::compile::{Action, Program, SectionKind, compile, compile_marked, verify};
use crate::device::{Delay, Pool, Queue, Role};
use crate::graph::Graphs;
use crate::memory::{Cadence, predict};
use crate::spec::*;
use crate::testing;

/// The small run with the optimizer's states in the host's memory.
fn offloaded(config: &RunConfig) -> Program {
    compile_marked(&Graphs::of(config), config, &testing::target(), |marks, _| marks.states = Pool::Host)
        .unwrap()
}

/// With every way to lay memory out.
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

#[test]
fn states_on_the_host_change_no_bit() {
    for config in configs() {
        let plain = compile(&config, &testing::target()).unwrap();
        let expected = train(&config, &plain, testing::device(testing::target()).as_mut()).unwrap();
        let program = offloaded(&config);
        let found = train(&config, &program, testing::device(testing::target()).as_mut()).unwrap();
        assert_eq!(found, expected, "{:?}", config.strategy);
        assert_eq!(found.digests.len(), STEPS);
        for delay in [Delay::Compute, Delay::Copy] {
            let mut device = testing::delayed_device(testing::target(), delay);
            let found = train(&config, &program, device.as_mut()).unwrap();
            assert_eq!(found, expected, "{delay:?}, {:?}", config.strategy);
        }
    }
}

/// On the device, the states of a few buckets at a time; on the host, all of them.
#[test]
fn states_on_the_host_take_no_room_of_the_device() {
    let mut config = testing::small();
    let model = config.model.transformer().unwrap().clone();
    config.model = Model::Transformer(Transformer { layers: 12, ..model });
    let plain =
        predict(&compile(&config, &testing::target()).unwrap(), &testing::target(), Cadence::of(&config));
    let program = offloaded(&config);
    let found = predict(&program, &testing::target(), Cadence::of(&config));
    let most = |bucket: usize| {
        let states = program.buckets[bucket].states.iter();
        states.map(|state| program.ty(state.value).bytes().next_multiple_of(256)).sum::<u64>()
    };
    let [all, largest] = [
        (0..program.buckets.len()).map(most).sum::<u64>(),
        (0..program.buckets.len()).map(most).max().unwrap(),
    ];
    let states = |usage: &crate::device::Usage| usage.steady_peak().live[Role::Optimizer];
    assert_eq!(states(&plain.device), all);
    assert_eq!(found.host.steady_peak().live[Role::Optimizer], all);
    let update = found.device.phase_peak(crate::device::Phase::Update).live[Role::Optimizer];
    assert!(largest <= update && update <= 4 * largest, "{update} bytes of buckets of {largest}");
    assert!(found.device.steady_peak().live.total() < plain.device.steady_peak().live.total());
}

/// Each state comes once and goes once in a step, each time ahead of the update that waits for it.
#[test]
fn states_are_brought_ahead_of_their_update() {
    let program = offloaded(&testing::small());
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
            assert!(updates.last().is_none_or(|before| comes < *before), "while the one before is at work");
        }
        updates.push(update);
    }
}

/// The verifier notices when the compute queue does not wait for what it gives back at once, and that some wait of each
/// queue is left out where memory is held for longer.
#[test]
fn waits_are_needed() {
    for config in configs() {
        let program = offloaded(&config);
        let mut noticed = [false; Queue::ALL.len()];
        for section in 0..program.sections.len() {
            for wait in 0..program.sections[section].code.len() {
                let mut broken = program.clone();
                let code = &mut broken.sections[section].code;
                let Action::Wait { queue, .. } = code.remove(wait).action else { continue };
                let found = verify(&broken).is_err();
                let kind = program.sections[section].kind.name();
                let always = queue == Queue::Compute && config.strategy.release == Release::Eager;
                assert!(found || !always, "{kind} {wait}, {:?}", config.strategy);
                noticed[queue as usize] |= found;
            }
        }
        assert_eq!(noticed, [true; Queue::ALL.len()]);
    }
}
