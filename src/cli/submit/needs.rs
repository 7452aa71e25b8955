//! What the missing runs need: cards, processors, host memory, time.

use std::collections::HashMap;

use crate::sweep::training_seconds;
use device::{DeviceKind, Target};
use memory::{Prediction, StepWork};
use plan::{DeviceRates, Plan, RatesOrigin};
use results::Row;
use spec::RunConfig;

/// Requested time over measured time, or over estimates from measured rates.
const TIME_FACTOR: f64 = 3.0;
/// Over estimates from a data sheet's peak rates, which no program reaches.
const DATA_SHEET_FACTOR: f64 = 10.0;

/// Seconds to request for a repeat outside its steps: start of the process, data, on a card also its context, kernels and the
/// choice of matmul algorithms.
const START: f64 = 10.0;
const CARD_START: f64 = 60.0;

/// Requested memory over predicted and measured memory.
const MEMORY_FACTOR: f64 = 1.1;

/// Assumed resident bytes of a process with a card's context and libraries, until a run has measured them.
const CARD_PROCESS: u64 = 4 << 30;

/// Compute, copies and messages of a run on a card; loader workers come on top.
const CARD_THREADS: usize = 2;

/// A run with missing repeats.
#[derive(Clone, Debug)]
pub(super) struct Need {
    /// Its index among the plans, and among the plan's runs.
    pub(super) plan: usize,
    pub(super) run: usize,
    /// Its number for `--run`.
    pub(super) number: usize,
    /// From 1.
    pub(super) missing: Vec<usize>,
    pub(super) cards: usize,
    pub(super) cpus: usize,
    /// Host bytes of its task. `None` if they are not predicted.
    pub(super) memory: Option<u64>,
    /// Seconds to request for a repeat. `None` without any rate.
    pub(super) seconds: Option<f64>,
    /// Minutes that its task must get at least, after an earlier one had too few.
    pub(super) least_minutes: u64,
}

/// The needs of a plan's runs that have missing repeats. `first` is the number of its first run; `own` are the bytes of
/// the sweep's process.
pub(super) fn of_plan(
    (index, plan): (usize, &Plan),
    runs: impl Iterator<Item = usize>,
    first: usize,
    rows: &[Row],
    rates: &DeviceRates,
    own: u64,
) -> Vec<Need> {
    let mut done: HashMap<&str, Vec<&Row>> = HashMap::new();
    for row in rows.iter().filter(|row| row.status.is_final() && is_here(row, &plan.target)) {
        done.entry(&row.configuration).or_default().push(row);
    }
    let need = |at: usize| {
        let run = &plan.runs[at];
        let config = run.config.as_ref().ok()?;
        let done = done.get(run.configuration.as_str()).map(Vec::as_slice).unwrap_or_default();
        let is_missing = |repeat: &usize| done.iter().all(|row| row.repeat != *repeat);
        let missing: Vec<usize> = (1..=plan.repeats.most()).filter(is_missing).collect();
        let is_on_card = plan.target.kind == DeviceKind::Cuda;
        let threads = config.strategy.loader.workers + CARD_THREADS;
        (!missing.is_empty()).then(|| Need {
            plan: index,
            run: at,
            number: first + at,
            missing,
            cards: if is_on_card { config.ranks() } else { 0 },
            cpus: if is_on_card { config.ranks() * threads } else { plan.target.threads },
            memory: run.prediction.as_ref().map(|found| memory(config, found, &plan.target, done, own)),
            seconds: seconds(
                config,
                run.prediction.as_ref().map(|found| &found.work),
                &plan.target,
                done,
                rates,
            ),
            least_minutes: 0,
        })
    };
    runs.filter_map(need).collect()
}

/// Whether a row was measured on such a target. Tasks run on other nodes than this one, whose size may differ.
fn is_here(row: &Row, target: &Target) -> bool {
    let limit = target.limited.then_some(target.memory.0);
    row.device == target.name
        && row.limited == target.limited
        && (limit.is_none() || row.limit_bytes == limit)
}

/// Bytes of a task: the sweep's process, and each rank's process with the memory that it is predicted to obtain.
fn memory(config: &RunConfig, found: &Prediction, target: &Target, done: &[&Row], own: u64) -> u64 {
    let ranks = config.ranks() as u64;
    // Past its limit a run ends.
    let on_device = match target.kind {
        DeviceKind::Cpu => found.device.reserved_peak.min(target.memory.0),
        DeviceKind::Cuda => 0,
    };
    let assumed = || {
        let held = config.held_bytes().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
        let process = if target.kind == DeviceKind::Cuda { CARD_PROCESS } else { own };
        process.saturating_add(held)
    };
    let process = done.iter().filter_map(|row| row.process_bytes).max().unwrap_or_else(assumed);
    let rank = process.saturating_add(on_device).saturating_add(found.host.reserved_peak);
    (MEMORY_FACTOR * (rank.saturating_mul(ranks).saturating_add(own)) as f64) as u64
}

/// Seconds to request for a repeat: from measured steps, else from rates.
fn seconds(
    config: &RunConfig,
    work: Option<&StepWork>,
    target: &Target,
    done: &[&Row],
    rates: &DeviceRates,
) -> Option<f64> {
    let measured = done.iter().filter_map(|row| row.step_ms_median).reduce(f64::max);
    let estimated = || rates.step_ms(work?, config, target).ok();
    let factor = match (measured, rates.origin) {
        (None, RatesOrigin::DataSheet) => DATA_SHEET_FACTOR,
        _ => TIME_FACTOR,
    };
    let start = if target.kind == DeviceKind::Cuda { CARD_START } else { START };
    Some(start + factor * training_seconds(config, measured.or_else(estimated)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use execute::Measured;
    use spec::Measure;

    #[test]
    fn time_has_a_margin_for_the_origin_of_its_rates() {
        let config = RunConfig {
            measure: Measure { warmup_steps: 10, steps: 90, ..Measure::default() },
            evaluation: None,
            ..testing::small()
        };
        let row = |ms: Option<f64>| Row {
            measured: Measured { step_ms_median: ms, ..Measured::default() },
            ..Row::default()
        };
        let rows = [row(Some(1e3)), row(Some(2e3)), row(None)];
        let done: Vec<&Row> = rows.iter().collect();
        // A step takes a second.
        let work = StepWork { asked_bytes: 1000, ..StepWork::default() };
        let from = |kind: DeviceKind, origin: RatesOrigin, done: &[&Row]| {
            let rates = DeviceRates { seconds_per_asked_byte: 1e-3, origin, ..DeviceRates::default() };
            seconds(&config, Some(&work), &Target { kind, ..testing::target() }, done, &rates)
        };
        let (runs, data_sheet) = (RatesOrigin::Runs(1), RatesOrigin::DataSheet);
        assert_eq!(from(DeviceKind::Cpu, runs, &[]), Some(10.0 + 3.0 * 100.0));
        assert_eq!(from(DeviceKind::Cuda, runs, &[]), Some(60.0 + 3.0 * 100.0));
        assert_eq!(from(DeviceKind::Cuda, data_sheet, &[]), Some(60.0 + 10.0 * 100.0));
        // The slowest repeat counts, whatever the rates.
        assert_eq!(from(DeviceKind::Cuda, data_sheet, &done), Some(60.0 + 3.0 * 200.0));
        assert_eq!(seconds(&config, None, &testing::target(), &[], &DeviceRates::default()), None);
    }
}
