//! The runs of an experiment and their labels, as planned by its sweeps: `status` shows what is missing, and `collect` labels
//! results, without planning. A login node has another device.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::claims::seconds_now;
use super::{Store, StoreError, private};
use crate::{Row, planned_row};
use base::units::Bytes;
use base::{regular, temporary};
use plan::{Plan, PlannedRun, target_id};

const PREFIX: &str = "expected-";
const ENDING: &str = ".json";
/// Room for a million runs.
const LARGEST_LIST: Bytes = Bytes(1 << 30);

/// The runs of a plan for one target.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The name and memory of the target: `NVIDIA H200 limited to 24 GiB`.
    pub target: String,
    /// The time of the plan, in seconds since 1970.
    planned: u64,
    pub baseline: String,
    /// Repeats of each run; if their number depends on their precision, the least.
    pub repeats: usize,
    /// In table order. Labels that share a run are listed each.
    pub runs: Vec<ExpectedRun>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedRun {
    pub run_id: String,
    /// Digest of configuration and data, without the target.
    pub configuration: String,
    pub strategy: String,
    pub axes: Vec<(String, String)>,
    /// Strategy keys without effect on this target, separated by spaces.
    pub no_effect: String,
    /// The row of a skipped run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Box<Row>>,
}

impl Expected {
    pub fn of(plan: &Plan) -> Expected {
        let run = |run: &PlannedRun| ExpectedRun {
            run_id: run.id.clone(),
            configuration: run.configuration.clone(),
            strategy: run.strategy.clone(),
            axes: run.axes.clone(),
            no_effect: run.no_effect.join(" "),
            skipped: run.config.is_err().then(|| Box::new(planned_row(plan, run, 1))),
        };
        let with = if plan.target.limited { "limited to" } else { "with" };
        Expected {
            target: format!("{} {with} {}", plan.target.name, plan.target.memory),
            planned: seconds_now(),
            baseline: plan.baseline.clone(),
            repeats: plan.repeats.looks().first().copied().unwrap_or(1),
            runs: plan.runs.iter().map(run).collect(),
        }
    }

    /// The runs that are not skipped.
    pub fn to_measure(&self) -> impl DoubleEndedIterator<Item = &ExpectedRun> {
        self.runs.iter().filter(|run| run.skipped.is_none())
    }

    /// A result with the label that it has in this list. Which keys have no effect is known for the list's target only.
    pub(crate) fn labelled(&self, experiment: &str, run: &ExpectedRun, row: Row) -> Row {
        let no_effect = if row.run_id == run.run_id { run.no_effect.clone() } else { row.no_effect };
        Row {
            experiment: experiment.to_owned(),
            strategy: run.strategy.clone(),
            axes: run.axes.clone(),
            baseline: self.baseline.clone(),
            no_effect,
            ..row
        }
    }
}

impl Store {
    /// Notes the runs of a plan, in place of those of an earlier plan for the same target.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn expect(&self, plan: &Plan) -> Result<(), StoreError> {
        let file = self.folder.join(format!("{PREFIX}{}{ENDING}", target_id(&plan.target)));
        temporary::replace(&file, |to| Ok(serde_json::to_writer(to, &Expected::of(plan))?))
            .map_err(StoreError::write(&file))
    }

    /// The noted runs of each target, the latest plan first.
    ///
    /// # Errors
    ///
    /// A file is unreadable or invalid.
    pub fn expected(&self) -> Result<Vec<Expected>, StoreError> {
        let read = |name: String| {
            let file = self.folder.join(name);
            let text = regular::read(&file, LARGEST_LIST).map_err(StoreError::read(&file))?;
            serde_json::from_slice::<Expected>(&text)
                .map_err(|error| StoreError::NoList { file, problem: error.to_string() })
        };
        let mut lists = self.lists()?.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        lists.sort_by_key(|list| Reverse(list.planned));
        Ok(lists)
    }

    /// The names of the files with lists.
    pub(super) fn lists(&self) -> Result<Vec<String>, StoreError> {
        let mut names = private::names(&self.folder)?;
        names.retain(|name| name.starts_with(PREFIX) && name.ends_with(ENDING));
        names.sort();
        Ok(names)
    }
}
