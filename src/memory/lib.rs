//! Memory of a program: allocators, the ledger, the dry run and the prediction.

// The crate name that a shared test file of `testing` uses.
#[cfg(test)]
extern crate self as memory;

mod allocator;
mod collected;
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

pub use allocator::{Allocator, CacheStats, Concatenation, FreeMemory, Location, rounded};
pub use leaked::Leaked;
pub use live::{LiveValue, live_at};
pub use manager::MemoryManager;
pub use out_of_memory::{Failure, OutOfMemory, Shortfall};
pub use prediction::{EmbeddingDtypes, Prediction, fits, live_bytes, peak_live, predict, predict_with};
pub use run_schedule::{EvaluationCycle, Evaluations, RunSchedule};
pub use step_work::{Bottleneck, Exchanged, StepWork, Task, carried_bytes};
pub use system::{Backing, System};
