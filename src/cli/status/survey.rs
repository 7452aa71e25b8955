//! The states of the repeats of an experiment.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use base::statistics;
use base::temporary::Owner;
use plan::{DeviceRates, Plan};
use results::{Claim, Expected, ExpectedRun, Row};

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
    pub(super) failed: Vec<Row>,
    /// Runs with the number of their missing repeats.
    pub(super) missing: Vec<Labelled<usize>>,
    /// Results of other versions of the file, of other files of its name, and further repeats.
    pub(super) others: usize,
    /// The time that the remaining repeats take one after the other, as far as it is known.
    pub(super) left: Duration,
    /// Remaining repeats whose time is unknown.
    pub(super) unknown: usize,
}

/// Something of a run with its label.
#[derive(Debug)]
pub(super) struct Labelled<T> {
    pub(super) label: String,
    pub(super) of: T,
}

/// The time of a repeat in milliseconds, by run: start-up and steps, without evaluations.
#[derive(Debug, Default)]
pub(super) struct StepTimes(HashMap<String, f64>);

impl StepTimes {
    /// The estimates of a plan.
    pub(super) fn of_plan(plan: &Plan, rates: &DeviceRates) -> StepTimes {
        let rows = plan.runs.iter().map(|run| results::predicted_row(plan, run, rates));
        let time = |row: &Row| Some(row.estimated_step_ms? * steps(row)?);
        StepTimes(rows.filter_map(|row| Some((row.run_id.clone(), time(&row)?))).collect())
    }

    /// Of finished repeats: the median of each run.
    fn measured(rows: &[Row]) -> StepTimes {
        let mut times: HashMap<&str, Vec<f64>> = HashMap::new();
        for row in rows.iter().filter(|row| row.status.is_final()) {
            let time = || Some(row.startup_ms.unwrap_or(0.0) + row.step_ms_median? * steps(row)?);
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

fn steps(row: &Row) -> Option<f64> {
    Some((row.warmup_steps? + row.steps?) as f64)
}

impl Survey {
    pub(super) fn of(rows: &[Row], claims: Vec<Claim>, lists: &[&Expected], estimates: &StepTimes) -> Survey {
        let mut results: HashMap<Key, &Row> =
            rows.iter().map(|row| ((row.run_id.as_str(), row.repeat), row)).collect();
        let mut labels: HashMap<&str, String> =
            rows.iter().map(|row| (row.run_id.as_str(), plan::title(&row.strategy, &row.axes))).collect();
        for run in lists.iter().flat_map(|list| list.runs.iter().rev()) {
            labels.insert(&run.run_id, plan::title(&run.strategy, &run.axes));
        }
        let measured = StepTimes::measured(rows);
        let time = |run_id: &str| measured.get(run_id).or_else(|| estimates.get(run_id));
        let running: HashMap<Key, Duration> = claims
            .iter()
            .filter(|claim| claim.owner != Owner::Gone)
            .map(|claim| ((claim.run_id.as_str(), claim.repeat), claim.age))
            .collect();

        let mut survey = Survey::default();
        let mut seen = HashSet::new();
        let all = lists.iter().flat_map(|list| list.runs.iter().map(|run| (run, list.repeats)));
        for (run, repeats) in all.filter(|(run, _)| seen.insert(run.run_id.as_str())) {
            let ExpectedRun { run_id, .. } = run;
            let mut missing = 0;
            for repeat in 1..=repeats {
                let key = (run_id.as_str(), repeat);
                let result = results.remove(&key);
                *survey.expected.get_or_insert(0) += 1;
                let elapsed = match (result, running.get(&key)) {
                    (Some(row), _) if row.status.is_final() => {
                        survey.done += 1;
                        continue;
                    }
                    (_, Some(age)) => *age,
                    (Some(row), None) => {
                        survey.failed.push(row.clone());
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
                survey.missing.push(Labelled { label: labels[run_id.as_str()].clone(), of: missing });
            }
        }
        if lists.is_empty() {
            let (done, failed): (Vec<&Row>, Vec<&Row>) =
                results.into_values().partition(|row| row.status.is_final());
            survey.done = done.len();
            survey.failed = failed.into_iter().cloned().collect();
        } else {
            survey.others = results.len();
        }
        survey.failed.sort_by(|a, b| (&a.strategy, &a.axes, a.repeat).cmp(&(&b.strategy, &b.axes, b.repeat)));
        for claim in claims {
            let label = labels.get(claim.run_id.as_str()).cloned().unwrap_or_else(|| claim.run_id.clone());
            let list = if claim.owner == Owner::Gone { &mut survey.stopped } else { &mut survey.running };
            list.push(Labelled { label, of: claim });
        }
        survey
    }

    /// Whether nothing is left to wait for.
    pub(super) fn is_complete(&self) -> bool {
        self.running.is_empty() && self.expected.is_none_or(|expected| self.done == expected)
    }
}
