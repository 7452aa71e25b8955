//! From an experiment file to the list of its runs, each with its prediction.

mod expand;
mod planned;

pub use expand::{Experiment, Point};
pub use planned::{Plan, PlannedRun};
