//! Experiment files: reading, validation, and the resolved configurations of runs.
//!
//! `load` parses an experiment file and the files that it extends into trees with spans. `written` checks each tree and
//! reads the merged one. `document` combines the result, completes its `strategies` and resolves runs with
//! `run_tables`. Every key is declared once, with the macros of `declare`, with its name, type, range and default: in
//! `resolved`, or in the file of its model, data, optimizer, schedule or strategy. Rules between tables are in `rules`.

mod experiment;
mod reader;
mod schema;

pub use experiment::document::Document;
pub use experiment::strategies::combinations;
pub use experiment::written::{Case, WrittenStrategy};
pub use reader::declare::KeywordEnum;
pub use reader::error::{Error, Problem};
pub use reader::hints::nearest;
pub use reader::keyword_set::KeywordSet;
pub use reader::paths::Environment;
pub use reader::reference::{KeyReference, key_reference};
pub use reader::source::{Sources, Span};
pub use reader::tree::{Setting, Table};
pub use schema::data::*;
pub use schema::memory::{MemoryKey, ProgramKey};
pub use schema::model::*;
pub use schema::optimizer::*;
pub use schema::repeats::{Repeats, UntilPrecise};
pub use schema::resolved::{Evaluation, LastBatch, Measure, RunConfig, SeedPolicy, Task, Train};
pub use schema::rules::attach_span;
pub use schema::schedule::*;
pub use schema::strategy::*;
pub use schema::target::{Described, read_target};

use reader::declare::ChoiceTable;

/// The names of all variant tables in which resolved runs are written. `model.hf` is not among them: it is resolved to
/// `model.transformer`.
pub fn variants() -> Vec<&'static str> {
    fn of<T: ChoiceTable>() -> impl Iterator<Item = &'static str> {
        T::VARIANTS.iter().map(|variant| variant.path)
    }
    let all = of::<Model>().chain(of::<Data>()).chain(of::<Optimizer>()).chain(of::<Schedule>());
    all.filter(|table| *table != "model.hf").collect()
}
