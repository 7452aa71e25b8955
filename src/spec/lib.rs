//! Experiment files: reading, validation, and the resolved configurations of runs.
//!
//! `reader` parses TOML into trees with spans and reads tables of declared keys; it imports neither of the others.
//! `schema` declares every key once, with the macros of `reader::declare`: its name, type, range and default. It also has
//! the rules between tables (`rules`). `experiment` checks an experiment file and each file that it extends, merges them,
//! completes the strategies and resolves runs.

mod experiment;
mod reader;
mod schema;

pub use data::{PaddedLengths, PaddedMicroBatch, PartRole};
pub use experiment::ablation::AblationLabel;
pub use experiment::document::{Document, Resolved};
pub use experiment::load::ExperimentInput;
pub use experiment::strategies::combinations;
pub use experiment::written::{Case, WrittenStrategy};
pub use reader::declare::KeywordEnum;
pub use reader::error::{Error, Problem};
pub use reader::hints::nearest;
pub use reader::keyword_set::KeywordSet;
pub use reader::other_files::{OtherFile, OtherKind, Wanted, other_file};
pub use reader::paths::Environment;
pub use reader::source::{Sources, Span};
pub use reader::tree::Table;
pub use schema::ablation::{Ablation, AblationRows};
pub use schema::collect::{Collect, CollectedIn, CollectedOutput};
pub use schema::data::*;
pub use schema::json_schema::{SchemaKind, json_schema};
pub use schema::memory::{MemoryKey, ProgramKey};
pub use schema::model::*;
pub use schema::optimizer::*;
pub use schema::plan::{
    AllocConf, BITSANDBYTES_VERSION, Framework, PlanKeys, TorchCheckpoint, TorchKernels, TorchOptimizer,
    TorchOptions, TorchProgram, TorchVersion, TransformersVersion,
};
pub use schema::reference::{KeyReference, key_reference};
pub use schema::repeats::{Repeats, UntilPrecise};
pub use schema::resolved::{Evaluation, LastBatch, Measure, RunConfig, SeedPolicy, Task, Train};
pub use schema::rules::attach_span;
pub use schema::schedule::*;
pub use schema::settings::Setting;
pub use schema::strategy::*;
pub use schema::target::{Described, HOST_THREADS, NodeRates, read_target};
pub use schema::write::experiment_toml;

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
