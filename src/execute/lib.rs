//! Trains and measures one run in a child process that reports its progress to the parent.

mod batch_source;
mod conditions;
mod contention;
mod counts;
mod crash_log;
mod digest;
mod dump;
mod effects;
mod engine;
mod error;
mod evaluation_log;
mod external_reading;
mod last_uses;
mod line_file;
mod loader;
mod measured;
mod prepared;
mod prime;
mod process;
mod products;
mod protocol;
mod step_log;
mod tensor_file;
#[cfg(test)]
mod tests;
mod timeline;
mod train;
mod unchanged;
mod updated_by;
mod volume;

pub use counts::Counts;
pub use dump::{DUMP_FILES, dump};
pub use effects::{leaked_each_step, micro_batches_of, more_flops, untrained_parameters};
pub use engine::{Engine, StepReport};
pub use error::RunError;
pub use evaluation_log::EVALUATIONS_FILE;
pub use external_reading::{ExternalCounter, ExternalReading, agrees, driver_agrees};
pub use measured::{Ended, Measured, Outcome, in_pieces};
pub use prepared::DATA_FILE;
pub use prime::prime;
pub use process::{Crash, Ending, Exit, LOG_FILE, run_child};
pub use products::{MatmulAlgorithmSources, PRODUCTS_FILE};
pub use protocol::{Message, Reporter, end_with_parent};
pub use step_log::STEPS_FILE;
pub use timeline::Timeline;
pub use train::{MEMORY_FILE, run};
