//! A table column: its title, when it is shown, its cells.

use super::TableView;
use super::cell::Cell;
use super::definitions::ALL;
use crate::Basis;
use crate::entry::TableEntry;
use crate::numbers::Unit;

/// A column: its name for `--columns`, when it is shown by default, and its cells.
#[derive(Debug)]
pub(crate) struct TableColumn {
    pub(crate) name: &'static str,
    pub(super) title: ColumnTitle,
    /// If the table is too wide, columns with the highest rank are dropped first; rank 0 is never dropped. Columns
    /// needed for a decision have a low rank, columns that repeat other columns or the effects a high one.
    pub(super) rank: fn(&TableView<'_>) -> u8,
    /// When tables of measured runs show it.
    pub(super) measured: Visibility,
    /// When tables of predicted runs show it.
    pub(super) predicted: Visibility,
    pub(super) cell: fn(&TableView<'_>, &TableEntry) -> Option<Cell>,
    /// The text in the legend; empty if the title suffices.
    pub(super) explanation: fn(&TableView<'_>) -> &'static str,
}

#[derive(Debug)]
pub(super) enum ColumnTitle {
    Fixed(&'static str),
    /// The unit of all sizes in the table.
    Unit,
    /// `tok/s` or `smp/s`.
    Speed,
    /// The external memory reading: `driver` on a GPU, `rss` on a CPU.
    External,
}

#[derive(Debug)]
pub(super) enum Visibility {
    Always,
    /// If any row has a value.
    IfKnown,
    When(fn(&TableView<'_>) -> bool),
    /// Only if listed in `--columns`.
    OnRequest,
}

/// The column with this name or heading.
pub(crate) fn find(name: &str) -> Option<&'static TableColumn> {
    let has_heading = |title: &ColumnTitle| match title {
        ColumnTitle::Fixed(title) => *title == name,
        ColumnTitle::External => ["driver", "rss"].contains(&name),
        ColumnTitle::Unit => Unit::is_name(name),
        ColumnTitle::Speed => ["tok/s", "smp/s"].contains(&name),
    };
    let matches = |column: &&TableColumn| column.name == name || has_heading(&column.title);
    ALL.iter().find(matches)
}

/// The names of all columns.
pub(crate) fn names() -> Vec<&'static str> {
    ALL.iter().map(|column| column.name).collect()
}

impl TableColumn {
    pub(crate) fn title(&self, view: &TableView<'_>) -> String {
        match self.title {
            ColumnTitle::Fixed(title) => title,
            ColumnTitle::Unit => view.unit.name,
            ColumnTitle::Speed => view.speed_unit,
            ColumnTitle::External => {
                if view.on_gpu() {
                    "driver"
                } else {
                    "rss"
                }
            }
        }
        .to_owned()
    }

    pub(super) fn is_shown(&self, view: &TableView<'_>) -> bool {
        let shown = match view.basis {
            Basis::Measured => &self.measured,
            Basis::Predicted => &self.predicted,
        };
        match shown {
            Visibility::Always => true,
            Visibility::IfKnown => view.any(|entry| (self.cell)(view, entry).is_some()),
            Visibility::When(holds) => holds(view),
            Visibility::OnRequest => false,
        }
    }

    /// The column's part of the legend: `rss: growth of the process's resident set`.
    pub(crate) fn explained(&self, view: &TableView<'_>) -> Option<String> {
        let explanation = (self.explanation)(view);
        (!explanation.is_empty()).then(|| format!("{}: {explanation}", self.title(view)))
    }
}
