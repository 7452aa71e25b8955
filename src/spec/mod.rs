//! What the user wrote, and what it resolves to.

mod resolved;

pub use resolved::*;
