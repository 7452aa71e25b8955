//! A run's child process: its messages, and its parent's view of it.

mod crash_log;
mod process;
mod protocol;

pub use process::{Crash, Ending, Exit, KILLED, LOG_FILE, run_children};
pub use protocol::{Message, Reporter, end_with_parent};
