//! Experiment files: reading, validation, and the resolved configurations of runs.
//!
//! `load` parses an experiment file and the files that it extends into trees with spans. `written` checks each tree and
//! reads the merged one. `document` combines the result, completes its `strategies` and resolves runs with
//! `run_tables`. Every key is declared once, with the macros of `declare`, with its name, type, range and default: in
//! `resolved`, or in the file of its model, data, optimizer, schedule or strategy. Rules between tables are in `rules`.

mod data;
mod declare;
mod document;
mod error;
mod hints;
mod key;
mod keyword_set;
mod load;
mod memory;
mod model;
mod optimizer;
mod parse;
mod parsers;
mod paths;
mod reader;
mod reference;
mod repeats;
mod resolved;
mod rules;
mod run_tables;
mod schedule;
mod source;
mod strategies;
mod strategy;
mod target;
mod tree;
mod version;
mod write;
mod written;

pub use data::*;
pub use declare::KeywordEnum;
pub use error::Error;
pub use keyword_set::KeywordSet;
pub use memory::{MemoryKey, ProgramKey};
pub use model::*;
pub use optimizer::*;
pub use paths::Environment;
pub use reference::{KeyReference, key_reference};
pub use repeats::{Repeats, UntilPrecise};
pub use resolved::{Evaluation, LastBatch, Measure, RunConfig, SeedPolicy, Task, Train};
pub use schedule::*;
pub use source::Sources;
pub use source::Span;
pub use strategy::*;
pub use target::{Described, read_target};

pub use document::Document;
pub use error::Problem;
pub use hints::nearest;
pub use rules::attach_span;
pub use strategies::combinations;
pub use strategy::STRATEGY_KEYS;
pub use tree::{Setting, Table};
pub use written::{Case, WrittenStrategy};

/// The names of all variant tables in which resolved runs are written. `model.hf` is not among them: it is resolved to
/// `model.transformer`.
pub fn variants() -> Vec<&'static str> {
    fn of<T: declare::ChoiceTable>() -> impl Iterator<Item = &'static str> {
        T::VARIANTS.iter().map(|variant| variant.path)
    }
    let all = of::<Model>().chain(of::<Data>()).chain(of::<Optimizer>()).chain(of::<Schedule>());
    all.filter(|table| *table != "model.hf").collect()
}
