//! Predictions against complete runs without skipped cycles.

use proptest::option;
use proptest::prelude::{Just, Strategy as Any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::run_schedule::Evaluations;
use reusing_allocator::ReusingAllocator;

use super::system::NoStorage;
use super::*;
use base::units::Bytes;
use compile::{FirstIterations, Program, SectionKind};
use device::{DeviceError, Ledger, Limits, Pool, Target};
use ops::ValueId;
use spec::RunConfig;
use testing::{any_config, any_target, compile, full, random_cases, small, target, tenth};

#[allow(unreachable_pub)]
#[path = "../testing/reusing_allocator.rs"]
mod reusing_allocator;

/// An allocator that requests one page more each time, up to `most` pages, and then starts again.
struct Growing<'a> {
    program: &'a Program,
    extra: u64,
    most: u64,
}

impl Growing<'_> {
    fn boxed(program: &Program, most: u64) -> Box<dyn Allocator<'_> + '_> {
        Box::new(Growing { program, extra: 0, most })
    }
}

impl<'a> Allocator<'a> for Growing<'a> {
    fn select(&mut self, program: &'a Program) {
        self.program = program;
    }

    fn open(&mut self, _system: &mut System<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn allocate(&mut self, storage: ValueId, system: &mut System<'_>) -> Result<Location, DeviceError> {
        self.extra = (self.extra + 1) % self.most;
        let bytes = rounded(self.program, storage, system.target()) + self.extra * system.target().page.0;
        Ok((system.request(self.program.value(storage).pool, bytes)?, bytes))
    }

    fn free(&mut self, storage: ValueId, at: Location, system: &mut System<'_>) -> Result<(), DeviceError> {
        let (buffer, bytes) = at;
        system.give_back(self.program.value(storage).pool, buffer, bytes)
    }

    fn close(&mut self, _system: &mut System<'_>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn state(&self) -> Box<dyn Iterator<Item = u64> + '_> {
        Box::new(std::iter::once(self.extra))
    }
}

/// A run with the direct allocator, which tests can replace by another one that requests pages.
fn with_direct_allocator(config: RunConfig) -> RunConfig {
    let strategy = spec::Strategy { allocator: spec::Allocator::Direct, ..config.strategy };
    RunConfig { strategy, ..config }
}

/// A target with memory for all leaks and growing requests.
fn roomy() -> Target {
    Target { memory: Bytes(1 << 50), ..target() }
}

/// The ledger of a complete run.
fn whole_run<'a>(
    program: &'a Program,
    run_schedule: RunSchedule,
    allocator: Box<dyn Allocator<'a> + 'a>,
) -> Ledger {
    let mut manager =
        MemoryManager::with_allocator(program, &roomy(), NoStorage::default(), allocator).unwrap();
    let mut first_iterations = FirstIterations::new(program);
    let mut sections = |manager: &mut MemoryManager<'a, NoStorage>, matches: fn(SectionKind) -> bool| {
        for (number, section) in
            program.sections.iter().enumerate().filter(|(_, section)| matches(section.kind))
        {
            for _ in 0..section.repeat_count {
                for (index, instruction) in section.code.iter().enumerate() {
                    if !first_iterations.skips(number, instruction) {
                        manager.advance(number, index).unwrap();
                    }
                }
                first_iterations.complete(number);
            }
        }
    };
    sections(&mut manager, |kind| kind == SectionKind::Start);
    for step in 1..=run_schedule.steps {
        sections(&mut manager, SectionKind::is_in_step);
        if let Some(Evaluations { every, batches }) = run_schedule.evaluations
            && (step % every == 0 || step == run_schedule.steps)
        {
            (0..batches).for_each(|_| sections(&mut manager, SectionKind::is_in_evaluation));
            manager.release_collected().unwrap();
        }
    }
    manager.ledger().clone()
}

/// Any schedule, with evaluations that a run may lack.
fn any_run_schedule() -> impl Any<Value = RunSchedule> {
    let evaluations = (1..=7usize, 1..=9usize);
    let evaluations = evaluations.prop_map(|(every, batches)| Evaluations { every, batches });
    // A growing allocator never repeats, so the whole run is executed.
    let most = if full() { 40usize } else { 12 };
    (1..=most, evaluations)
        .prop_map(|(steps, evaluations)| RunSchedule { steps, evaluations: Some(evaluations) })
}

/// Creates an allocator for a program.
type MakeAllocator = for<'p> fn(&'p Program) -> Box<dyn Allocator<'p> + 'p>;

const STATELESS: MakeAllocator = |program| allocator::of(program);

