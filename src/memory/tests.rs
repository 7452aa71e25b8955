//! The walk of a prediction against the whole run, gone through without leaving anything out.

use proptest::option;
use proptest::prelude::{Just, Strategy as Any, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::run_schedule::Evaluations;
use hoarder::Hoarder;

use super::system::NoStorage;
use super::*;
use base::units::Bytes;
use compile::{FirstIterations, Program, SectionKind};
use device::{DeviceError, Ledger, Limits, Pool, Target};
use ops::ValueId;
use spec::RunConfig;
use testing::{any_config, any_target, compile, full, random_cases, small, target, tenth};

#[allow(unreachable_pub)]
#[path = "../testing/hoarder.rs"]
mod hoarder;

/// Asks for more each time, by a page, up to so many pages; then it begins anew.
struct Growing<'a> {
    program: &'a Program,
    extra: u64,
    most: u64,
}

impl Growing<'_> {
    fn boxed(program: &Program, most: u64) -> Box<dyn Allocator + '_> {
        Box::new(Growing { program, extra: 0, most })
    }
}

impl Allocator for Growing<'_> {
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

/// A run whose allocator may be replaced by one that asks for pages.
fn by_pages(config: RunConfig) -> RunConfig {
    let strategy = spec::Strategy { allocator: spec::Allocator::Direct, ..config.strategy };
    RunConfig { strategy, ..config }
}

/// With room for whatever a run leaves behind, however much more is asked for each time.
fn roomy() -> Target {
    Target { memory: Bytes(1 << 50), ..target() }
}

/// The ledger after every step and every evaluation of a run.
fn whole_run<'a>(
    program: &'a Program,
    run_schedule: RunSchedule,
    allocator: Box<dyn Allocator + 'a>,
) -> Ledger {
    let mut manager =
        MemoryManager::with_allocator(program, &roomy(), NoStorage::default(), allocator).unwrap();
    let mut first_iterations = FirstIterations::none(program);
    let mut sections = |like: fn(SectionKind) -> bool| {
        for (number, section) in program.sections.iter().enumerate().filter(|(_, section)| like(section.kind))
        {
            for _ in 0..section.times {
                for (index, instruction) in section.code.iter().enumerate() {
                    if !first_iterations.leaves_out(number, instruction) {
                        manager.advance(number, index).unwrap();
                    }
                }
                first_iterations.open(number);
            }
        }
    };
    sections(|kind| kind == SectionKind::Start);
    for step in 1..=run_schedule.steps {
        sections(SectionKind::is_of_step);
        if let Some(Evaluations { every, batches }) = run_schedule.evaluations
            && (step % every == 0 || step == run_schedule.steps)
        {
            (0..batches).for_each(|_| sections(SectionKind::is_of_evaluation));
        }
    }
    manager.ledger().clone()
}

/// Any run_schedule of a run that may be evaluated or not.
fn any_cadence() -> impl Any<Value = RunSchedule> {
    let evaluations = (1..=7usize, 1..=9usize);
    let evaluations = evaluations.prop_map(|(every, batches)| Evaluations { every, batches });
    // Growing without end, an allocator is followed to the end.
    let most = if full() { 40usize } else { 12 };
    (1..=most, evaluations)
        .prop_map(|(steps, evaluations)| RunSchedule { steps, evaluations: Some(evaluations) })
}

/// Makes an allocator for a program.
type Make = for<'p> fn(&'p Program) -> Box<dyn Allocator + 'p>;

const NOTHING_KEPT: Make = |program| allocator::of(program);

/// Those that remember: settled after a while, the same again after so many allocations, and never.
const REMEMBERING: [Make; 4] = [
    Hoarder::boxed,
    |program| Growing::boxed(program, 7),
    |program| Growing::boxed(program, 64),
    |program| Growing::boxed(program, u64::MAX),
];

fn any_allocator() -> impl Any<Value = Make> {
    let [hoarder, often, seldom, never] = REMEMBERING.map(Just);
    prop_oneof![Just(NOTHING_KEPT), hoarder, often, seldom, never]
}

