//! From an experiment file to the list of its runs, each with its prediction.

mod expand;
mod planned;
mod stub;

pub use expand::{Experiment, Point};
pub use planned::{Plan, PlannedRun};
pub use stub::{expand, plan};
