//! Lifetimes, places and counts: what a program's memory will be.

mod prediction;

pub use prediction::{OutOfMemory, Prediction};
