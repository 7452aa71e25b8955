//! Groups runs by what they need: each group is one array of tasks.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::needs::Need;
use crate::sweep::{all_jobs, part_numbers};
use plan::Plan;

/// The default for the largest number of tasks.
const MOST_TASKS: usize = 100;
/// The shortest requested time, in minutes: start-up on a busy file system, and time after the signal.
const LEAST_MINUTES: u64 = 10;
/// Runs with less memory are in one group, so that they are compared within one process: nodes have as much for a processor.
const SMALL_MEMORY: u64 = 4 << 30;
/// Requested memory is a multiple of this.
const MEMORY_STEP: u64 = 64 << 20;

/// What the user requests in place of predictions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Requested {
    pub(super) tasks: Option<usize>,
    pub(super) cpus: Option<usize>,
    pub(super) mib: Option<u64>,
    pub(super) minutes: Option<u64>,
}

/// What a task requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Resources {
    pub(super) cards: usize,
    pub(super) cpus: usize,
    pub(super) mib: Option<u64>,
    pub(super) minutes: Option<u64>,
}

impl Resources {
    /// Enough for either.
    pub(super) fn max(self, other: Resources) -> Resources {
        // Unknown stays unknown.
        let both = |one: Option<u64>, other: Option<u64>| Some(one?.max(other?));
        Resources {
            cards: self.cards.max(other.cards),
            cpus: self.cpus.max(other.cpus),
            mib: both(self.mib, other.mib),
            minutes: both(self.minutes, other.minutes),
        }
    }
}

/// Runs with similar needs.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) resources: Resources,
    /// The numbers of its runs.
    pub(super) runs: BTreeSet<usize>,
    /// Number of parts.
    pub(super) of: usize,
    /// By the number of a part with missing repeats: their configurations and numbers.
    pub(super) tasks: BTreeMap<usize, Vec<(String, usize)>>,
}

/// The groups, smallest needs first. Memory above `SMALL_MEMORY` differs by less than a factor of two within a
/// group.
pub(super) fn of(plans: &[Plan], needs: Vec<Need>, requested: Requested) -> Vec<Group> {
    let mut groups: BTreeMap<(usize, usize, Option<u64>), Vec<Need>> = BTreeMap::new();
    for mut need in needs {
        need.cpus = requested.cpus.unwrap_or(need.cpus);
        need.memory = requested.mib.map(|mib| mib << 20).or(need.memory);
        let class = need.memory.map(|bytes| bytes.max(SMALL_MEMORY).next_power_of_two());
        groups.entry((need.cards, need.cpus, class)).or_default().push(need);
    }
    groups
        .into_iter()
        .map(|((cards, cpus, _), needs)| group(plans, (cards, cpus), &needs, requested))
        .collect()
}

fn group(plans: &[Plan], (cards, cpus): (usize, usize), needs: &[Need], requested: Requested) -> Group {
    let of = requested.tasks.unwrap_or_else(|| rounds(plans, needs).min(MOST_TASKS));
    let mut tasks: BTreeMap<usize, Vec<(String, usize)>> = BTreeMap::new();
    let mut seconds: BTreeMap<usize, Option<f64>> = BTreeMap::new();
    for (index, plan) in plans.iter().enumerate() {
        let own: Vec<&Need> = needs.iter().filter(|need| need.plan == index).collect();
        let runs: Vec<usize> = own.iter().map(|need| need.run).collect();
        let jobs = all_jobs(index, plan, &runs, 1..=plan.repeats.most(), None);
        for (job, number) in jobs.iter().zip(part_numbers(plan, &jobs, of)) {
            let missing = own.iter().find(|need| need.run == job.run && need.missing.contains(&job.repeat));
            let Some(need) = missing else { continue };
            let configuration = plan.runs[job.run].configuration.clone();
            tasks.entry(number).or_default().push((configuration, job.repeat));
            let task = seconds.entry(number).or_insert(Some(0.0));
            *task = task.zip(need.seconds).map(|(all, own)| all + own);
        }
    }
    let longest = seconds.into_values().reduce(|one, other| Some(one?.max(other?))).flatten();
    let estimated = longest.map(|seconds| ((seconds / 60.0).ceil() as u64).max(LEAST_MINUTES));
    // What was too little before is raised even if no time is known.
    let least = needs.iter().map(|need| need.least_minutes).max().filter(|minutes| *minutes > 0);
    let memory = needs.iter().map(|need| need.memory).reduce(|one, other| Some(one?.max(other?))).flatten();
    let rounded = memory.map(|bytes| bytes.next_multiple_of(MEMORY_STEP) >> 20);
    let resources = Resources {
        cards,
        cpus,
        mib: requested.mib.or(rounded),
        minutes: requested.minutes.or(estimated.max(least)),
    };
    Group { resources, runs: needs.iter().map(|need| need.number).collect(), of, tasks }
}

/// The number of rounds of sweep points, each a set of repeats that are compared with each other.
fn rounds(plans: &[Plan], needs: &[Need]) -> usize {
    let of_plan = |(index, plan): (usize, &Plan)| {
        let own = needs.iter().filter(|need| need.plan == index);
        let points: HashSet<&[(String, String)]> =
            own.map(|need| plan.runs[need.run].axes.as_slice()).collect();
        points.len() * plan.repeats.most()
    };
    plans.iter().enumerate().map(of_plan).max().unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_needs_stay_unknown_together() {
        let one = Resources { cards: 1, cpus: 2, mib: Some(512), minutes: None };
        let other = Resources { cards: 0, cpus: 4, mib: Some(1024), minutes: Some(10) };
        assert_eq!(one.max(other), Resources { cards: 1, cpus: 4, mib: Some(1024), minutes: None });
    }
}
