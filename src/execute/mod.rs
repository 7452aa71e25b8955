//! One run, measured: in a child process, which tells its parent how it goes.

mod measurement;
mod process;
mod protocol;
mod train;

pub use measurement::{Ended, Measurement};
pub use process::{Crash, Ending, Exit, LOG_FILE, run_child};
pub use protocol::{Message, Reporter, end_with_parent};
pub use train::run;