/// Stateful allocators: settled after a while, periodic with short and long periods, and never repeating.
const STATEFUL: [MakeAllocator; 4] = [
    ReusingAllocator::boxed,
    |program| Growing::boxed(program, 7),
    |program| Growing::boxed(program, 64),
    |program| Growing::boxed(program, u64::MAX),
];

fn any_allocator() -> impl Any<Value = MakeAllocator> {
    let [hoarder, often, seldom, never] = STATEFUL.map(Just);
    prop_oneof![Just(STATELESS), hoarder, often, seldom, never]
}

proptest! {
    #![proptest_config(random_cases(tenth(128)))]

    #[test]
    fn skipped_cycles_change_nothing(
        config in any_config(), run_schedule in any_run_schedule(), make in any_allocator(),
    ) {
        let config = with_direct_allocator(config);
        let program = compile(&config, &roomy()).unwrap();
        let evaluations = run_schedule.evaluations.filter(|_| config.evaluation.is_some());
        let run_schedule = RunSchedule { evaluations, ..run_schedule };
        let predicted = predict_with(&program, &roomy(), run_schedule, &make);
        let whole = whole_run(&program, run_schedule, make(&program));
        prop_assert_eq!(&predicted.device, whole.usage(Pool::Device));
        prop_assert_eq!(&predicted.host, whole.usage_at(Pool::Host));
        prop_assert_eq!(&predicted.pinned, whole.usage(Pool::Pinned));
    }
}

proptest! {
    #![proptest_config(random_cases(tenth(96)))]

    /// Limits on device memory, on host memory and on both, near the boundaries: just below the reserved bytes, in
    /// their last page, and just below the live bytes.
    #[test]
    fn limit_plus_shortfall_suffices(
        config in any_config(), target in any_target(), page in any_page(), context in any_context(),
        run_schedule in any_run_schedule(), other in option::of(any_allocator()),
    ) {
        let (config, make) = match other {
            Some(make) => (with_direct_allocator(config), make),
            None => (config, STATELESS),
        };
        let target = Target { page, context, ..target };
        // A caching allocator returns memory under pressure, so less can suffice and blocks have other remainders;
        // garbage collection changes fragmentation.
        let (returns_memory, collects) = match config.strategy.allocator {
            spec::Allocator::Caching(caching) => (true, caching.garbage_collection_threshold.is_some()),
            _ => (false, false),
        };
        let program = compile(&config, &target).unwrap();
        let evaluations = run_schedule.evaluations.filter(|_| config.evaluation.is_some());
        let run_schedule = RunSchedule { evaluations, ..run_schedule };
        let within = |limits: [Option<u64>; 2]| {
            let [memory, host_memory] = limits.map(|limit| limit.map(Bytes));
            let target = target.clone().limited_to(Limits { memory, host_memory });
            let prediction = predict_with(&program, &target, run_schedule, &make);
            let short = prediction.short(&target);
            (prediction, short)
        };
        let (free, short) = within([Some(1 << 50), None]);
        prop_assert_eq!((&free.out_of_memory, short), (&None, Shortfall::default()));
        let near = |device, reserved: u64| {
            let live = peak_live(&program, &target, device);
            [reserved - 1, reserved.saturating_sub(page.0), live, live - 1]
        };
        let (device_bytes, host_bytes) = (context.0 + free.device.reserved_peak, free.host.reserved_peak);
        let device_limits = near(Pool::Device, free.device.reserved_peak).map(|bytes| context.0 + bytes);
        let device_limits = device_limits.into_iter().chain([context.0, context.0 / 2]).map(|limit| [Some(limit), None]);
        let host_limits = near(Pool::Host, host_bytes).into_iter().chain([0]);
        let host_limits = host_limits.flat_map(|limit| [device_bytes, device_bytes - 1].map(|own| [Some(own), Some(limit)]));
        for limits in device_limits.chain(host_limits) {
            let (prediction, short) = within(limits);
            if !returns_memory || prediction.out_of_memory.is_some() {
                prop_assert_eq!(&prediction.device, &free.device, "the device peak does not depend on the limit");
            }
            prop_assert_eq!(&prediction.host, &free.host, "the host peak does not depend on the limit");
            let shortfall = |needed: u64, limit: Option<u64>| limit.map_or(0, |limit| needed.saturating_sub(limit));
            let expected = Shortfall { device: shortfall(device_bytes, limits[0]), host: shortfall(host_bytes, limits[1]) };
            prop_assert!(short == expected || returns_memory && short.host == expected.host);
            prop_assert!(short.device <= expected.device || collects);
            if short == Shortfall::default() {
                // The live bytes fill their pages.
                prop_assert_eq!(prediction.out_of_memory, None);
                continue;
            }
            let found = prediction.out_of_memory.expect("a limit is exceeded");
            prop_assert!(found.requested > 0 && !found.value.is_empty() && !found.operation.is_empty(), "{found:?}");
            prop_assert!(short.of(found.pool).0 > 0, "{short:?} for the {} pool", found.pool.name());
            let more = |by: [u64; 2]| {
                let [memory, host] = [0, 1].map(|at| limits[at].map(|limit| limit + by[at]));
                within([memory, host]).0.out_of_memory
            };
            prop_assert_eq!(more([short.device, short.host]), None, "{:?} short of {:?}", short, limits);
            for by in [[short.device.saturating_sub(1), short.host], [short.device, short.host.saturating_sub(1)]] {
                prop_assert!(more(by).is_some() == (by != [short.device, short.host]) || collects);
            }
        }
    }
}

