//! A TOML tree with spans, in the order of the file.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::source::Span;
use crate::schema::key::{Key, is_choice};

/// A value and its span.
#[derive(Clone, Debug)]
pub struct Node {
    pub value: Value,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub enum Value {
    Text(String),
    Integer(i128),
    Float(f64),
    Boolean(bool),
    /// A date or time, as text: no key accepts one.
    Date(String),
    List(Vec<Node>),
    Table(Table),
}

/// Keys in the order of the file.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub(crate) entries: Vec<TableEntry>,
}

#[derive(Clone, Debug)]
pub struct TableEntry {
    pub(crate) key: String,
    pub(crate) key_span: Span,
    pub(crate) node: Node,
}

/// One key of a run and its value.
#[derive(Clone, Debug)]
pub struct Setting {
    pub key: Key,
    pub(crate) key_span: Span,
    pub node: Node,
}

impl TableEntry {
    /// The span of `key = value`; the key only, if the value is in another text or before it.
    pub fn span(&self) -> Span {
        self.key_span.to(self.node.span)
    }

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

impl Node {
    pub(crate) fn table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }
}

impl Table {
    pub(crate) fn entry(&self, key: &str) -> Option<&TableEntry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    pub(crate) fn table_mut(&mut self, key: &str) -> Option<&mut Table> {
        let entry = self.entries.iter_mut().find(|entry| entry.key == key)?;
        match &mut entry.node.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The entry at a dotted path, such as `train.batch_size`.
    pub fn find(&self, path: &str) -> Option<&TableEntry> {
        match path.split_once('.') {
            None => self.entry(path),
            Some((head, rest)) => self.entry(head)?.node.table()?.find(rest),
        }
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, key: &str) -> Option<TableEntry> {
        let index = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.remove(index))
    }

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

impl Value {
    /// A hash: equal for equal values.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        match self {
            Value::Text(text) | Value::Date(text) => text.hash(&mut hash),
            // As f64, as equality compares them; adding 0 removes the sign of -0.
            Value::Integer(integer) => (*integer as f64 + 0.0).to_bits().hash(&mut hash),
            Value::Float(float) => (float + 0.0).to_bits().hash(&mut hash),
            Value::Boolean(boolean) => boolean.hash(&mut hash),
            Value::List(nodes) => nodes.iter().for_each(|node| node.value.fingerprint().hash(&mut hash)),
            Value::Table(table) => {
                // Independent of the order.
                let entry = |entry: &TableEntry| {
                    let mut hash = DefaultHasher::new();
                    (&entry.key, entry.node.value.fingerprint()).hash(&mut hash);
                    hash.finish()
                };
                table.entries.iter().map(entry).fold(0, u64::wrapping_add).hash(&mut hash);
            }
        }
        hash.finish()
    }
}

/// Numbers are equal by value: 1 equals 1.0.
impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Text(a), Value::Text(b)) | (Value::Date(a), Value::Date(b)) => a == b,
            (Value::Integer(a), Value::Integer(b)) => a == b,
            (Value::Float(a), Value::Float(b)) => a == b,
            (Value::Integer(integer), Value::Float(float))
            | (Value::Float(float), Value::Integer(integer)) => *integer as f64 == *float,
            (Value::Boolean(a), Value::Boolean(b)) => a == b,
            (Value::List(a), Value::List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.value == b.value)
            }
            (Value::Table(a), Value::Table(b)) => {
                a.entries.len() == b.entries.len()
                    && a.entries
                        .iter()
                        .all(|entry| b.entry(&entry.key).is_some_and(|e| e.node.value == entry.node.value))
            }
            _ => false,
        }
    }
}

/// TOML on one line.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(&quoted(text)),
            Value::Integer(integer) => write!(f, "{integer}"),
            Value::Float(float) => write!(f, "{float:?}"),
            Value::Boolean(boolean) => write!(f, "{boolean}"),
            Value::Date(date) => f.write_str(date),
            Value::List(nodes) => {
                f.write_str("[")?;
                for (index, node) in nodes.iter().enumerate() {
                    write!(f, "{}{}", if index == 0 { "" } else { ", " }, node.value)?;
                }
                f.write_str("]")
            }
            Value::Table(table) => {
                f.write_str("{")?;
                for (index, entry) in table.entries.iter().enumerate() {
                    let comma = if index == 0 { " " } else { ", " };
                    write!(f, "{comma}{} = {}", bare_or_quoted(&entry.key), entry.node.value)?;
                }
                f.write_str(if table.entries.is_empty() { "}" } else { " }" })
            }
        }
    }
}

/// A TOML string on one line.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A TOML key, quoted only if necessary.
pub(crate) fn bare_or_quoted(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if bare { key.to_string() } else { quoted(key) }
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::*;

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
    fn equal_values_have_one_fingerprint() {
        let list = table(
            "v = [0, 0.0, -0.0, 3, 3.0, 9007199254740993, 9007199254740992.0, true, 'true', [1, 2], [2, 1], \
             { a = 1, b = 2.0 }, { b = 2, a = 1 }, { a = 2, b = 1 }]",
        );
        let Value::List(nodes) = &list.entries[0].node.value else { panic!() };
        let mut distinct = 0;
        for (a, b) in nodes.iter().flat_map(|a| nodes.iter().map(move |b| (&a.value, &b.value))) {
            assert!(a != b || a.fingerprint() == b.fingerprint(), "{a} {b}");
            distinct += usize::from(a.fingerprint() != b.fingerprint());
        }
        assert_eq!(distinct, 14 * 14 - 14 - 6 - 2 - 2 - 2);
    }

    #[test]
    fn nested_and_quoted_keys_flatten_to_the_same_key() {
        let mut nested = table("train.seed = 1\n\"train.batch_size\" = 2\nstrategy.accumulate = 3");
        nested.flatten();
        assert_eq!(written(nested), "{ \"train.seed\" = 1, \"train.batch_size\" = 2, accumulate = 3 }");
    }

    #[test]
    fn quoted_text_parses_back() {
        let text = "a\"\\\n\u{7f}é";
        let read = table(&format!("{} = {}", bare_or_quoted(text), quoted(text)));
        assert_eq!(read.entries[0].key, text);
        assert!(read.entries[0].node.value == Value::Text(text.to_string()));
    }
}
