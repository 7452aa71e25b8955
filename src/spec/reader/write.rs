//! Writes a run as an experiment file, and as the identity that its id hashes.

use super::declare::{ChoiceTable, KeyCodec, KeyTable};
use super::tree::{bare_or_quoted, quoted};
use crate::schema::key::STRATEGY;
use crate::schema::resolved::RunConfig;

/// The keys that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// All keys.
    Complete,
    /// The keys that identify a run: no key at its default, and no paths.
    Identity,
}

impl RunConfig {
    /// This run as an experiment file with one strategy: all keys are written, paths are absolute, and numbers are
    /// exact. Expanding the file gives this configuration again.
    pub fn to_toml(&self, name: &str, strategy: &str) -> String {
        let strategy = format!("strategies.{}", bare_or_quoted(strategy));
        format!("name = {}\n{}", quoted(name), self.tables(WriteMode::Complete, &strategy))
    }

    /// A text that is equal for equal runs and only for these, independent of the paths of their data. Keys at their
    /// defaults are left out, so that keys added by a later version do not change it.
    pub fn identity(&self) -> String {
        self.tables(WriteMode::Identity, STRATEGY)
    }

    fn tables(&self, form: WriteMode, strategy_name: &str) -> String {
        // Destructured, so that a new table cannot be forgotten.
        let RunConfig { model, data, train, evaluation, measure, strategy, tokens: _ } = self;
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

/// The keys of a table in TOML.
pub(crate) struct TableWriter {
    form: WriteMode,
    keys: Vec<String>,
    /// Nested tables with their own headers.
    below: String,
}

impl TableWriter {
    pub(crate) fn of(section: &impl KeyTable, form: WriteMode) -> TableWriter {
        let mut lines = TableWriter::empty(form);
        section.write(&mut lines);
        lines
    }

    pub(crate) fn empty(form: WriteMode) -> TableWriter {
        TableWriter { form, keys: Vec::new(), below: String::new() }
    }

    /// The value of the only key, or the header of its table.
    pub(crate) fn default_text(&self, key: &str) -> String {
        let line = self.keys.first().and_then(|line| line.strip_prefix(&format!("{key} = ")));
        line.or_else(|| self.below.trim().lines().next()).unwrap_or_default().to_owned()
    }

    pub(crate) fn form(&self) -> WriteMode {
        self.form
    }

    /// Adds a declared key.
    pub(crate) fn key<D: KeyCodec>(
        &mut self,
        key: &str,
        value: &D::Output,
        default: Option<D::Output>,
        declared: D,
    ) {
        if self.form == WriteMode::Complete || default.is_none_or(|default| *value != default) {
            declared.write(key, value, self);
        }
    }

    pub(crate) fn line(&mut self, key: &str, value: &str) {
        self.keys.push(format!("{key} = {value}"));
    }

    pub(crate) fn table(&mut self, table: &str) {
        self.below.push_str(table);
    }

    /// As a table with this name.
    pub(crate) fn under(self, name: &str) -> String {
        let keys: String = self.keys.iter().map(|line| format!("{line}\n")).collect();
        format!("\n[{name}]\n{keys}{}", self.below)
    }

    /// As a table with this name, or nothing if it is empty.
    fn under_if_any(self, name: &str) -> String {
        if self.keys.is_empty() && self.below.is_empty() { String::new() } else { self.under(name) }
    }

    /// As a table on one line.
    pub(crate) fn inline(self) -> String {
        if self.keys.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", self.keys.join(", ")) }
    }
}
