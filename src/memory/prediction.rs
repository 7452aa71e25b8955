//! The ledger of a program walked without storage.

use super::allocator::{self, Allocator, CacheWork, rounded};
use super::dry_run::{DryRun, DryRunResult, DryRunStop};
use super::manager::MemoryManager;
use super::out_of_memory::{OutOfMemory, Short};
use super::run_schedule::RunSchedule;
use super::step_work::StepWork;
use super::system::NoStorage;
use base::units::Bytes;
use compile::{Action, Program, Section};
use device::{Pool, Target, Usage};

/// So many steps are gone through at the most to find out how many there is room for. Fewer are enough where memory repeats
/// itself.
const LONGEST: u64 = 1 << 10;

/// What a run will need, or where it will run out.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    pub device: Usage,
    /// Of both of the host's pools together.
    pub host: Usage,
    pub pinned: Usage,
    /// The first request that the limit has no room for.
    pub out_of_memory: Option<OutOfMemory>,
    /// What the run could do with of the device's memory and the host's, in bytes asked of the system: as much as it takes with
    /// memory enough, unless it gives something back where there is less.
    enough: [u64; Pool::HOMES.len()],
    /// What a cache does in the whole run.
    pub cache_work: CacheWork,
    /// Bytes of all pools that each optimizer step leaves behind for ever.
    pub leaked_bytes: u64,
    /// Where steps leave something behind in memory that has a limit: how many there is room for, with the evaluations between
    /// them, however many the run takes.
    pub steps_until_oom: Option<u64>,
    /// Numbers in the model's parameters, and in those of them that are trained.
    pub parameters: u64,
    pub trainable_parameters: u64,
    /// FLOPs of an optimizer step: of the forward and the backward pass, of what is computed again, and of all together with
    /// what the optimizer computes.
    pub model_flops: u64,
    pub recompute_flops: u64,
    pub hardware_flops: u64,
    /// What such a step has processors and copies do.
    pub work: StepWork,
}

impl Prediction {
    /// What the target's memory lacks for the whole run: with so much more, it runs.
    pub fn short(&self, target: &Target) -> Short {
        Short {
            device: target.short_of(Pool::Device, self.enough[Pool::Device as usize]),
            host: target.short_of(Pool::Host, self.enough[Pool::Host as usize]),
        }
    }
}

/// Predicts a run of a program on a target, in the order that the run goes through it. Where the run will end out of
/// memory, the usage is what it would be with memory enough.
pub fn predict(program: &Program, target: &Target, run_schedule: RunSchedule) -> Prediction {
    predict_with(program, target, run_schedule, &allocator::of)
}

/// The same with any allocator.
pub fn predict_with<'a>(
    program: &'a Program,
    target: &Target,
    run_schedule: RunSchedule,
    allocator: &dyn Fn(&'a Program) -> Box<dyn Allocator + 'a>,
) -> Prediction {
    let dry_run =
        |target: &Target, run_schedule: RunSchedule, most: u64| -> Result<DryRunResult, DryRunStop> {
            let manager =
                MemoryManager::with_allocator(program, target, NoStorage::default(), allocator(program));
            let manager = manager.map_err(|failure| DryRunStop::of(failure, 0))?;
            DryRun::new(program, manager, target, most).run(run_schedule)
        };
    let (walked, out_of_memory) = match dry_run(target, run_schedule, u64::MAX) {
        Ok(walked) => (walked, None),
        Err(DryRunStop::OutOfMemory(found, _)) => {
            match dry_run(&target.boundless(), run_schedule, u64::MAX) {
                Ok(walked) => (walked, Some(*found)),
                Err(_) => unreachable!("there is memory enough"),
            }
        }
        Err(DryRunStop::TakesTooLong) => unreachable!("it may take as long as it does"),
    };
    let DryRunResult { ledger, cache_work } = walked;
    let mut enough = Pool::HOMES.map(|home| ledger.usage_at(home).reserved_peak);
    if out_of_memory.is_some() && program.allocator.is_caching() {
        let runs = |target: &Target| dry_run(target, run_schedule, u64::MAX).is_ok();
        let of_device = &mut enough[Pool::Device as usize];
        *of_device = least(target, *of_device, runs);
    }
    let leaked = Pool::HOMES.map(|home| leaked_bytes(program, target, home));
    // What has no limit fills up the machine sooner than anybody knows.
    let mut leaking = Pool::HOMES.into_iter().zip(leaked).filter(|(_, leaked)| *leaked > 0).peekable();
    let fills_up = leaking.peek().is_some() && leaking.all(|(home, _)| target.limits(home));
    let endless = RunSchedule { steps: usize::MAX, ..run_schedule };
    let steps_until_oom = match fills_up.then(|| dry_run(target, endless, LONGEST)) {
        Some(Err(DryRunStop::OutOfMemory(_, steps))) => Some(steps),
        Some(Err(DryRunStop::TakesTooLong) | Ok(_)) | None => None,
    };
    let work = StepWork::of(program);
    Prediction {
        device: *ledger.usage(Pool::Device),
        host: *ledger.usage_at(Pool::Host),
        pinned: *ledger.usage(Pool::Pinned),
        out_of_memory,
        enough,
        cache_work,
        leaked_bytes: leaked.iter().sum(),
        steps_until_oom,
        parameters: program.numbers_of(|_| true),
        trainable_parameters: program.numbers_of(|bucket| bucket.trainable),
        model_flops: program.model_flops(),
        recompute_flops: program.recompute_flops(),
        hardware_flops: work.flops(),
        work,
    }
}

