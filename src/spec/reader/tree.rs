//! A TOML tree with spans, in the order of the file.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::source::Span;

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

impl TableEntry {
    /// The span of `key = value`; the key only, if the value is in another text or before it.
    pub fn span(&self) -> Span {
        self.key_span.to(self.node.span)
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
    fn quoted_text_parses_back() {
        let text = "a\"\\\n\u{7f}é";
        let read = table(&format!("{} = {}", bare_or_quoted(text), quoted(text)));
        assert_eq!(read.entries[0].key, text);
        assert!(read.entries[0].node.value == Value::Text(text.to_string()));
    }
}
