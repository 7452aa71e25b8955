//! From an experiment file to the list of its runs, each with its prediction.

mod expand;
mod fits;
mod identity;
mod planned;
mod planner;

pub use expand::{Experiment, Point};
pub use identity::{configuration_id, run_id};
pub use planned::{Plan, PlannedRun};
pub use planner::{PlanError, plan};
pub fn load_run(_file: &std::path::Path) -> Result<crate::spec::RunConfig, crate::spec::Error> {
    Err(crate::spec::Error)
}
