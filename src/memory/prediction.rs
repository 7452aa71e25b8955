//! Predicts a run's memory: the ledger after a dry run of its program.

use super::allocator::{self, Allocator, CacheStats, rounded};
use super::dry_run::{DryRun, DryRunResult, DryRunStop};
use super::manager::MemoryManager;
use super::out_of_memory::{OutOfMemory, Shortfall};
use super::run_schedule::RunSchedule;
use super::step_work::StepWork;
use super::system::NoStorage;
use base::units::Bytes;
use compile::{Action, Program, Section};
use device::{Pool, Target, Usage};
use ops::DType;

/// The maximum number of steps in the search for the step that runs out of memory. Repeated states need fewer.
const MAX_STEPS: u64 = 1 << 10;

/// The maximum number of steps of a leaking run for which the smallest sufficient memory is searched. Leaks into a caching
/// pool leave no repeated state, so that each probe executes all steps.
const MAX_SEARCHED_STEPS: usize = 100;

/// The same for the batches of an evaluation that collects their outputs.
const MAX_SEARCHED_BATCHES: usize = 1000;

/// The predicted memory of a run, or where it runs out.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    pub device: Usage,
    /// Of both host pools together.
    pub host: Usage,
    pub pinned: Usage,
    /// Peak of the device's live bytes in the first optimizer step. Later ones need more if it creates states.
    pub first_step_peak: u64,
    /// The first request that exceeds a limit.
    pub out_of_memory: Option<OutOfMemory>,
    /// Sufficient bytes of device memory and host memory, as requested from the system: the reserved peak without a
    /// limit, unless a caching allocator manages with less by returning memory. (For long runs that leak, that is not searched.)
    sufficient: [u64; Pool::HOMES.len()],
    /// Statistics of the cache over the whole run.
    pub cache_stats: CacheStats,
    /// Bytes of all pools that each optimizer step leaks.
    pub leaked_bytes: u64,
    /// Bytes that each evaluation collects, by device.
    pub collected_bytes: [u64; Pool::HOMES.len()],
    /// If steps leak memory that has a limit: the number of steps that fit, with the evaluations between them,
    /// whatever the run's length.
    pub steps_until_oom: Option<u64>,
    /// Elements of all parameters, and of trainable ones.
    pub parameters: u64,
    pub trainable_parameters: u64,
    /// `None` if the model has no lookup table.
    pub embedding_dtypes: Option<EmbeddingDtypes>,
    /// FLOPs of an optimizer step: forward and backward pass, recomputation, and the total including the optimizer.
    pub model_flops: u64,
    pub recompute_flops: u64,
    pub hardware_flops: u64,
    /// The launches and transfers of an optimizer step.
    pub work: StepWork,
}

/// The dtypes that decide whether runs are compared on equal terms, beside those of matmuls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingDtypes {
    /// Of the lookup tables, as they are stored.
    pub tables: DType,
    /// Of the residual stream, which begins with the rows that are looked up.
    pub stream: DType,
}

impl EmbeddingDtypes {
    fn of(program: &Program) -> Option<EmbeddingDtypes> {
        let code = program.step().flat_map(|section| &section.code);
        code.into_iter().find_map(|instruction| {
            let Action::Launch { op, inputs, outputs, .. } = &instruction.action else { return None };
            let table = (0..inputs.len()).find(|input| op.looks_up(*input))?;
            let [tables, stream] = [inputs[table], outputs[0]].map(|value| program.ty(value).dtype);
            Some(EmbeddingDtypes { tables, stream })
        })
    }
}

impl Prediction {
    /// The shortfall of the target's memory for the whole run: with that much more, it runs.
    pub fn short(&self, target: &Target) -> Shortfall {
        Shortfall {
            device: target.short_of(Pool::Device, self.sufficient[Pool::Device as usize]),
            host: target.short_of(Pool::Host, self.sufficient[Pool::Host as usize]),
        }
    }
}

/// Predicts a run of a program on a target, following the run's schedule. If the run ends out of memory, the usage is
/// that of a run without limits.
pub fn predict(program: &Program, target: &Target, run_schedule: RunSchedule) -> Prediction {
    predict_with(program, target, run_schedule, &allocator::of)
}

