//! From an experiment file to the list of its runs, each with its prediction.

mod expand;
mod planned;
mod stub;
mod sweep;

pub use expand::{Experiment, Point, expand};
pub use planned::{Plan, PlannedRun};
pub use stub::plan;
