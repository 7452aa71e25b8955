//! Writes tables of declared keys as TOML.

use super::declare::{KeyCodec, KeyTable};

/// The keys that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// All keys.
    Complete,
    /// The keys that identify a run: no key at its default, and no paths.
    Identity,
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
    pub(crate) fn under_if_any(self, name: &str) -> String {
        if self.keys.is_empty() && self.below.is_empty() { String::new() } else { self.under(name) }
    }

    /// As a table on one line.
    pub(crate) fn inline(self) -> String {
        if self.keys.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", self.keys.join(", ")) }
    }
}
