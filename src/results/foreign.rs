//! Tables of other programs: a few of our columns, one line per measurement.

use std::collections::HashMap;

use csv::StringRecord;

use super::columns::Holder;

pub(super) const NAME: &str = "strategy";
/// A table needs at least one of these columns.
pub(super) const FIGURES: [&str; 6] =
    ["peak_bytes", "tokens_per_s", "samples_per_s", "step_ms_median", "loss_eval", "loss_last"];
/// Defaults of the required columns.
const DEFAULTS: [(&str, &str); 11] = [
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

/// Adds the missing columns of such a table.
#[derive(Default)]
pub(super) struct Foreign {
    /// Number of rows read, by strategy.
    repeats: HashMap<String, usize>,
}

impl Foreign {
    /// Columns that only our own tables have.
    pub(super) const OURS: [&'static str; 2] = ["run_id", "configuration"];

    /// Whether a header is that of another program's table.
    pub(super) fn matches(header: &[String]) -> bool {
        let has = |column: &str| header.iter().any(|other| other == column);
        !Foreign::OURS.iter().any(|column| has(column))
            && has(NAME)
            && FIGURES.iter().any(|column| has(column))
    }

    /// The missing columns of a row with their values. Rows of one strategy are repeats.
    pub(super) fn missing(
        &mut self,
        header: &[(Option<Holder>, String)],
        record: &StringRecord,
    ) -> Vec<(String, String)> {
        let has = |column: &str| header.iter().position(|(_, other)| other == column);
        let strategy = has(NAME).and_then(|at| record.get(at)).unwrap_or_default();
        let repeats = self.repeats.entry(strategy.to_owned()).or_default();
        *repeats += 1;
        let repeat = (REPEAT, repeats.to_string());
        let defaults = DEFAULTS.map(|(column, value)| (column, value.to_owned()));
        let all = defaults.into_iter().chain([repeat]);
        let missing = all.filter(|(column, _)| has(column).is_none());
        missing.map(|(column, value)| (column.to_owned(), value)).collect()
    }
}