/// Page sizes from a system's to more than most runs here need.
fn any_page() -> impl Any<Value = Bytes> {
    prop_oneof![Just(Bytes(4096)), Just(Bytes(1 << 16)), Just(Bytes(1 << 21))]
}

fn any_context() -> impl Any<Value = Bytes> {
    prop_oneof![Just(Bytes(0)), Just(Bytes(300 << 20))]
}

/// Stateless allocators need the same memory for schedules of any length, and the dry run takes no time.
#[test]
fn stateless_allocators_need_the_same_for_any_schedule() {
    for allocator in [spec::Allocator::Arena, spec::Allocator::Direct] {
        let mut config = small();
        (config.strategy.accumulate, config.strategy.allocator) = (2, allocator);
        let program = compile(&config, &target()).unwrap();
        let of = |steps, every| {
            let evaluations = Some(Evaluations { every, batches: 1_000_000 });
            predict(&program, &target(), RunSchedule { steps, evaluations })
        };
        assert_eq!(of(1, 1), of(1_000_000_000, 7));
    }
}

/// Losses of 4 bytes: after most batches, the rounded bytes of their concatenation are those of the batch before.
#[test]
fn collected_outputs_grow_although_their_rounded_bytes_do_not() {
    let mut config = small();
    let collect = Some(spec::Collect {
        what: spec::CollectedOutput::Loss,
        to: spec::CollectedIn::Host,
        concatenate: true,
    });
    config.evaluation = config.evaluation.map(|evaluation| spec::Evaluation { collect, ..evaluation });
    let program = compile(&config, &target()).unwrap();
    let run_schedule = RunSchedule { steps: 2, evaluations: Some(Evaluations { every: 2, batches: 100 }) };
    let predicted = predict(&program, &target(), run_schedule);
    let whole = whole_run(&program, run_schedule, STATELESS(&program));
    assert_eq!(&predicted.host, whole.usage_at(Pool::Host));
}

/// Stateful allocators that settle are not executed to the end.
#[test]
fn dry_run_ends_once_the_state_repeats() {
    let config = with_direct_allocator(small());
    let program = compile(&config, &target()).unwrap();
    let evaluations = Some(Evaluations { every: 7, batches: 1_000_000 });
    let of = |steps| {
        predict_with(&program, &target(), RunSchedule { steps, evaluations }, &ReusingAllocator::boxed)
            .device
            .reserved_peak
    };
    assert_eq!(of(70), of(1_000_000_000));
}

/// Of 27,913 random programs, 3.3 % had gaps of more than 1 % of the live bytes, and the largest gaps were 24 %.
#[test]
fn arena_gaps_are_small() {
    let count = if full() { 256 } else { 64 };
    let mut runner = TestRunner::new(random_cases(count));
    let mut large = 0;
    for _ in 0..count {
        let (mut config, target) = (any_config(), any_target()).new_tree(&mut runner).unwrap().current();
        (config.strategy.allocator, config.strategy.leak) = (spec::Allocator::Arena, None);
        config.evaluation =
            config.evaluation.map(|evaluation| spec::Evaluation { collect: None, ..evaluation });
        // Page rounding is not a gap.
        let target = Target { page: target.alignment, ..target };
        let program = compile(&config, &target).unwrap();
        let (live, reserved) =
            (peak_live(&program, &target, Pool::Device), program.arenas[Pool::Device as usize]);
        assert!(live <= reserved && reserved <= live + live / 2, "{reserved} bytes for {live}: {config:?}");
        large += usize::from(reserved > live + live / 100);
    }
    assert!(large <= count / 5, "{large} of {count} programs have gaps of more than 1 %");
}
