//! A run gone through without storage. What comes again and again is left out.

use super::allocator::CacheWork;
use super::leaked::Leaked;
use super::manager::{MemoryManager, State};
use super::out_of_memory::{Failure, OutOfMemory};
use super::run_schedule::{EvaluationCycle, RunSchedule};
use super::system::NoStorage;
use compile::{FirstIterations, Program, Section, SectionKind};
use device::{Ledger, Pool, Target};

/// Why a walk without storage went no further.
pub(super) enum DryRunStop {
    /// And after how many steps.
    OutOfMemory(Box<OutOfMemory>, u64),
    TakesTooLong,
}

impl DryRunStop {
    pub(super) fn of(failure: Failure, steps: u64) -> DryRunStop {
        match failure {
            Failure::OutOfMemory(found) => DryRunStop::OutOfMemory(found, steps),
            Failure::Device(error) => unreachable!("nothing is asked of a device: {error}"),
            Failure::Weights(error) => unreachable!("no file is read: {error}"),
        }
    }
}

/// What a whole run came to.
pub(super) struct DryRunResult {
    pub(super) ledger: Ledger,
    pub(super) cache_work: CacheWork,
}

/// A run without storage.
pub(super) struct DryRun<'a> {
    program: &'a Program,
    manager: MemoryManager<'a, NoStorage>,
    first_iterations: FirstIterations,
    room: Room,
    steps: Steps,
}

/// Optimizer steps of a dry_run.
struct Steps {
    /// All that have been taken, those that were left out among them.
    taken: u64,
    /// How many may yet be gone through.
    left: u64,
}

/// What there is room for, by home.
struct Room {
    available: [u64; Pool::HOMES.len()],
    /// The most that was reserved in the cycle that is looked for.
    most: [u64; Pool::HOMES.len()],
}

impl Room {
    fn of(target: &Target) -> Room {
        Room { available: Pool::HOMES.map(|home| target.available_at(home)), most: Default::default() }
    }

    fn observe(&mut self, ledger: &Ledger) {
        for (most, home) in self.most.iter_mut().zip(Pool::HOMES) {
            *most = (*most).max(ledger.usage_at(home).reserved);
        }
    }

    fn widen(&mut self, others: [u64; Pool::HOMES.len()]) {
        self.most.iter_mut().zip(others).for_each(|(most, other)| *most = other.max(*most));
    }

    /// How often a cycle can come again that leaves so much behind each time.
    fn for_more(&self, leaked: &Leaked) -> usize {
        let rooms = Pool::HOMES.into_iter().zip(self.available).zip(self.most);
        let rooms = rooms.map(|((home, available), most)| {
            available.saturating_sub(most).checked_div(leaked.reserved_at(home)).unwrap_or(u64::MAX)
        });
        rooms.min().map_or(usize::MAX, |room| usize::try_from(room).unwrap_or(usize::MAX))
    }
}

/// What a walk has come to.
struct Moment {
    state: State,
    leaked: Leaked,
    work: CacheWork,
    steps: u64,
}

impl<'a> DryRun<'a> {
    /// From the start on, within the target's limits. At most so many steps are gone through; those that are left out do not count.
    pub(super) fn new(
        program: &'a Program,
        manager: MemoryManager<'a, NoStorage>,
        target: &Target,
        most: u64,
    ) -> DryRun<'a> {
        let (room, steps) = (Room::of(target), Steps { taken: 0, left: most });
        DryRun { program, manager, first_iterations: FirstIterations::none(program), room, steps }
    }

    pub(super) fn run(mut self, run_schedule: RunSchedule) -> Result<DryRunResult, DryRunStop> {
        self.go(run_schedule)?;
        Ok(DryRunResult { ledger: self.manager.ledger().clone(), cache_work: self.manager.cache_work() })
    }

    fn go(&mut self, run_schedule: RunSchedule) -> Result<(), DryRunStop> {
        self.sections(|section| section.kind == SectionKind::Start)?;
        for (times, round) in run_schedule.rounds() {
            self.repeat(times, |dry_run| dry_run.round(round))?;
        }
        Ok(())
    }

    fn round(&mut self, round: EvaluationCycle) -> Result<(), DryRunStop> {
        self.repeat(round.steps, |dry_run| {
            dry_run.steps.left = dry_run.steps.left.checked_sub(1).ok_or(DryRunStop::TakesTooLong)?;
            dry_run.sections(|section| section.kind.is_of_step())?;
            dry_run.steps.taken += 1;
            Ok(())
        })?;
        self.repeat(round.evaluated, |dry_run| dry_run.sections(|section| section.kind.is_of_evaluation()))
    }

    /// Goes through the sections that are like this, each its times in a row.
    fn sections(&mut self, like: fn(&Section) -> bool) -> Result<(), DryRunStop> {
        let program = self.program;
        for (number, section) in program.sections.iter().enumerate().filter(|(_, section)| like(section)) {
            self.repeat(section.times, |dry_run| {
                let code = section.code.iter().enumerate();
                let due =
                    code.filter(|(_, instruction)| !dry_run.first_iterations.leaves_out(number, instruction));
                due.map(|(index, _)| index).try_for_each(|index| {
                    let advanced = dry_run.manager.advance(number, index);
                    dry_run.room.observe(dry_run.manager.ledger());
                    advanced.map_err(|failure| DryRunStop::of(failure, dry_run.steps.taken))
                })?;
                dry_run.first_iterations.open(number);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Goes through a part of the run so many times, or as often as has the same effect: once memory is as it was some
    /// times before, but for what was left behind, what happened since then happens again and again. A cycle is found by keeping
    /// one state to compare with, and replacing it after ever more times (Brent 1980).
    fn repeat(
        &mut self,
        times: usize,
        mut part: impl FnMut(&mut Self) -> Result<(), DryRunStop>,
    ) -> Result<(), DryRunStop> {
        if times < 2 {
            return (0..times).try_for_each(|_| part(self));
        }
        let mut left = times;
        let mut before = std::mem::take(&mut self.room.most);
        let (mut kept, mut age, mut most) = (self.moment(), 0, 1);
        while left > 0 {
            part(self)?;
            left -= 1;
            age += 1;
            if left == 0 {
                break;
            }
            let repeated = self.manager.is_in(&kept.state);
            if repeated {
                left -= age * self.skip(&kept, left / age);
            }
            if repeated || age == most {
                (kept, age, most) = (self.moment(), 0, if repeated { 1 } else { 2 * most });
                self.room.widen(before);
                before = std::mem::take(&mut self.room.most);
            }
        }
        self.room.widen(before);
        Ok(())
    }

    fn moment(&self) -> Moment {
        Moment {
            state: self.manager.state(),
            leaked: *self.manager.leaked(),
            work: self.manager.cache_work(),
            steps: self.steps.taken,
        }
    }

    /// Leaves out as many as it can of so many cycles like the one since then: returns how many. Where nothing is left behind that
    /// is all, since no peak is new. Else each has peaks higher than the one before, by what that left behind: the last has the
    /// highest, and is gone through, and so is the one that there is no room for.
    fn skip(&mut self, since: &Moment, cycles: usize) -> usize {
        let leaked = self.manager.leaked().since(&since.leaked);
        let times = match leaked.total() {
            0 => cycles,
            _ => cycles.saturating_sub(1).min(self.room.for_more(&leaked)),
        };
        let work = self.manager.cache_work().since(&since.work);
        self.manager.repeat(times as u64, &leaked, &work);
        self.steps.taken += times as u64 * (self.steps.taken - since.steps);
        times
    }
}
