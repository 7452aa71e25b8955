//! What the columns of a comparison are, and what stands in them.

mod known;
mod note;

pub(super) use known::{TableColumn, find, names};
pub(super) use note::{mark, short, steps};

use super::entry::Entry;
use super::numbers::Unit;
use super::table::{Column, Line, Table};
use super::text::one_line;
use super::{Basis, Comparison, axes};

/// Nothing to say.
const NONE: &str = "-";

/// What columns are chosen by and filled from.
pub(super) struct View<'a> {
    entries: Vec<&'a Entry>,
    basis: Basis,
    /// Of all sizes.
    unit: Unit,
    /// What the speed counts: `tok/s` or, for models without tokens, `smp/s`.
    speed_unit: &'static str,
}

impl View<'_> {
    fn any(&self, holds: impl Fn(&Entry) -> bool) -> bool {
        self.entries.iter().any(|entry| holds(entry))
    }

    /// Whether the external reading is a card's driver's.
    fn on_a_card(&self) -> bool {
        self.any(|entry| entry.row.context_bytes.is_some())
    }

    fn bytes(&self, bytes: Option<u64>) -> Option<String> {
        bytes.map(|bytes| self.unit.show(bytes))
    }

    fn column(&self, title: String, rank: u8, cell: impl Fn(&Entry) -> Option<String>) -> Column {
        let cell = |entry: &&Entry| cell(entry).unwrap_or_else(|| NONE.into());
        Column { title, rank, cells: self.entries.iter().map(cell).collect() }
    }
}

pub(super) fn view(comparison: &Comparison) -> View<'_> {
    let entries: Vec<&Entry> = comparison.entries().collect();
    let unit = Unit::of(entries.iter().filter_map(|entry| entry.memory));
    View { entries, basis: comparison.basis, unit, speed_unit: comparison.speed_unit }
}

/// The columns that were asked for or, where none were, all that have something to say.
pub(super) fn shown(comparison: &Comparison, view: &View<'_>) -> Vec<&'static TableColumn> {
    match &comparison.columns {
        Some(asked) => asked.clone(),
        None => known::ALL.iter().filter(|column| column.is_shown(view)).collect(),
    }
}

pub(super) fn table(comparison: &Comparison) -> Table {
    let view = view(comparison);
    let swept = axes::inner(&view.entries);
    let in_columns = comparison.by.is_none() && swept.len() <= MOST_AXES;
    let mut columns = Vec::new();
    if in_columns {
        let value = |key: &str| {
            view.column(axes::short(key, &swept).to_owned(), 0, |entry| axes::inner_value(&entry.row, key))
        };
        columns.extend(swept.iter().map(|key| value(key)));
    }
    columns.extend(
        shown(comparison, &view)
            .into_iter()
            .map(|column| view.column(column.title(&view), column.rank, |entry| (column.cell)(&view, entry))),
    );
    let mut headings = Vec::new();
    let mut before = 0;
    for group in &comparison.groups {
        if !group.heading.is_empty() {
            headings.push((before, one_line(&group.heading)));
        }
        before += group.entries.len();
    }
    let name = |entry: &Entry| match entry.label.strip_prefix(&entry.row.strategy) {
        // What tells it from others of its name stays.
        Some(more) if in_columns => axes::label_without(&entry.row, |_| true) + more,
        _ => entry.label.clone(),
    };
    let line = |entry: &&Entry| Line {
        mark: mark(entry),
        name: one_line(&name(entry)),
        note: one_line(&note::note(entry)),
    };
    Table {
        name: if comparison.by.is_some() { "point" } else { "strategy" }.into(),
        note: "effects".into(),
        lines: view.entries.iter().map(line).collect(),
        columns,
        headings,
    }
}

/// Keys swept inside strategies that have columns of their own; more of them stay in the names.
const MOST_AXES: usize = 2;
