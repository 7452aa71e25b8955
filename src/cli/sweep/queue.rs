//! What is left to run, and in which order.

use std::collections::HashSet;

use super::Sweep;
use crate::cli::failure::Failure;
use crate::plan::PlannedRun;

/// One repeat of one run.
pub(super) struct Job {
    /// Its index among the sweeps.
    pub(super) sweep: usize,
    /// Its index among the plan's runs.
    pub(super) run: usize,
    /// From 1.
    pub(super) repeat: usize,
}

pub(super) struct Queue {
    pub(super) jobs: Vec<Job>,
    /// Repeats that have a result already.
    pub(super) done: usize,
}

/// All repeats without a final result. Experiment by experiment; within one, the first repeat of every run comes
/// before the second of any, so that drift hits all alike.
pub(super) fn fill(sweeps: &mut [Sweep], filter: Option<&glob::Pattern>) -> Result<Queue, Failure> {
    let mut queue = Queue { jobs: Vec::new(), done: 0 };
    for (index, Sweep { plan, store, .. }) in sweeps.iter_mut().enumerate() {
        for repeat in 1..=plan.repeats {
            for run in distinct(&plan.runs, filter) {
                if store.finished(&plan.runs[run].id, repeat).map_err(Failure::input)?.is_some() {
                    queue.done += 1;
                } else {
                    queue.jobs.push(Job { sweep: index, run, repeat });
                }
            }
        }
    }
    Ok(queue)
}

/// The runs to measure, each once whatever the number of its labels.
pub(super) fn distinct<'a>(
    runs: &'a [PlannedRun],
    filter: Option<&'a glob::Pattern>,
) -> impl Iterator<Item = usize> + use<'a> {
    let mut seen = HashSet::new();
    let wanted = runs.iter().enumerate().filter(move |(_, run)| is_wanted(run, filter));
    wanted.filter(move |(_, run)| seen.insert(run.id.as_str())).map(|(index, _)| index)
}

/// Whether the user asked for a run, and it makes sense.
pub(super) fn is_wanted(run: &PlannedRun, filter: Option<&glob::Pattern>) -> bool {
    run.config.is_ok() && filter.is_none_or(|filter| filter.matches(&run.strategy))
}