/// Like [`predict`], with another allocator.
pub fn predict_with<'a>(
    program: &'a Program,
    target: &Target,
    run_schedule: RunSchedule,
    allocator: &dyn Fn(&'a Program) -> Box<dyn Allocator<'a> + 'a>,
) -> Prediction {
    let dry_run =
        |target: &Target, run_schedule: RunSchedule, max_steps: u64| -> Result<DryRunResult, DryRunStop> {
            let manager =
                MemoryManager::with_allocator(program, target, NoStorage::default(), allocator(program));
            let manager = manager.map_err(|failure| DryRunStop::of(failure, 0))?;
            DryRun::new(program, manager, target, max_steps).run(run_schedule)
        };
    let (result, out_of_memory) = match dry_run(target, run_schedule, u64::MAX) {
        Ok(result) => (result, None),
        Err(DryRunStop::OutOfMemory(found, _)) => {
            match dry_run(&target.boundless(), run_schedule, u64::MAX) {
                Ok(result) => (result, Some(*found)),
                Err(_) => unreachable!("the target has no memory limit"),
            }
        }
        Err(DryRunStop::TakesTooLong) => unreachable!("the number of steps has no limit"),
    };
    let DryRunResult { ledger, cache_stats, first_step_peak } = result;
    let mut sufficient = Pool::HOMES.map(|device| ledger.usage_at(device).reserved_peak);
    let leaked = Pool::HOMES.map(|device| leaked_bytes(program, target, device));
    let collected_bytes = collected_bytes(program, run_schedule);
    let is_long = leaked[Pool::Device as usize] > 0 && run_schedule.steps > MAX_SEARCHED_STEPS
        || collected_bytes[Pool::Device as usize] > 0
            && run_schedule.evaluation_batches() > MAX_SEARCHED_BATCHES;
    if out_of_memory.is_some() && program.allocator.is_caching() && !is_long {
        let runs = |target: &Target| dry_run(target, run_schedule, u64::MAX).is_ok();
        let device_bytes = &mut sufficient[Pool::Device as usize];
        *device_bytes = smallest_sufficient(target, *device_bytes, runs);
    }
    // Memory without a limit is exhausted at an unknown step.
    let mut leaking = Pool::HOMES.into_iter().zip(leaked).filter(|(_, leaked)| *leaked > 0).peekable();
    let has_limit = leaking.peek().is_some() && leaking.all(|(device, _)| target.limits(device));
    let unlimited_schedule = RunSchedule { steps: usize::MAX, ..run_schedule };
    let steps_until_oom = match has_limit.then(|| dry_run(target, unlimited_schedule, MAX_STEPS)) {
        Some(Err(DryRunStop::OutOfMemory(_, steps))) => Some(steps),
        Some(Err(DryRunStop::TakesTooLong) | Ok(_)) | None => None,
    };
    Prediction {
        device: *ledger.usage(Pool::Device),
        host: *ledger.usage_at(Pool::Host),
        pinned: *ledger.usage(Pool::Pinned),
        first_step_peak,
        out_of_memory,
        sufficient,
        cache_stats,
        leaked_bytes: leaked.iter().sum(),
        collected_bytes,
        steps_until_oom,
        parameters: program.parameter_count(|_| true),
        trainable_parameters: program.parameter_count(|bucket| bucket.trainable),
        embedding_dtypes: EmbeddingDtypes::of(program),
        model_flops: program.model_flops(),
        recompute_flops: program.recompute_flops(),
        hardware_flops: program.hardware_flops(),
        work: StepWork::of(program),
    }
}

/// Whether a run fits a target. It may fit less memory than its reserved peak without limits: a caching allocator
/// returns cached memory before a request fails.
pub fn fits(program: &Program, target: &Target, run_schedule: RunSchedule) -> bool {
    let manager = MemoryManager::new(program, target, NoStorage::default());
    manager.is_ok_and(|manager| DryRun::new(program, manager, target, u64::MAX).run(run_schedule).is_ok())
}

