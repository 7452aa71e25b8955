//! Executes a run's allocations without storage, and skips repeated cycles.

use std::collections::HashSet;

use super::allocator::CacheStats;
use super::leaked::Leaked;
use super::manager::{MemoryManager, MemoryState};
use super::out_of_memory::{Failure, OutOfMemory};
use super::run_schedule::{EvaluationCycle, RunSchedule};
use super::system::NoStorage;
use compile::{FirstIterations, Program, Section, SectionKind};
use device::{Ledger, Pool, Target};

/// Why a dry run stopped.
pub(super) enum DryRunStop {
    /// With the number of completed steps.
    OutOfMemory(Box<OutOfMemory>, u64),
    TakesTooLong,
}

impl DryRunStop {
    /// The end of an optimizer step, counted from 1.
    fn in_step(mut self, step: u64) -> DryRunStop {
        if let DryRunStop::OutOfMemory(found, _) = &mut self {
            found.step = Some(step);
        }
        self
    }

    pub(super) fn of(failure: Failure, steps: u64) -> DryRunStop {
        match failure {
            Failure::OutOfMemory(found) => DryRunStop::OutOfMemory(found, steps),
            Failure::Device(error) => unreachable!("a dry run uses no device: {error}"),
            Failure::Weights(error) => unreachable!("a dry run reads no files: {error}"),
        }
    }
}

/// The result of a whole run.
pub(super) struct DryRunResult {
    pub(super) ledger: Ledger,
    pub(super) cache_stats: CacheStats,
    /// Peak of the device's live bytes in the first optimizer step.
    pub(super) first_step_peak: u64,
}

/// A dry run.
pub(super) struct DryRun<'a> {
    program: &'a Program,
    manager: MemoryManager<'a, NoStorage>,
    first_iterations: FirstIterations,
    memory_use: MemoryUse,
    steps: Steps,
    /// Whether the program leaks into the allocator's blocks. Then steps do not repeat, and the allocator's state grows:
    /// compared after each step, it would take time that is quadratic in the number of steps.
    leaks_blocks: bool,
    /// Whether micro-batches have different lengths.
    lengths_vary: bool,
    /// The current step, or the current batch of an evaluation, from 0.
    batch: usize,
    /// The lengths of the batches so far, if that is all that their effect depends on.
    known_batches: HashSet<(SectionKind, &'a [u32])>,
    first_step_peak: u64,
}

/// Optimizer steps of a dry run.
struct Steps {
    /// Completed steps, skipped ones included.
    taken: u64,
    /// Steps that may still be executed.
    left: u64,
}

/// Available and used memory, by device.
struct MemoryUse {
    available: [u64; Pool::HOMES.len()],
    /// The peak of reserved bytes since the last snapshot.
    peak: [u64; Pool::HOMES.len()],
}

impl MemoryUse {
    fn of(target: &Target) -> MemoryUse {
        MemoryUse {
            available: Pool::HOMES.map(|device| target.available_at(device)),
            peak: Default::default(),
        }
    }

    fn observe(&mut self, ledger: &Ledger) {
        for (most, device) in self.peak.iter_mut().zip(Pool::HOMES) {
            *most = (*most).max(ledger.usage_at(device).reserved);
        }
    }

    fn merge_peaks(&mut self, others: [u64; Pool::HOMES.len()]) {
        self.peak.iter_mut().zip(others).for_each(|(most, other)| *most = other.max(*most));
    }

    /// The number of further cycles that fit if each leaks `leaked`.
    fn cycles_that_fit(&self, leaked: &Leaked) -> usize {
        let cycles = Pool::HOMES.into_iter().zip(self.available).zip(self.peak);
        let cycles = cycles.map(|((device, available), peak)| {
            available.saturating_sub(peak).checked_div(leaked.reserved_at(device)).unwrap_or(u64::MAX)
        });
        cycles.min().map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX))
    }
}

/// A snapshot of a dry run.
struct Snapshot {
    state: MemoryState,
    leaked: Leaked,
    stats: CacheStats,
    steps: u64,
}

