//! Expands an experiment file to its runs and predicts the memory of each.

mod budget;
mod catalogue;
mod compiler;
mod error;
mod estimate;
mod exchange;
mod expand;
mod feasible;
mod fits;
mod forecast;
mod identity;
mod kept;
mod label;
mod layers;
mod planned;
mod planner;
mod remedies;
mod search;
mod sweep;
mod torch;

pub use budget::{InfeasibleBudget, ParetoFronts};
pub use catalogue::{Choice, Combination, Subject, catalogue};
pub use compiler::{Compiler, compile, compile_verified};
pub use error::PlanError;
pub use estimate::{ASSUMED_HOST, Calibration, DeviceRates, RatesOrigin, UnknownRate, is_on_host};
pub use exchange::node_of_data_sheet;
pub use expand::{Base, Experiment, Point, expand, expand_all, expand_generated};
pub use feasible::skip_infeasible;
pub use fits::LARGEST_BATCH;
pub use identity::target_id;
pub use label::{Axis, Label, title};
pub use planned::{Plan, PlannedRun};
pub use planner::{Purpose, plan};
pub use remedies::{
    Change, ChangedKey, Remedy, Tolerance, TorchRemedies, changed_keys, changes, remedies, torch_remedies,
};
pub use search::{
    Found, Search, SearchResults, Timed, Trial, combinations, sufficient_memory, tables, with_micro_batches,
};
pub use torch::{TorchForecast, torch_machine};
