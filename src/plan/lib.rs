//! From an experiment file to the list of its runs, each with its prediction.

mod budget;
mod compiler;
mod estimate;
mod expand;
mod fits;
mod forecast;
mod identity;
mod kept;
mod label;
mod layers;
mod planned;
mod planner;
mod remedies;
mod sweep;

pub use budget::{Choice, InfeasibleBudget, ParetoFront, ParetoFronts};
pub use compiler::{Compiler, compile, compile_verified};
pub use estimate::{Origin, Slowness, Speeds};
pub use expand::{Experiment, Point, expand};
pub use fits::LARGEST_BATCH;
pub use identity::{configuration_id, run_id};
pub use label::{Axis, Label, title};
pub use planned::{Plan, PlannedRun};
pub use planner::{PlanError, Purpose, plan};
pub use remedies::{Remedy, remedies};
