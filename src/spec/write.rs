//! A run as an experiment of its own, and what makes it the run that it is.

use super::declare::{Choice, Declared, Section};
use super::key::STRATEGY;
use super::resolved::RunConfig;
use super::tree::{bare_or_quoted, quoted};

/// What is written of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Everything.
    Whole,
    /// What tells it from others: no key at its default, and not where things lie.
    Identity,
}

impl RunConfig {
    /// This run as an experiment file with one strategy: nothing is left to defaults, paths are absolute, and
    /// numbers are exact. Expanding it gives this configuration again.
    pub fn to_toml(&self, name: &str, strategy: &str) -> String {
        let strategy = format!("strategies.{}", bare_or_quoted(strategy));
        format!("name = {}\n{}", quoted(name), self.tables(Form::Whole, &strategy))
    }

    /// Says equal things of equal runs, and others of others, wherever their data lies. Keys at their defaults are
    /// left out, so that a key that a later version adds changes nothing here.
    pub fn identity(&self) -> String {
        self.tables(Form::Identity, STRATEGY)
    }

    fn tables(&self, form: Form, strategy_name: &str) -> String {
        // Taken apart, so that a new table does not go by unwritten.
        let RunConfig { model, data, train, evaluation, measure, strategy, tokens: _ } = self;
        let evaluation =
            evaluation.as_ref().map(|evaluation| Lines::of(evaluation, form).under("evaluation"));
        [
            model.table(form),
            data.table(form),
            Lines::of(train, form).under("train"),
            evaluation.unwrap_or_default(),
            Lines::of(measure, form).under_if_any("measure"),
            Lines::of(strategy, form).under_if_any(strategy_name),
        ]
        .concat()
    }
}

/// The keys of a table, as TOML writes them.
pub(crate) struct Lines {
    form: Form,
    keys: Vec<String>,
    /// Tables of their own.
    below: String,
}

impl Lines {
    pub(crate) fn of(section: &impl Section, form: Form) -> Lines {
        let mut lines = Lines { form, keys: Vec::new(), below: String::new() };
        section.write(&mut lines);
        lines
    }

    pub(crate) fn form(&self) -> Form {
        self.form
    }

    /// One declared key.
    pub(crate) fn key<D: Declared>(
        &mut self,
        key: &str,
        value: &D::Output,
        default: Option<D::Output>,
        declared: D,
    ) {
        if self.form == Form::Whole || default.is_none_or(|default| *value != default) {
            declared.write(key, value, self);
        }
    }

    pub(crate) fn line(&mut self, key: &str, value: &str) {
        self.keys.push(format!("{key} = {value}"));
    }

    pub(crate) fn table(&mut self, table: &str) {
        self.below.push_str(table);
    }

    /// As a table of this name.
    pub(crate) fn under(self, name: &str) -> String {
        let keys: String = self.keys.iter().map(|line| format!("{line}\n")).collect();
        format!("\n[{name}]\n{keys}{}", self.below)
    }

    /// As a table of this name, whose absence says as much as an empty one.
    fn under_if_any(self, name: &str) -> String {
        if self.keys.is_empty() && self.below.is_empty() { String::new() } else { self.under(name) }
    }

    /// As a table on one line.
    pub(crate) fn inline(self) -> String {
        if self.keys.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", self.keys.join(", ")) }
    }
}
