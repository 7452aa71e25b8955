//! Reads TOML into a tree that remembers where everything stands.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::Problem;
use super::source::Span;
use super::tree::{Entry, Node, Table, Value};

/// Parses a text, or the part of it from `offset` on. Fails where it is not TOML, or where a name is there twice.
pub(crate) fn parse(text: &str, source: usize, offset: usize) -> Result<Table, Vec<Problem>> {
    let place = Place { source, offset };
    let (table, mut errors) = DeTable::parse_recoverable(&text[offset..]);
    errors.sort_by_key(|error| error.span().map_or(usize::MAX, |span| span.start));
    if errors.is_empty() {
        return Ok(place.table(table.into_inner()));
    }
    let mut problems = Vec::new();
    let mut after = offset;
    for error in errors {
        let span = place.span(error.span().unwrap_or(text.len() - offset..text.len() - offset));
        // What is found behind a mistake on the same line may only be its consequence.
        if span.start >= after {
            let rest = text.as_bytes().get(span.start..).unwrap_or_default();
            after = span.start + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            problems.push(problem(&error, text, span));
        }
    }
    Err(problems)
}

fn problem(error: &toml::de::Error, text: &str, span: Span) -> Problem {
    if error.message() == "duplicate key" {
        let name = text.get(span.start..span.end).unwrap_or_default();
        return Problem::new(format!("`{name}` is there twice"))
            .at(span)
            .help("rename one of them, or remove it");
    }
    Problem::new(format!("this is not TOML: {}", error.message())).at(span)
}

#[derive(Clone, Copy)]
struct Place {
    source: usize,
    offset: usize,
}

impl Place {
    fn span(self, range: Range<usize>) -> Span {
        Span { source: self.source, start: range.start + self.offset, end: range.end + self.offset }
    }

    fn table(self, table: DeTable<'_>) -> Table {
        let entry = |(key, node): (Spanned<_>, _)| {
            let key_span = self.span(key.span());
            let key: std::borrow::Cow<'_, str> = key.into_inner();
            Entry { key: key.into_owned(), key_span, node: self.node(node) }
        };
        let mut entries: Vec<Entry> = table.into_iter().map(entry).collect();
        // The parser sorts keys by name; the order of the file is the order of the tables that people read.
        entries.sort_by_key(|entry| entry.key_span.start);
        Table { entries }
    }

    fn node(self, node: Spanned<DeValue<'_>>) -> Node {
        let span = self.span(node.span());
        let value = match node.into_inner() {
            DeValue::String(text) => Value::Text(text.into_owned()),
            // A number beyond 128 bits is out of every range, as the largest is.
            DeValue::Integer(integer) => {
                Value::Integer(i128::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(i128::MAX))
            }
            DeValue::Float(float) => Value::Float(float.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(boolean) => Value::Boolean(boolean),
            DeValue::Datetime(date) => Value::Date(date.to_string()),
            DeValue::Array(list) => Value::List(list.into_iter().map(|node| self.node(node)).collect()),
            DeValue::Table(table) => Value::Table(self.table(table)),
        };
        Node { value, span }
    }
}
