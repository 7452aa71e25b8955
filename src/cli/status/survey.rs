//! The states of the repeats of an experiment.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::sweep::training_seconds;
use base::statistics;
use base::temporary::Owner;
use plan::{DeviceRates, Plan, PlannedRun};
use results::{Claim, Expected, Row};

/// A repeat: the id of its run and its number.
type Key<'a> = (&'a str, usize);

/// What is known of an experiment's results.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Expected repeats with a final result; all results if no list of expected runs exists.
    pub(super) done: usize,
    /// The number of expected repeats, if there is a list.
    pub(super) expected: Option<usize>,
    /// Claims of processes that run, or that cannot be checked from here.
    pub(super) running: Vec<Labelled<Claim>>,
    /// Claims of processes that are gone.
    pub(super) stopped: Vec<Labelled<Claim>>,
    /// Repeats with a claim that may be running.
    pub(super) claimed: usize,
    pub(super) failed: Vec<Labelled<Row>>,
    /// Runs with the number of their missing repeats.
    pub(super) missing: Vec<Labelled<usize>>,
    /// Results of other versions of the file, of other files of its name, and further repeats.
    pub(super) others: usize,
    /// The time that the remaining repeats take one after the other, as far as it is known.
    pub(super) left: Duration,
    /// Remaining repeats whose time is unknown.
    pub(super) unknown: usize,
}

/// Something of a run with its label, and with its target where runs of several targets are listed.
#[derive(Debug)]
pub(super) struct Labelled<T> {
    pub(super) label: String,
    pub(super) of: T,
}

/// The time of a repeat in milliseconds, by run.
#[derive(Debug, Default)]
pub(super) struct StepTimes(HashMap<String, f64>);

impl StepTimes {
    /// The estimates of a plan: steps and evaluations.
    pub(super) fn of_plan(plan: &Plan, rates: &DeviceRates) -> StepTimes {
        let time = |run: &PlannedRun| {
            let (config, prediction) = (run.config.as_ref().ok()?, run.prediction.as_ref()?);
            let step_ms = rates.step_ms(&prediction.work, config, &plan.target).ok()?;
            Some((run.id.clone(), 1e3 * training_seconds(config, step_ms)))
        };
        StepTimes(plan.runs.iter().filter_map(time).collect())
    }

    /// Of finished repeats, the median of each run: start-up and steps. Results have no time of evaluations.
    fn measured(rows: &[Row]) -> StepTimes {
        let mut times: HashMap<&str, Vec<f64>> = HashMap::new();
        for row in rows.iter().filter(|row| row.status.is_final()) {
            let steps = || Some((row.warmup_steps? + row.steps?) as f64);
            let time = || Some(row.startup_ms.unwrap_or(0.0) + row.step_ms_median? * steps()?);
            if let Some(time) = time().filter(|time| time.is_finite() && *time >= 0.0) {
                times.entry(&row.run_id).or_default().push(time);
            }
        }
        let medians =
            times.into_iter().filter_map(|(id, times)| Some((id.to_owned(), statistics::median(&times)?)));
        StepTimes(medians.collect())
    }

    fn get(&self, run_id: &str) -> Option<Duration> {
        Duration::try_from_secs_f64(self.0.get(run_id)? / 1e3).ok()
    }
}

impl Survey {
    pub(super) fn of(
        rows: &[Row],
        mut claims: Vec<Claim>,
        lists: &[&Expected],
        estimates: &StepTimes,
    ) -> Survey {
        let mut results: HashMap<Key, &Row> =
            rows.iter().map(|row| ((row.run_id.as_str(), row.repeat), row)).collect();
        let mut labels: HashMap<&str, String> =
            rows.iter().map(|row| (row.run_id.as_str(), plan::title(&row.strategy, &row.axes))).collect();
        let several = lists.iter().filter(|list| list.to_measure().next().is_some()).count() > 1;
        for list in lists {
            let target = if several { format!(" on {}", list.target) } else { String::new() };
            for run in list.to_measure().rev() {
                labels.insert(&run.run_id, plan::title(&run.strategy, &run.axes) + &target);
            }
        }
        let labelled = |run_id: &str| labels.get(run_id).cloned().unwrap_or_else(|| run_id.to_owned());
        let measured = StepTimes::measured(rows);
        let time = |run_id: &str| measured.get(run_id).or_else(|| estimates.get(run_id));
        // The claim of a lost node stays after another process has finished the repeat.
        claims.retain(|claim| {
            let result = results.get(&(claim.run_id.as_str(), claim.repeat));
            result.is_none_or(|row| !row.status.is_final())
        });
        let running: HashMap<Key, Duration> = claims
            .iter()
            .filter(|claim| claim.owner != Owner::Gone)
            .map(|claim| ((claim.run_id.as_str(), claim.repeat), claim.age))
            .collect();

        let mut seen = HashSet::new();
        let all = lists.iter().flat_map(|list| list.to_measure().map(|run| (&*run.run_id, list.repeats)));
        let all: Vec<(&str, usize)> = all.filter(|(run_id, _)| seen.insert(*run_id)).collect();
        let expected = (!lists.is_empty()).then(|| all.iter().map(|(_, repeats)| repeats).sum());
        let mut survey = Survey { claimed: running.len(), expected, ..Survey::default() };
        for (run_id, repeats) in all {
            let mut missing = 0;
            for repeat in 1..=repeats {
                let key = (run_id, repeat);
                let result = results.remove(&key);
                let elapsed = match (result, running.get(&key)) {
                    (Some(row), _) if row.status.is_final() => {
                        survey.done += 1;
                        continue;
                    }
                    (_, Some(age)) => *age,
                    (Some(row), None) => {
                        survey.failed.push(Labelled { label: labelled(run_id), of: row.clone() });
                        Duration::ZERO
                    }
                    (None, None) => {
                        missing += 1;
                        Duration::ZERO
                    }
                };
                match time(run_id) {
                    Some(time) => survey.left += time.saturating_sub(elapsed),
                    None => survey.unknown += 1,
                }
            }
            if missing > 0 {
                survey.missing.push(Labelled { label: labelled(run_id), of: missing });
            }
        }
        if lists.is_empty() {
            let (done, failed): (Vec<&Row>, Vec<&Row>) =
                results.into_values().partition(|row| row.status.is_final());
            survey.done = done.len();
            let failed = failed.into_iter();
            survey.failed =
                failed.map(|row| Labelled { label: labelled(&row.run_id), of: row.clone() }).collect();
        } else {
            survey.others = results.len();
        }
        survey.failed.sort_by(|a, b| (&a.label, a.of.repeat).cmp(&(&b.label, b.of.repeat)));
        for claim in claims {
            let label = labelled(&claim.run_id);
            let list = if claim.owner == Owner::Gone { &mut survey.stopped } else { &mut survey.running };
            list.push(Labelled { label, of: claim });
        }
        survey
    }

    /// Whether nothing is left to wait for.
    pub(super) fn is_complete(&self) -> bool {
        self.expected.map_or(self.claimed == 0, |expected| self.done == expected)
    }
}
