//! The remaining jobs and their order.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use super::cost::nominal_seconds;
use super::job::Job;
use super::part::{self, Part};
use super::{Sweep, report};
use crate::failure::Failure;
use crate::filter::Filter;
use base::statistics;
use plan::{Plan, PlannedRun};
use spec::{Repeats, UntilPrecise};

pub(super) struct Queue {
    pub(super) jobs: Vec<Job>,
    /// Repeats that have a result.
    pub(super) done: usize,
}

/// All repeats of a stage without a final result. The first stage ends at the first look whether more repeats are needed.
/// Experiment by experiment; within one, rounds are interleaved: the first repeat of every run, in a shuffled order, then the
/// second, so that drift affects all runs alike. `None` if no experiment has such a stage.
pub(super) fn fill(
    sweeps: &mut [Sweep],
    filter: &Filter,
    part: Option<Part>,
    stage: usize,
) -> Result<Option<Queue>, Failure> {
    let mut queue = None;
    for (index, sweep) in sweeps.iter_mut().enumerate() {
        let Some(rounds) = rounds(sweep.plan.repeats, stage) else { continue };
        let Queue { jobs, done } = queue.get_or_insert(Queue { jobs: Vec::new(), done: 0 });
        let runs: Vec<usize> = match sweep.plan.repeats {
            Repeats::Until(until) if stage > 0 => unsettled(sweep, filter, until)?,
            _ => distinct(&sweep.plan.runs, filter).collect(),
        };
        for job in all(index, &sweep.plan, &runs, rounds, part) {
            let id = &sweep.plan.runs[job.run].id;
            if sweep.store.finished(id, job.repeat).map_err(Failure::input)?.is_some() {
                *done += 1;
            } else {
                jobs.push(job);
            }
        }
    }
    Ok(queue)
}

/// The jobs of these runs and rounds that are this task's, whether they have a result or not.
pub(crate) fn all(
    sweep: usize,
    plan: &Plan,
    runs: &[usize],
    rounds: RangeInclusive<usize>,
    part: Option<Part>,
) -> Vec<Job> {
    let in_round = |repeat: usize| {
        let order = statistics::order(repeat, runs.len()).into_iter();
        order.map(move |at| Job { sweep, run: runs[at], repeat })
    };
    let mut all: Vec<Job> = rounds.flat_map(in_round).collect();
    if let Some(part) = part {
        let mut numbers = part_numbers(plan, &all, part.of()).into_iter();
        all.retain(|_| numbers.next() == Some(part.number()));
    }
    all
}

/// The number of the part, from 1, of each of a plan's jobs.
pub(crate) fn part_numbers(plan: &Plan, jobs: &[Job], of: usize) -> Vec<usize> {
    let strategies: Vec<&str> = plan.runs.iter().map(|run| run.strategy.as_str()).collect();
    let seconds: Vec<f64> = plan.runs.iter().map(|run| nominal_seconds(plan, run)).collect();
    part::numbers(&strategies, &seconds, jobs, of)
}

/// The rounds between two looks at the results.
fn rounds(repeats: Repeats, stage: usize) -> Option<RangeInclusive<usize>> {
    let looks = repeats.looks();
    let before = if stage == 0 { 0 } else { looks[stage.min(looks.len()) - 1] };
    Some(before + 1..=*looks.get(stage)?)
}

/// The runs whose speed is not known precisely enough.
fn unsettled(
    sweep: &mut Sweep,
    filter: &Filter,
    UntilPrecise { until, .. }: UntilPrecise,
) -> Result<Vec<usize>, Failure> {
    let rows = report::rows(sweep, filter).map_err(Failure::machine)?;
    let unsettled = compare::unsettled(&rows, until);
    let runs = distinct(&sweep.plan.runs, filter);
    Ok(runs.filter(|run| unsettled.contains(&sweep.plan.runs[*run].id)).collect())
}

/// The runs to measure, each once, whatever the number of its labels.
pub(crate) fn distinct<'a>(
    runs: &'a [PlannedRun],
    filter: &'a Filter,
) -> impl Iterator<Item = usize> + use<'a> {
    let mut seen = HashSet::new();
    let wanted = runs.iter().enumerate().filter(move |(_, run)| is_wanted(run, filter));
    wanted.filter(move |(_, run)| seen.insert(run.id.as_str())).map(|(index, _)| index)
}

/// Whether a run is selected and valid.
pub(super) fn is_wanted(run: &PlannedRun, filter: &Filter) -> bool {
    run.config.is_ok() && filter.lets_through(run)
}
