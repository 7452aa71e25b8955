//! What the user wrote, and what it resolves to.

mod resolved;
mod stub;

pub use resolved::*;
pub use stub::to_toml;
