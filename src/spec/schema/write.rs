//! Writes a run as an experiment file, and as the identity that its id hashes.

use super::key::STRATEGY;
use super::model::{Model, Transformer};
use super::resolved::RunConfig;
use crate::reader::declare::ChoiceTable;
use crate::reader::tree::{bare_or_quoted, quoted};
use crate::reader::write::{TableWriter, WriteMode};

/// Runs that differ in strategy and batch size as an experiment file, with a strategy for each. Expanding the file gives
/// these configurations again.
pub fn experiment_toml(name: &str, runs: &[(&str, &RunConfig)]) -> String {
    let Some(((strategy, first), others)) = runs.split_first() else { return String::new() };
    let mut text = first.to_toml(name, strategy);
    for (strategy, run) in others {
        let header = format!("strategies.{}", bare_or_quoted(strategy));
        text.push_str(&TableWriter::of(&run.strategy, WriteMode::Complete).under(&header));
        if run.train.batch_size != first.train.batch_size {
            text.push_str(&format!("\n[{header}.set]\n\"train.batch_size\" = {}\n", run.train.batch_size));
        }
    }
    text
}

impl RunConfig {
    /// This run as an experiment file with one strategy: all keys are written, paths are absolute, and numbers are
    /// exact. Expanding the file gives this configuration again.
    pub fn to_toml(&self, name: &str, strategy: &str) -> String {
        let strategy = format!("strategies.{}", bare_or_quoted(strategy));
        format!("name = {}\n{}", quoted(name), self.tables(WriteMode::Complete, &strategy))
    }

    /// A text that is equal for equal runs and only for these, independent of the paths of their data. Keys at their
    /// defaults are left out, so that keys added by a later version do not change it. So is the model's family: layers
    /// have this program's names.
    pub fn identity(&self) -> String {
        let model = match self.model.clone() {
            Model::Transformer(model) => Model::Transformer(Transformer { family: None, ..model }),
            other => other,
        };
        RunConfig { model, ..self.clone() }.tables(WriteMode::Identity, STRATEGY)
    }

    fn tables(&self, form: WriteMode, strategy_name: &str) -> String {
        // Destructured, so that a new table cannot be forgotten.
        let RunConfig {
            model,
            data,
            train,
            evaluation,
            measure,
            strategy,
            data_len: _,
            lengths: _,
            all_packed: _,
        } = self;
        let evaluation =
            evaluation.as_ref().map(|evaluation| TableWriter::of(evaluation, form).under("evaluation"));
        [
            model.table(form),
            data.table(form),
            TableWriter::of(train, form).under("train"),
            evaluation.unwrap_or_default(),
            TableWriter::of(measure, form).under_if_any("measure"),
            TableWriter::of(strategy, form).under_if_any(strategy_name),
        ]
        .concat()
    }
}
