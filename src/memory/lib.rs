//! Lifetimes, places and counts: what a program's memory is, before it runs and while it does.

// The name under which a file of `testing`, which tests here include, finds this crate.
#[cfg(test)]
extern crate self as memory;

mod allocator;
mod dry_run;
mod leaked;
mod live;
mod manager;
mod out_of_memory;
mod prediction;
mod run_schedule;
mod step_work;
mod system;
#[cfg(test)]
mod tests;

pub use allocator::{Allocator, CacheWork, Location, Pieces, rounded};
pub use leaked::Leaked;
pub use live::{LiveValue, live_at};
pub use manager::MemoryManager;
pub use out_of_memory::{Failure, OutOfMemory, Short};
pub use prediction::{Prediction, fits, live_bytes, peak_live, predict, predict_with};
pub use run_schedule::{EvaluationCycle, Evaluations, RunSchedule};
pub use step_work::{Load, StepWork, Task, carried_bytes};
pub use system::{Backing, System};
