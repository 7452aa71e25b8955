//! The columns of a comparison and their cells.

mod cell;
mod column;
mod definitions;
mod note;
mod side_by_side;

pub use cell::Cell;
pub(super) use column::{TableColumn, find, names};
pub(super) use note::{mark, short, status, steps};
pub(super) use side_by_side::SideBySide;

use super::entry::TableEntry;
use super::group::TableGroup;
use super::numbers::Unit;
use super::table::{Column, Remainder, Table, TableLine};
use super::text::one_line;
use super::{Basis, Comparison, axes};
use device::Role;

/// An empty cell.
const NONE: &str = "-";

/// The entries and units from which columns are chosen and filled.
pub(super) struct TableView<'a> {
    entries: Vec<&'a TableEntry>,
    basis: Basis,
    /// The unit of all sizes.
    unit: Unit,
    /// `tok/s` or, for models without tokens, `smp/s`.
    speed_unit: &'static str,
    /// Whether the memory is PyTorch's.
    of_pytorch: bool,
}

impl TableView<'_> {
    fn any(&self, holds: impl Fn(&TableEntry) -> bool) -> bool {
        self.entries.iter().any(|entry| holds(entry))
    }

    /// Whether two entries have accuracies that differ in the digits of a table, not by the order of sums.
    fn accuracies_differ(&self) -> bool {
        let mut all = self.entries.iter().filter_map(|entry| entry.row.accuracy);
        all.next().is_some_and(|first| all.any(|other| (other - first).abs() >= 0.5e-4))
    }

    /// Whether the external reading is the GPU driver's.
    fn on_gpu(&self) -> bool {
        self.any(|entry| entry.row.context_bytes.is_some())
    }

    fn bytes(&self, bytes: Option<u64>) -> Option<Cell> {
        bytes.map(|bytes| Cell::new(self.unit.show(bytes), bytes as f64))
    }

    fn size(&self, bytes: Option<u64>) -> Option<String> {
        bytes.map(|bytes| self.unit.show(bytes))
    }

    pub(super) fn unit(&self) -> Unit {
        self.unit
    }

    /// Whether reserved bytes differ from live ones in any cell.
    pub(super) fn shows_reserved(&self) -> bool {
        self.any(|entry| entry.reserved.is_some() && self.size(entry.reserved) != self.size(entry.memory))
    }

    fn column(&self, title: String, rank: u8, cell: impl Fn(&TableEntry) -> Option<Cell>) -> Column {
        let cell = |entry: &&TableEntry| cell(entry).unwrap_or_else(|| Cell::text(NONE));
        let cells = self.entries.iter().map(cell);
        let (cells, values) = cells.map(|Cell { text, value }| (text, value)).unzip();
        Column { title, rank, cells, values }
    }
}

pub(super) fn view(comparison: &Comparison) -> TableView<'_> {
    let entries: Vec<&TableEntry> = comparison.entries().collect();
    let unit = Unit::for_sizes(entries.iter().filter_map(|entry| entry.memory));
    let (basis, speed_unit) = (comparison.basis, comparison.speed_unit);
    TableView { entries, basis, unit, speed_unit, of_pytorch: comparison.pytorch.is_some() }
}

/// The requested columns; by default, all that are relevant to these entries.
pub(super) fn shown(comparison: &Comparison, view: &TableView<'_>) -> Vec<&'static TableColumn> {
    match &comparison.columns {
        Some(requested) => requested.clone(),
        None => definitions::ALL.iter().filter(|column| column.is_shown(view)).collect(),
    }
}

pub(super) fn table(comparison: &Comparison) -> Table {
    let view = view(comparison);
    let swept = axes::inner(&view.entries);
    let in_columns = comparison.by.is_none() && swept.len() <= MOST_AXES;
    let mut columns = Vec::new();
    if in_columns {
        let value = |key: &str| {
            let cell = |entry: &TableEntry| axes::inner_value(&entry.row, key).map(|text| Cell::key(&text));
            view.column(axes::short(key, &swept).to_owned(), 0, cell)
        };
        columns.extend(swept.iter().map(|key| value(key)));
    }
    let shown = shown(comparison, &view);
    // Requested columns are shown as they are.
    let remainder = comparison.columns.is_none().then(|| remainder(&view, &shown, columns.len())).flatten();
    columns.extend(shown.into_iter().map(|column| {
        view.column(column.title(&view), (column.rank)(&view), |entry| (column.cell)(&view, entry))
    }));
    let mut headings = Vec::new();
    let mut before = 0;
    for group in &comparison.groups {
        if !group.heading.is_empty() {
            headings.push((before, one_line(&group.heading)));
        }
        before += group.entries.len();
    }
    let name = |entry: &TableEntry| match entry.label.strip_prefix(&entry.row.strategy) {
        // Keep the `[run id]` that distinguishes runs of the same label.
        Some(more) if in_columns => axes::label_without(&entry.row, |_| true) + more,
        _ => entry.label.clone(),
    };
    let of_group = |group: &TableGroup| {
        let dtypes = note::group_dtypes(group);
        let line = |entry: &TableEntry| TableLine {
            mark: mark(entry),
            name: one_line(&name(entry)),
            note: one_line(&note::note(entry, group, &dtypes)),
        };
        group.entries.iter().map(line).collect::<Vec<_>>()
    };
    Table {
        name: if comparison.by.is_some() { "point" } else { "strategy" }.into(),
        note: "effects".into(),
        lines: comparison.groups.iter().flat_map(of_group).collect(),
        columns,
        headings,
        remainder,
    }
}

/// The column of all roles without a column, among columns of which the first has this index.
fn remainder(view: &TableView<'_>, shown: &[&TableColumn], first: usize) -> Option<Remainder> {
    let index = |name: &str| shown.iter().position(|column| column.name == name).map(|at| first + at);
    let bytes = |role: Role| view.entries.iter().map(|entry| entry.row.live[role]).collect();
    let parts = definitions::PARTS.iter().filter_map(|(name, role)| Some((index(name)?, bytes(*role))));
    Some(Remainder {
        at: index(definitions::REMAINDER)?,
        own: view.entries.iter().map(|entry| definitions::other_roles(entry)).collect(),
        parts: parts.collect(),
        unit: view.unit,
    })
}

/// Up to this number, keys swept inside strategies get their own columns; more stay in the names.
const MOST_AXES: usize = 2;
