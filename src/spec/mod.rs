//! What the user wrote, and what it resolves to.
//!
//! A file takes this way: `load` reads it and what it extends into trees that remember where everything stands;
//! `written` checks each of them and reads the merged one; `document` puts it together, completes its
//! `strategies`, and resolves runs with `sections`, where every key has its name, range and default, and `rules`
//! between keys.

mod document;
mod error;
mod key;
mod kinds;
mod load;
mod loss_scale;
mod memory;
mod parse;
mod paths;
mod reader;
mod resolved;
mod rules;
mod sections;
mod source;
mod strategies;
mod tree;
mod version;
mod write;
mod written;

pub use error::Error;
pub use memory::{Choices, MemoryPart};
pub use paths::Environment;
pub use resolved::*;
pub use source::Sources;

pub(crate) use document::Document;
pub(crate) use error::Problem;
#[cfg(test)]
pub(crate) use sections::STRATEGY_KEYS;
pub(crate) use strategies::combinations;
pub(crate) use tree::Setting;
pub(crate) use written::{Case, WrittenStrategy};