/// Whether a target has room for a run. It may have where it has less than the run takes with memory enough: what is cached
/// goes back before a request fails.
pub fn fits(program: &Program, target: &Target, run_schedule: RunSchedule) -> bool {
    let manager = MemoryManager::new(program, target, NoStorage::default());
    manager.is_ok_and(|manager| DryRun::new(program, manager, target, u64::MAX).run(run_schedule).is_ok())
}

/// Bytes of the device's memory that a run does with and, one page less, does not; those that there are if they are enough. `most`
/// is what it takes with memory enough.
fn least(target: &Target, most: u64, runs: impl Fn(&Target) -> bool) -> u64 {
    let does_with = |bytes: u64| {
        let memory = Bytes(target.context.0.saturating_add(bytes));
        runs(&Target { memory, host_memory: None, ..target.clone() })
    };
    let (available, page) = (target.available_at(Pool::Device), target.page.0);
    if does_with(available) {
        return available;
    }
    let (mut fails, mut enough) = (available / page, (most / page).max(available / page + 1));
    // Where garbage is collected, memory may be left in other pieces.
    while !does_with(enough * page) {
        (fails, enough) = (enough, 2 * enough);
    }
    while fails + 1 < enough {
        let middle = fails.midpoint(enough);
        *if does_with(middle * page) { &mut enough } else { &mut fails } = middle;
    }
    enough * page
}

/// What a section leaves behind in the pools of a home, each time.
fn leaked_in(program: &Program, section: &Section, target: &Target, home: Pool) -> u64 {
    let leaked = section.code.iter().filter_map(|instruction| match instruction.action {
        Action::Leak(storage) if program.value(storage).pool.home() == home => Some(storage),
        _ => None,
    });
    leaked.map(|storage| rounded(program, storage, target)).sum()
}

/// What an optimizer step does.
fn leaked_bytes(program: &Program, target: &Target, home: Pool) -> u64 {
    let of_section = |section: &Section| section.times as u64 * leaked_in(program, section, target, home);
    program.step().map(of_section).sum()
}

/// The most bytes that are ever live in the pools of a home together: whatever the allocator, it asks the system for as
/// much at least.
pub fn peak_live(program: &Program, target: &Target, home: Pool) -> u64 {
    let (mut live, mut peak) = (0, 0);
    let is_there = |storage| program.value(storage).pool.home() == home;
    for (number, index) in program.walk() {
        let section = &program.sections[number];
        if index == 0 {
            // The last of its times comes after what the others left behind.
            live += section.times.saturating_sub(1) as u64 * leaked_in(program, section, target, home);
        }
        match section.code[index].action {
            Action::Allocate(storage) if is_there(storage) => {
                live += rounded(program, storage, target);
                peak = peak.max(live);
            }
            Action::Free(storage) if is_there(storage) => {
                live -= rounded(program, storage, target);
            }
            _ => {}
        }
    }
    peak
}

/// Live bytes of the device pool after each instruction, by section, with memory enough; of what is done again and again, once
/// all is there.
pub fn live_bytes(program: &Program, target: &Target) -> Vec<Vec<u64>> {
    let Ok(mut manager) = MemoryManager::new(program, &target.boundless(), NoStorage::default()) else {
        unreachable!("there is memory enough")
    };
    let mut live: Vec<Vec<u64>> =
        program.sections.iter().map(|section| vec![0; section.code.len()]).collect();
    for (section, index) in program.walk() {
        if manager.advance(section, index).is_err() {
            unreachable!("there is memory enough");
        }
        live[section][index] = manager.ledger().usage(Pool::Device).live.total();
    }
    live
}
