//! Files that a run writes about itself: one line for each step, evaluation or instruction.

mod evaluation_log;
mod line_file;
mod step_log;
mod timeline;

pub(crate) use evaluation_log::EvaluationLog;
pub use step_log::STEPS_FILE;
pub(crate) use step_log::{StepLog, TimedStep};
pub(crate) use timeline::Timeline;