impl<'a> DryRun<'a> {
    /// A dry run within the target's limits. At most `most` steps are executed; skipped steps do not count.
    pub(super) fn new(
        program: &'a Program,
        manager: MemoryManager<'a, NoStorage>,
        target: &Target,
        most: u64,
    ) -> DryRun<'a> {
        let (memory_use, steps) = (MemoryUse::of(target), Steps { taken: 0, left: most });
        let (first_iterations, leaks_blocks) = (FirstIterations::new(program), manager.leaks_blocks());
        DryRun {
            program,
            manager,
            first_iterations,
            memory_use,
            steps,
            leaks_blocks,
            lengths_vary: program.lengths.as_ref().is_some_and(|of| of.lengths.steps() > 0),
            batch: 0,
            known_batches: HashSet::new(),
            first_step_peak: 0,
        }
    }

    pub(super) fn run(mut self, run_schedule: RunSchedule) -> Result<DryRunResult, DryRunStop> {
        self.execute(run_schedule)?;
        Ok(DryRunResult {
            ledger: self.manager.ledger().clone(),
            cache_stats: self.manager.cache_stats(),
            first_step_peak: self.first_step_peak,
        })
    }

    fn execute(&mut self, run_schedule: RunSchedule) -> Result<(), DryRunStop> {
        self.run_sections(|section| section.kind == SectionKind::Start)?;
        for (times, cycle) in run_schedule.cycles() {
            self.repeat(times, |dry_run| dry_run.cycle(cycle))?;
        }
        Ok(())
    }

    fn cycle(&mut self, cycle: EvaluationCycle) -> Result<(), DryRunStop> {
        self.repeat(cycle.steps, |dry_run| {
            dry_run.batch = dry_run.steps.taken as usize;
            let step = dry_run.steps.taken + 1;
            if dry_run.is_known(SectionKind::First) {
                dry_run.steps.taken = step;
                return Ok(());
            }
            dry_run.steps.left = dry_run.steps.left.checked_sub(1).ok_or(DryRunStop::TakesTooLong)?;
            dry_run.run_sections(|section| section.kind.is_in_step()).map_err(|stop| stop.in_step(step))?;
            dry_run.steps.taken = step;
            if step == 1 {
                dry_run.first_step_peak = dry_run.manager.ledger().usage(Pool::Device).step_peak();
            }
            Ok(())
        })?;
        self.batch = 0;
        self.repeat(cycle.evaluation_batches, |dry_run| {
            if !dry_run.is_known(SectionKind::Evaluation) {
                dry_run.run_sections(|section| section.kind.is_in_evaluation())?;
            }
            dry_run.batch += 1;
            Ok(())
        })?;
        let steps = self.steps.taken;
        self.manager.release_collected().map_err(|error| DryRunStop::of(error.into(), steps))
    }

    /// Whether a batch with the same lengths had the same effect before: if lengths vary and the allocator keeps nothing
    /// between batches. The first step differs from later ones.
    fn is_known(&mut self, kind: SectionKind) -> bool {
        let Some(of) = self.program.lengths.as_ref().filter(|_| self.lengths_vary) else { return false };
        if self.program.allocator.is_caching() || (kind == SectionKind::First && self.batch == 0) {
            return false;
        }
        let lengths = match kind {
            SectionKind::Evaluation => of.lengths.of_evaluation(self.batch),
            _ => of.lengths.of_step(self.batch),
        };
        !self.known_batches.insert((kind, lengths))
    }

    /// Runs the sections that match, each `repeat_count` times in succession.
    fn run_sections(&mut self, matches: fn(&Section) -> bool) -> Result<(), DryRunStop> {
        let program = self.program;
        let mut micro_batch = 0;
        for (number, section) in program.sections.iter().enumerate().filter(|(_, section)| matches(section)) {
            self.repeat(section.repeat_count, |dry_run| {
                dry_run.manager.select(program.of_micro_batch(section.kind, dry_run.batch, micro_batch));
                micro_batch += 1;
                let code = section.code.iter().enumerate();
                let executed =
                    code.filter(|(_, instruction)| !dry_run.first_iterations.skips(number, instruction));
                executed.map(|(index, _)| index).try_for_each(|index| {
                    let advanced = dry_run.manager.advance(number, index);
                    dry_run.memory_use.observe(dry_run.manager.ledger());
                    advanced.map_err(|failure| DryRunStop::of(failure, dry_run.steps.taken))
                })?;
                dry_run.first_iterations.complete(number);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Executes a part of the run `times` times, skipping repetitions: if the memory state equals an earlier one
    /// (leaks excepted), the iterations since then repeat. Cycles are found by comparing with one stored snapshot
    /// that is replaced at growing intervals (Brent 1980). If the program leaks into the allocator's blocks, the snapshot has
    /// the allocator's state only once everything else has repeated, as in evaluations.
    fn repeat(
        &mut self,
        times: usize,
        mut part: impl FnMut(&mut Self) -> Result<(), DryRunStop>,
    ) -> Result<(), DryRunStop> {
        // Micro-batches of different lengths do not repeat.
        if times < 2 || self.lengths_vary {
            return (0..times).try_for_each(|_| part(self));
        }
        let mut left = times;
        let mut before = std::mem::take(&mut self.memory_use.peak);
        let (mut kept, mut age, mut most) = (self.snapshot(!self.leaks_blocks), 0, 1);
        while left > 0 {
            part(self)?;
            left -= 1;
            age += 1;
            if left == 0 {
                break;
            }
            let matches = self.manager.matches(&kept.state);
            let repeated = matches == Some(true);
            if repeated {
                left -= age * self.skip(&kept, left / age);
            }
            if matches != Some(false) || age == most {
                let with_allocator = matches != Some(false) || !self.leaks_blocks;
                (kept, age, most) = (self.snapshot(with_allocator), 0, if repeated { 1 } else { 2 * most });
                self.memory_use.merge_peaks(before);
                before = std::mem::take(&mut self.memory_use.peak);
            }
        }
        self.memory_use.merge_peaks(before);
        Ok(())
    }

    fn snapshot(&self, with_allocator: bool) -> Snapshot {
        Snapshot {
            state: self.manager.state(with_allocator),
            leaked: *self.manager.leaked(),
            stats: self.manager.cache_stats(),
            steps: self.steps.taken,
        }
    }

    /// Skips cycles like the one since the snapshot; returns the number. Without leaks all can be skipped, as no peak
    /// is new. With leaks each cycle's peaks exceed the last one's by the leaked bytes: the last cycle, which has the
    /// highest peaks, and the first that does not fit are executed.
    fn skip(&mut self, since: &Snapshot, cycles: usize) -> usize {
        let leaked = self.manager.leaked().since(&since.leaked);
        let times = match leaked.total() {
            0 => cycles,
            _ => cycles.saturating_sub(1).min(self.memory_use.cycles_that_fit(&leaked)),
        };
        let stats = self.manager.cache_stats().since(&since.stats);
        self.manager.skip_cycles(times as u64, &leaked, &stats);
        self.steps.taken += times as u64 * (self.steps.taken - since.steps);
        times
    }
}
