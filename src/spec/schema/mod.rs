//! The keys of experiment and target files, the rules between them, and the configurations that they resolve to.

pub(crate) mod ablation;
pub(crate) mod collect;
pub(crate) mod data;
pub(crate) mod hints;
pub(crate) mod json_schema;
pub(crate) mod key;
pub(crate) mod memory;
pub(crate) mod model;
pub(crate) mod optimizer;
mod other_names;
pub(crate) mod plan;
pub(crate) mod reference;
pub(crate) mod repeats;
pub(crate) mod resolved;
pub(crate) mod rules;
pub(crate) mod run_tables;
pub(crate) mod schedule;
pub(crate) mod settings;
pub(crate) mod strategy;
pub(crate) mod target;
mod version;
pub(crate) mod write;
