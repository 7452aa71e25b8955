//! The runs that an experiment's sweeps have to measure, so that others see what is missing without planning: a login
//! node has another device.

use std::io;

use serde::{Deserialize, Serialize};

use super::{Store, StoreError, private};
use base::units::Bytes;
use base::{regular, temporary};
use plan::{Plan, target_id};

const PREFIX: &str = "expected-";
const ENDING: &str = ".json";
/// Room for a million runs.
const LARGEST_LIST: Bytes = Bytes(1 << 30);

/// The runs of a plan for one target.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The name of the target.
    pub device: String,
    /// Repeats of each run; if their number depends on their precision, the least.
    pub repeats: usize,
    /// In table order, without skipped runs. Labels that share a run are listed each.
    pub runs: Vec<ExpectedRun>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedRun {
    pub run_id: String,
    pub strategy: String,
    pub axes: Vec<(String, String)>,
}

impl Expected {
    pub fn of(plan: &Plan) -> Expected {
        let run = |run: &plan::PlannedRun| ExpectedRun {
            run_id: run.id.clone(),
            strategy: run.strategy.clone(),
            axes: run.axes.clone(),
        };
        Expected {
            device: plan.target.name.clone(),
            repeats: plan.repeats.looks().first().copied().unwrap_or(1),
            runs: plan.runs.iter().filter(|planned| planned.config.is_ok()).map(run).collect(),
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

    /// The noted runs of each target.
    ///
    /// # Errors
    ///
    /// A file is unreadable or invalid.
    pub fn expected(&self) -> Result<Vec<Expected>, StoreError> {
        let read = |name: String| {
            let file = self.folder.join(name);
            let text = regular::read(&file, LARGEST_LIST).map_err(StoreError::read(&file))?;
            serde_json::from_slice(&text).map_err(|error| StoreError::read(&file)(io::Error::from(error)))
        };
        self.lists()?.into_iter().map(read).collect()
    }

    /// The names of the files with lists.
    pub(super) fn lists(&self) -> Result<Vec<String>, StoreError> {
        let mut names = private::names(&self.folder)?;
        names.retain(|name| name.starts_with(PREFIX) && name.ends_with(ENDING));
        names.sort();
        Ok(names)
    }
}
