//! Trains and measures one run in a child process that reports its progress to the parent.

mod child;
mod dump;
mod engine;
mod error;
mod loader;
mod logs;
mod metrics;
mod prepare;
#[cfg(test)]
mod tests;
mod train;

pub use child::{Crash, Ending, Exit, KILLED, LOG_FILE, Message, Reporter, end_with_parent, run_children};
pub use dump::{DumpContents, dump};
pub use engine::{Engine, StepReport};
pub use error::RunError;
pub use logs::STEPS_FILE;
pub use metrics::{
    Counts, Ended, ExternalCounter, ExternalReading, Measured, Outcome, agrees, collected_each_evaluation,
    driver_agrees, exchanged_by_ranks, high_water_mark, in_pieces, leaked_each_step, micro_batches_of,
    more_flops, untrained_parameters,
};
pub use prepare::{DATA_FILE, PRODUCTS_FILE, prime};
pub use train::{MEMORY_FILE, RankPlace, run};
