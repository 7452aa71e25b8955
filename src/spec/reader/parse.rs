//! Parses TOML into a tree with spans.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::Problem;
use super::hints;
use super::source::Span;
use super::tree::{Node, Table, TableEntry, Value};

/// Parses a text, or the part of it from `offset` on. Fails if it is not TOML or has duplicate keys.
pub(crate) fn parse(text: &str, source: usize, offset: usize) -> Result<Table, Vec<Problem>> {
    let base = SourceOffset { source, offset };
    let (table, mut errors) = DeTable::parse_recoverable(&text[offset..]);
    errors.sort_by_key(|error| error.span().map_or(usize::MAX, |span| span.start));
    if errors.is_empty() {
        return Ok(base.table(table.into_inner()));
    }
    let mut problems = Vec::new();
    let mut after = offset;
    for error in errors {
        let span = base.span(error.span().unwrap_or(text.len() - offset..text.len() - offset));
        // Later errors on the same line may be consequences of the first.
        if span.start >= after {
            let rest = text.as_bytes().get(span.start..).unwrap_or_default();
            after = span.start + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            problems.push(problem(&error, text, offset, span));
        }
    }
    Err(problems)
}

fn problem(error: &toml::de::Error, text: &str, offset: usize, span: Span) -> Problem {
    if error.message() == "duplicate key" {
        let name = text.get(span.start..span.end).unwrap_or_default();
        return Problem::new(format!("duplicate key `{name}`")).at(span).help("rename or remove one of them");
    }
    let problem = Problem::new(format!("invalid TOML: {}", error.message())).at(span);
    let begin =
        text.get(..span.start).and_then(|before| before.rfind('\n')).map_or(offset, |newline| newline + 1);
    let line = text.get(begin..).and_then(|rest| rest.lines().next()).unwrap_or_default();
    match hints::other_line(line) {
        Some(meant) => problem.help(format!("did you mean {meant}?")),
        None => problem,
    }
}

#[derive(Clone, Copy)]
struct SourceOffset {
    source: usize,
    offset: usize,
}

impl SourceOffset {
    fn span(self, range: Range<usize>) -> Span {
        Span { source: self.source, start: range.start + self.offset, end: range.end + self.offset }
    }

    fn table(self, table: DeTable<'_>) -> Table {
        let entry = |(key, node): (Spanned<_>, _)| {
            let key_span = self.span(key.span());
            let key: std::borrow::Cow<'_, str> = key.into_inner();
            TableEntry { key: key.into_owned(), key_span, node: self.node(node) }
        };
        let mut entries: Vec<TableEntry> = table.into_iter().map(entry).collect();
        // The parser sorts keys by name; restore the order of the file, which is the order in tables of results.
        entries.sort_by_key(|entry| entry.key_span.start);
        Table { entries }
    }

    fn node(self, node: Spanned<DeValue<'_>>) -> Node {
        let span = self.span(node.span());
        let value = match node.into_inner() {
            DeValue::String(text) => Value::Text(text.into_owned()),
            // A number beyond 128 bits is out of every range, as `i128::MAX` is.
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
