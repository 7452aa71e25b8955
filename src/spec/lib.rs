//! What the user wrote, and what it resolves to.
//!
//! A file takes this way: `load` reads it and what it extends into trees that remember where everything stands;
//! `written` checks each of them and reads the merged one; `document` puts it together, completes its `strategies`, and
//! resolves runs with `sections`. Every key is declared once, in the macros of `declare`, with its name, type, range and
//! default: in `resolved`, or in the file of its model, data, optimizer or strategy. Rules between tables are in `rules`.

mod data;
mod declare;
mod document;
mod error;
mod hints;
mod key;
mod kinds;
mod load;
mod memory;
mod model;
mod optimizer;
mod parse;
mod paths;
mod reader;
mod repeats;
mod resolved;
mod rules;
mod schedule;
mod sections;
mod source;
mod strategies;
mod strategy;
mod target;
mod tree;
mod version;
mod word_set;
mod write;
mod written;

pub use data::*;
pub use declare::Words;
pub use error::Error;
pub use memory::{Choices, MemoryPart};
pub use model::*;
pub use optimizer::*;
pub use paths::Environment;
pub use repeats::{Repeats, UntilKnown};
pub use resolved::{Evaluation, LastBatch, Measure, RunConfig, Seeds, Task, Train};
pub use schedule::*;
pub use source::Sources;
pub use source::Span;
pub use strategy::*;
pub use target::{Described, read_target};
pub use word_set::WordSet;

pub use document::Document;
pub use error::Problem;
pub use hints::nearest;
pub use rules::blame;
pub use strategies::combinations;
pub use strategy::STRATEGY_KEYS;
pub use tree::{Setting, Table};
pub use written::{Case, WrittenStrategy};

/// The tables of all variants of all choices that runs are written with: what is said of a configuration is written as what
/// that describes.
pub fn variants() -> Vec<&'static str> {
    fn of<T: declare::Choice>() -> impl Iterator<Item = &'static str> {
        T::VARIANTS.iter().map(|variant| variant.path)
    }
    let all = of::<Model>().chain(of::<Data>()).chain(of::<Optimizer>()).chain(of::<Schedule>());
    all.filter(|table| *table != "model.hf").collect()
}