/// The smallest sufficient device memory, to a page; the available memory if that suffices. `most`: the reserved peak
/// without limits.
fn smallest_sufficient(target: &Target, most: u64, runs: impl Fn(&Target) -> bool) -> u64 {
    let suffices = |bytes: u64| {
        let memory = Bytes(target.context.0.saturating_add(bytes));
        runs(&Target { memory, host_memory: None, ..target.clone() })
    };
    let (available, page) = (target.available_at(Pool::Device), target.page.0);
    if suffices(available) {
        return available;
    }
    let (mut fails, mut sufficient) = (available / page, (most / page).max(available / page + 1));
    // With garbage collection, fragmentation depends on the limit, so `most` may not suffice.
    while !suffices(sufficient * page) {
        (fails, sufficient) = (sufficient, 2 * sufficient);
    }
    while fails + 1 < sufficient {
        let middle = fails.midpoint(sufficient);
        *if suffices(middle * page) { &mut sufficient } else { &mut fails } = middle;
    }
    sufficient * page
}

/// Bytes that each iteration of a section leaks in the pools of a device.
fn leaked_in(program: &Program, section: &Section, target: &Target, device: Pool) -> u64 {
    let leaked = section.code.iter().filter_map(|instruction| match instruction.action {
        Action::Leak(storage) if program.value(storage).pool.home() == device => Some(storage),
        _ => None,
    });
    leaked.map(|storage| rounded(program, storage, target)).sum()
}

/// Bytes that an optimizer step leaks in the pools of a device.
fn leaked_bytes(program: &Program, target: &Target, device: Pool) -> u64 {
    let section_bytes =
        |section: &Section| section.repeat_count as u64 * leaked_in(program, section, target, device);
    program.step().map(section_bytes).sum()
}

/// Bytes that each evaluation collects, by device.
fn collected_bytes(program: &Program, run_schedule: RunSchedule) -> [u64; Pool::HOMES.len()] {
    let batches = run_schedule.evaluation_batches() as u64;
    let mut bytes = [0; Pool::HOMES.len()];
    for section in program.evaluation() {
        for instruction in &section.code {
            if let Action::Collect { value, .. } = instruction.action {
                let collected = program.value(value);
                bytes[collected.pool.home() as usize] +=
                    batches * section.repeat_count as u64 * collected.ty.bytes();
            }
        }
    }
    bytes
}

/// The peak of live bytes of values in the pools of a device together: a lower bound of any allocator's reserved bytes.
pub fn peak_live(program: &Program, target: &Target, device: Pool) -> u64 {
    let (mut live, mut peak) = (0, 0);
    let in_device_pools = |storage| program.value(storage).pool.home() == device;
    for (number, index) in program.liveness_order() {
        let section = &program.sections[number];
        if index == 0 {
            // The last iteration adds to what the iterations before it leaked.
            live +=
                section.repeat_count.saturating_sub(1) as u64 * leaked_in(program, section, target, device);
        }
        match section.code[index].action {
            Action::Allocate(storage) if in_device_pools(storage) => {
                live += rounded(program, storage, target);
                peak = peak.max(live);
            }
            Action::Free(storage) if in_device_pools(storage) => {
                live -= rounded(program, storage, target);
            }
            _ => {}
        }
    }
    peak
}

/// Live bytes of the device pool after each instruction, by section, without a memory limit; for repeated code, once
/// lazy initialisation is complete.
pub fn live_bytes(program: &Program, target: &Target) -> Vec<Vec<u64>> {
    let Ok(mut manager) = MemoryManager::new(program, &target.boundless(), NoStorage::default()) else {
        unreachable!("the target has no memory limit")
    };
    let mut live: Vec<Vec<u64>> =
        program.sections.iter().map(|section| vec![0; section.code.len()]).collect();
    for (section, index) in program.liveness_order() {
        if manager.advance(section, index).is_err() {
            unreachable!("the target has no memory limit");
        }
        live[section][index] = manager.ledger().usage(Pool::Device).live.total();
    }
    live
}
