//! Tables of other programs: a few columns of ours, a line for each time that something was measured.

use std::collections::HashMap;

/// What tells our tables from others: these have neither.
const OURS: [&str; 2] = ["run_id", "configuration"];
const NAME: &str = "strategy";
/// One of these at least, or there is nothing to compare.
const FIGURES: [&str; 6] =
    ["peak_bytes", "tokens_per_s", "samples_per_s", "step_ms_median", "loss_eval", "loss_last"];
/// Columns that every row has, and what they are where a table does not say.
const OTHERWISE: [(&str, &str); 11] = [
    ("experiment", ""),
    ("run_id", ""),
    ("status", "ok"),
    ("device", ""),
    ("model", ""),
    ("precision", ""),
    ("no_effect", ""),
    ("message", ""),
    ("version", ""),
    ("limited", "false"),
    ("configuration", ""),
];
const REPEAT: &str = "repeat";

/// Fills in what such a table does not say.
#[derive(Default)]
pub(super) struct Foreign {
    /// How often each strategy was met.
    met: HashMap<String, usize>,
}

impl Foreign {
    /// Whether it is such a table.
    pub(super) fn has_made(header: &[String]) -> bool {
        let has = |column: &str| header.iter().any(|other| other == column);
        !OURS.iter().any(|column| has(column)) && has(NAME) && FIGURES.iter().any(|column| has(column))
    }

    /// The columns that a row lacks. Rows of one strategy are its repeats.
    pub(super) fn lacking(&mut self, header: &[String], cells: &[&str]) -> Vec<(String, String)> {
        let place = header.iter().position(|column| column == NAME);
        let strategy = place.and_then(|at| cells.get(at)).copied().unwrap_or_default();
        let met = self.met.entry(strategy.to_owned()).or_default();
        *met += 1;
        let repeat = (REPEAT, met.to_string());
        let others = OTHERWISE.map(|(column, value)| (column, value.to_owned()));
        let all = others.into_iter().chain([repeat]);
        let lacking = all.filter(|(column, _)| !header.iter().any(|other| other == column));
        lacking.map(|(column, value)| (column.to_owned(), value)).collect()
    }
}
