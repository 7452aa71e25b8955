//! Data sets: what a run is fed, and how a batch is drawn from it.

mod digest;
mod error;
mod files;
mod sampling;
mod text;

pub use digest::DigestCache;
pub use error::DataError;
pub use text::{Splits, Summary, TextFiles};
