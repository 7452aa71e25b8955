//! The largest micro-batch that a target's memory allows.

use super::Compiler;
use base::search;
use base::units::Bytes;
use compile::{Program, Violation};
use device::{Pool, Target};
use memory::{RunSchedule, StepWork, peak_live, predict};
use spec::{Budget, Recompute, RunConfig, Train};

/// The largest micro-batch that the search considers.
pub const LARGEST_BATCH: usize = 1 << 20;

/// The largest micro-batch, and the work of a step with it (for time estimates).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LargestMicroBatch {
    /// 0 if not even one sample fits.
    pub(super) micro_batch: usize,
    /// `None` if no sample fits, or if the search ended at `LARGEST_BATCH`.
    pub(super) work: Option<StepWork>,
}

/// The largest micro-batch of a rank that fits its target. It assumes that the micro-batch divides the batch: a smaller last micro-batch
/// needs no more memory.
///
/// With offload, placement or a caching allocator, memory does not always grow with the micro-batch: larger values
/// reach the offload threshold, and fragmentation differs. The result fits, but a slightly larger one may fit, too, and
/// a smaller last micro-batch may keep values below the offload threshold on the device.
///
/// A recompute budget in bytes, or "auto", allows other plans at other batch sizes: the result holds for the plan with
/// the lowest peak. A budget as a share keeps the plan of this run.
pub(super) fn largest(
    compiler: &mut Compiler<'_>,
    config: &RunConfig,
    target: &Target,
) -> Result<LargestMicroBatch, Violation> {
    let mut available = available_on(target);
    let (boundless, run_schedule) = (target.boundless(), RunSchedule::of(config));
    let recompute_plan = match config.strategy.recompute {
        // Larger batches recompute more. The largest one uses the plan with the lowest peak.
        Recompute::Budget(budget @ (Budget::Bytes(_) | Budget::Memory)) => {
            if let Budget::Bytes(Bytes(most)) = budget {
                available[Pool::Device as usize] = available[Pool::Device as usize].min(most);
            }
            compiler.pareto_front(config)?.lowest_peak().recompute_plan.clone()
        }
        _ => compiler.compile(config)?.recompute_plan.clone(),
    };
    // With lengths that vary, each sample counts as the longest of the data.
    let config = &config.at_longest();
    let batch = |micro_batch: usize| {
        let batch_size = micro_batch * config.strategy.accumulate * config.ranks();
        RunConfig { train: Train { batch_size, ..config.train.clone() }, ..config.clone() }
    };
    // First search by the live peak, which is cheap to compute. It is a lower bound of the reserved bytes, so the
    // result is an upper bound of the micro-batch. Nearly always it is the answer: only fragmentation makes a smaller
    // one necessary.
    let bound = largest_live(available, |micro_batch| {
        let compiled = compiler.compile_unplaced(&batch(micro_batch), &recompute_plan)?;
        let live = |home| peak_live(&compiled.program, target, home);
        // An unlimited memory always suffices.
        Ok(Pool::HOMES.map(|home| if target.available_at(home) < u64::MAX { live(home) } else { 0 }))
    })?;
    let has_budget = available != available_on(target);
    let run_fits = |program: &Program| {
        // With a caching allocator, a full memory returns cached blocks and tries again, so simulate the run with the
        // limit.
        if program.allocator.is_caching() && !memory::fits(program, target, run_schedule) {
            return false;
        }
        // Without a budget, that is the answer. A budget also limits the reserved bytes of a run without a memory
        // limit.
        if program.allocator.is_caching() && !has_budget {
            return true;
        }
        let needed = predict(program, &boundless, run_schedule);
        is_available([needed.device.reserved_peak, needed.host.reserved_peak], available)
    };
    let (mut fits, mut fails) = (0, bound + 1);
    let mut probe = bound;
    let (mut step, mut work) = (1, None);
    while fits + 1 < fails {
        let compiled = compiler.compile_with(&batch(probe), &recompute_plan)?;
        if run_fits(&compiled.program) {
            fits = probe;
            work = (probe < LARGEST_BATCH).then(|| StepWork::of(&compiled.program));
        } else {
            fails = probe;
        }
        probe = if fits == 0 { fails.saturating_sub(step).max(1) } else { fits.midpoint(fails) };
        step *= 2;
    }
    Ok(LargestMicroBatch { micro_batch: fits, work })
}

