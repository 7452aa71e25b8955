//! What the user wrote, and what it resolves to.

mod resolved;

pub use resolved::*;
#[derive(Debug, thiserror::Error)]
#[error("stub")]
pub struct Error;
