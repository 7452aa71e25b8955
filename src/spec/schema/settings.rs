//! Keys and values as settings, and tables merged by them: a variant of a choice replaces another as a whole.

use std::collections::HashMap;

use super::key::{Key, STRATEGY, is_choice};
use crate::reader::source::Span;
use crate::reader::tree::{Node, Table, TableEntry, Value};

/// One key of a run and its value.
#[derive(Clone, Debug)]
pub struct Setting {
    pub key: Key,
    pub(crate) key_span: Span,
    pub node: Node,
}

impl TableEntry {
    fn collect_settings(&self, name: String, key_span: Span, settings: &mut Vec<Setting>) {
        match &self.node.value {
            // Several variants of a choice stay together, so that they are reported: one by one, the last would win.
            Value::Table(table) if table.entries.len() > 1 && is_choice(Key::new(&name).segments()) => {
                settings.push(Setting { key: Key::new(&name), key_span, node: self.node.clone() });
            }
            Value::Table(table) if !table.entries.is_empty() => {
                for entry in &table.entries {
                    // The span of a dotted key is the whole key; below a header it is the last part.
                    let dotted = entry.key_span.start == key_span.end + 1;
                    let span = if dotted { key_span.to(entry.key_span) } else { entry.key_span };
                    entry.collect_settings(format!("{name}.{}", entry.key), span, settings);
                }
            }
            _ => settings.push(Setting { key: Key::new(&name), key_span, node: self.node.clone() }),
        }
    }
}

impl Table {
    /// Merges another table over this one: tables merge key by key, values and lists are replaced, and another variant
    /// of a choice (`optimizer.lion` over `optimizer.adamw`) replaces the whole choice.
    pub(crate) fn merge(&mut self, over: Table) {
        self.merge_at(&mut Vec::new(), over);
    }

    fn merge_at(&mut self, path: &mut Vec<String>, over: Table) {
        let mut places = KeyIndex::of(self, over.entries.len());
        for entry in over.entries {
            let place = places.place(self, &entry.key);
            let Some(below) = self.entries.get_mut(place) else {
                self.entries.push(entry);
                continue;
            };
            below.key_span = entry.key_span;
            path.push(entry.key);
            match (&mut below.node.value, entry.node) {
                (Value::Table(below), Node { value: Value::Table(over), .. })
                    if !is_choice(path) || over.entries.iter().all(|e| below.entry(&e.key).is_some()) =>
                {
                    below.merge_at(path, over);
                }
                (_, node) => below.node = node,
            }
            path.pop();
        }
    }

    /// Sets one key, adding missing parent tables.
    pub(crate) fn set(&mut self, setting: &Setting) {
        self.merge(setting.to_table());
    }

    /// All keys below this table whose values are not tables, with their dotted paths. A key may be written nested
    /// (`train.batch_size`) or quoted (`"train.batch_size"`).
    pub(crate) fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        for entry in &self.entries {
            entry.collect_settings(entry.key.clone(), entry.key_span, &mut settings);
        }
        settings
    }

    /// Renames nested keys to their dotted paths, so that both notations merge as the same key.
    pub(crate) fn flatten(&mut self) {
        let entry =
            |Setting { key, key_span, node }| TableEntry { key: Key::to_string(&key), key_span, node };
        let entries = self.settings().into_iter().map(entry).collect();
        self.entries.clear();
        self.merge(Table { entries });
    }
}

/// The indices of a table's keys, hashed if many keys are looked up; few keys are found as fast by a linear search.
struct KeyIndex(Option<HashMap<String, usize>>);

impl KeyIndex {
    const MANY: usize = 16;

    fn of(table: &Table, wanted: usize) -> KeyIndex {
        let all =
            || table.entries.iter().enumerate().map(|(place, entry)| (entry.key.clone(), place)).collect();
        KeyIndex((wanted >= KeyIndex::MANY).then(all))
    }

    /// The index of a key, or the end of the table, where it will be added.
    fn place(&mut self, table: &Table, key: &str) -> usize {
        let end = table.entries.len();
        match &mut self.0 {
            Some(places) => *places.entry(key.to_string()).or_insert(end),
            None => table.entries.iter().position(|entry| entry.key == key).unwrap_or(end),
        }
    }
}

impl Setting {
    /// Whether it is a key of a strategy.
    pub fn is_of_strategy(&self) -> bool {
        self.key.segments().first().is_some_and(|first| first == STRATEGY)
    }

    /// A tree with this key only.
    pub(crate) fn to_table(&self) -> Table {
        let mut node = self.node.clone();
        let mut segments = self.key.segments().iter().rev().peekable();
        loop {
            let key = segments.next().cloned().unwrap_or_default();
            let table = Table { entries: vec![TableEntry { key, key_span: self.key_span, node }] };
            if segments.peek().is_none() {
                return table;
            }
            node = Node { value: Value::Table(table), span: self.key_span };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::parse::parse;

    fn table(text: &str) -> Table {
        parse(text, 0, 0).unwrap_or_else(|problem| panic!("{problem:?}"))
    }

    fn written(table: Table) -> String {
        Value::Table(table).to_string()
    }

    #[test]
    fn tables_merge_and_choices_are_replaced() {
        let merged = |below: &str, over: &str| {
            let mut below = table(below);
            below.merge(table(over));
            written(below)
        };
        assert_eq!(merged("b.x = 1\nb.y = [1]", "a = 0\nb.y = [2]"), "{ b = { x = 1, y = [2] }, a = 0 }");
        let adamw = "train.optimizer.adamw = { lr = 1, beta1 = 0.5 }";
        assert_eq!(
            merged(adamw, "train.optimizer.adamw.lr = 2"),
            "{ train = { optimizer = { adamw = { lr = 2, beta1 = 0.5 } } } }"
        );
        assert_eq!(
            merged(adamw, "train.optimizer.lion.lr = 2"),
            "{ train = { optimizer = { lion = { lr = 2 } } } }"
        );
        assert_eq!(merged("evaluation = \"off\"", "[evaluation]"), "{ evaluation = {} }");
        for table in ["strategy", "defaults", "strategies.lean"] {
            let replaced = merged(
                &format!("{table}.recompute = {{ segments = 4 }}"),
                &format!("{table}.recompute = {{ every = 2 }}"),
            );
            assert!(replaced.contains("{ every = 2 }"), "{replaced}");
        }
    }

    #[test]
    fn nested_and_quoted_keys_flatten_to_the_same_key() {
        let mut nested = table("train.seed = 1\n\"train.batch_size\" = 2\nstrategy.accumulate = 3");
        nested.flatten();
        assert_eq!(written(nested), "{ \"train.seed\" = 1, \"train.batch_size\" = 2, accumulate = 3 }");
    }
}