/// Bytes in each memory: the device's and the host's.
type DeviceBytes = [u64; Pool::HOMES.len()];

fn available_on(target: &Target) -> DeviceBytes {
    Pool::HOMES.map(|home| target.available_at(home))
}

fn is_available(needed: DeviceBytes, available: DeviceBytes) -> bool {
    needed.iter().zip(available).all(|(&needed, available)| needed <= available)
}

/// The largest micro-batch whose live peak fits in the available bytes, or 0. The peak is nearly linear in the
/// micro-batch: start with a linear guess, then step and bisect to the exact answer.
fn largest_live(
    available: DeviceBytes,
    mut live: impl FnMut(usize) -> Result<DeviceBytes, Violation>,
) -> Result<usize, Violation> {
    let one = live(1)?;
    if !is_available(one, available) {
        return Ok(0);
    }
    let two = live(2)?;
    let guesses = (0..available.len()).map(|home| {
        let slope = two[home].saturating_sub(one[home]).max(1);
        1 + ((available[home] - one[home]) / slope).min(LARGEST_BATCH as u64 - 1) as usize
    });
    search::largest(LARGEST_BATCH, guesses.min().unwrap_or(1), |micro_batch| {
        Ok(is_available(live(micro_batch)?, available))
    })
}

#[cfg(test)]
mod tests {
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::compile;
    use base::units::Bytes;
    use spec::{ActivationOffload, Strategy};
    use testing::{any_config, any_target, random_cases, tenth};

    proptest! {
        #![proptest_config(random_cases(tenth(96)))]

        #[test]
        fn largest_micro_batch_fits_and_one_more_does_not(
            config in any_config(), target in any_target(), memory in 1u64..24, host in option::of(4u64..12_000),
        ) {
            let host_memory = host.map(|host| Bytes(host << 10));
            let target = Target { memory: Bytes(memory << 20), host_memory, ..target };
            let mut compiler = Compiler::new(&target);
            let found = largest(&mut compiler, &config, &target).unwrap().micro_batch;
            let recompute_plan = match config.strategy.recompute {
                Recompute::Budget(Budget::Memory) => compiler.pareto_front(&config).unwrap().lowest_peak().recompute_plan.clone(),
                _ => compiler.compile(&config).unwrap().recompute_plan.clone(),
            };
            let mut runs = |micro_batch: usize| {
                let mut config = config.clone();
                config.train.batch_size = micro_batch * config.strategy.accumulate * config.ranks();
                let compiled = compiler.compile_with(&config, &recompute_plan).unwrap();
                predict(&compiled.program, &target, RunSchedule::of(&config)).out_of_memory.is_none()
            };
            prop_assert!(found == 0 || runs(found));
            let Strategy { place, offload, allocator, .. } = &config.strategy;
            let more_may_need_less = !place.is_empty() || offload.is_any() || allocator.is_caching();
            prop_assert!(more_may_need_less || !runs(found + 1));
        }

        /// Allows for the rounding of a few values per loss slice. Offload thresholds are excluded: values below a
        /// threshold stay on the device. So is the caching pool, whose undivided blocks depend on all sizes before.
        #[test]
        fn smaller_last_micro_batch_needs_no_more(config in any_config(), target in any_target()) {
            prop_assume!(matches!(config.strategy.offload.activations, ActivationOffload::Nothing | ActivationOffload::From(Bytes(0))));
            prop_assume!(!config.strategy.allocator.is_caching());
            let mut even = config.clone();
            let own = config.of_rank(0);
            even.train.batch_size = own.micro_batch() * own.micro_batches() * config.ranks();
            even.strategy.accumulate = own.micro_batches();
            let live = |config| peak_live(&compile(config, &target).unwrap(), &target, Pool::Device);
            let [needed, bound] = [&config, &even].map(live);
            let rounding = if config.strategy.loss_chunks == 1 { 0 } else { target.page.0.max(target.alignment.0) };
            let rounded = 8 * config.strategy.loss_chunks as u64 * rounding;
            prop_assert!(needed <= bound + rounded, "{needed} bytes, not {bound}");
        }
    }
}
