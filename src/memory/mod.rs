//! Lifetimes, places and counts: what a program's memory is, before it runs and while it does.

mod live;
mod manager;
mod prediction;

pub use live::{LiveValue, live_at};
pub use manager::{Backing, Failure, Manager, OutOfMemory, rounded};
pub use prediction::{Prediction, live_bytes, peak_live, predict};