proptest! {
    #![proptest_config(random_cases(tenth(128)))]

    #[test]
    fn what_is_left_out_changes_nothing(
        config in any_config(), run_schedule in any_cadence(), make in any_allocator(),
    ) {
        let config = by_pages(config);
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

    /// At limits on either memory, and on both, where what is short could be taken for nothing, or for less than the whole run
    /// lacks: just under what is reserved, in its last page, and just under what is live.
    #[test]
    fn a_limit_and_what_it_is_short_of_suffice(
        config in any_config(), target in any_target(), page in any_page(), context in any_context(),
        run_schedule in any_cadence(), other in option::of(any_allocator()),
    ) {
        let (config, make) = match other {
            Some(make) => (by_pages(config), make),
            None => (config, NOTHING_KEPT),
        };
        let target = Target { page, context, ..target };
        // What is cached goes back where memory is short, so that less may be enough; and where garbage is collected, pieces
        // are others.
        let (gives_back, collects) = match config.strategy.allocator {
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
        prop_assert_eq!((&free.out_of_memory, short), (&None, Short::default()));
        let near = |home, reserved: u64| {
            let live = peak_live(&program, &target, home);
            [reserved - 1, reserved.saturating_sub(page.0), live, live - 1]
        };
        let (needs, needed_by_host) = (context.0 + free.device.reserved_peak, free.host.reserved_peak);
        let on_device = near(Pool::Device, free.device.reserved_peak).map(|bytes| context.0 + bytes);
        let on_device = on_device.into_iter().chain([context.0, context.0 / 2]).map(|limit| [Some(limit), None]);
        let of_host = near(Pool::Host, needed_by_host).into_iter().chain([0]);
        let of_host = of_host.flat_map(|limit| [needs, needs - 1].map(|own| [Some(own), Some(limit)]));
        for limits in on_device.chain(of_host) {
            let (prediction, short) = within(limits);
            if !gives_back || prediction.out_of_memory.is_some() {
                prop_assert_eq!(&prediction.device, &free.device, "the need is what it is without the limit");
            }
            prop_assert_eq!(prediction.device.phase_peaks, free.device.phase_peaks);
            prop_assert_eq!(&prediction.host, &free.host, "and that of the host");
            let lacks = |needed: u64, limit: Option<u64>| limit.map_or(0, |limit| needed.saturating_sub(limit));
            let expected = Short { device: lacks(needs, limits[0]), host: lacks(needed_by_host, limits[1]) };
            prop_assert!(short == expected || gives_back && short.host == expected.host);
            prop_assert!(short.device <= expected.device || collects);
            if short == Short::default() {
                // What is live fills its pages.
                prop_assert_eq!(prediction.out_of_memory, None);
                continue;
            }
            let found = prediction.out_of_memory.expect("a limit is passed");
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

/// From a system's to one that is larger than most of what runs here need.
fn any_page() -> impl Any<Value = Bytes> {
    prop_oneof![Just(Bytes(4096)), Just(Bytes(1 << 16)), Just(Bytes(1 << 21))]
}

fn any_context() -> impl Any<Value = Bytes> {
    prop_oneof![Just(Bytes(0)), Just(Bytes(300 << 20))]
}

/// Where nothing is kept of the past, runs of any length need the same, and what tells takes no time.
#[test]
fn without_a_past_the_cadence_is_nothing() {
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

/// What is kept of the past settles, too.
#[test]
fn what_settles_is_not_followed_to_the_end() {
    let config = by_pages(small());
    let program = compile(&config, &target()).unwrap();
    let evaluations = Some(Evaluations { every: 7, batches: 1_000_000 });
    let of = |steps| {
        predict_with(&program, &target(), RunSchedule { steps, evaluations }, &Hoarder::boxed)
            .device
            .reserved_peak
    };
    assert_eq!(of(70), of(1_000_000_000));
}

proptest! {
    #![proptest_config(random_cases(if full() { 256 } else { 64 }))]

    /// At most a twentieth of what is alive, or where most of it comes and goes by copies, a quarter. Of 20,000 random
    /// programs without copies, 99 in 100 had no more than 0.3 %.
    #[test]
    fn gaps_are_few(mut config in any_config(), target in any_target()) {
        (config.strategy.allocator, config.strategy.leak) = (spec::Allocator::Arena, None);
        // What a page rounds up is no gap.
        let target = Target { page: target.alignment, ..target };
        let program = compile(&config, &target).unwrap();
        let (live, reserved) = (peak_live(&program, &target, Pool::Device), program.arenas[Pool::Device as usize]);
        let spec::Strategy { place, offload, .. } = &config.strategy;
        let gaps = if place.is_empty() && !offload.is_any() { live / 20 } else { live / 4 };
        prop_assert!(live <= reserved && reserved <= live + gaps, "{reserved} bytes for {live}");
    }
}
