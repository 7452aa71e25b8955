//! Checks the header of a table: other separators, and names of columns that have others here.

use std::path::Path;

use super::columns::COLUMNS;
use super::csv::CsvError;
use super::foreign::{FIGURES, Foreign, NAME};
use spec::{Wanted, other_file};

/// Separators of cells that other programs write, and their names.
const SEPARATORS: [(char, &str); 3] = [(';', "semicolons"), ('\t', "tabs"), ('|', "`|`")];

/// Our columns, their names in other tables in lower case, and their unit.
const OTHER_NAMES: [(&str, &[&str], &str); 6] = [
    (
        "peak_bytes",
        &["b", "kib", "mib", "gib", "kb", "mb", "gb", "peak", "memory", "peak_memory", "max_memory"],
        " (in bytes)",
    ),
    ("tokens_per_s", &["tok/s", "tokens/s", "tokens_per_second", "tps"], ""),
    ("samples_per_s", &["smp/s", "samples/s", "samples_per_second"], ""),
    ("step_ms_median", &["ms/step", "step_ms", "ms"], " (in milliseconds)"),
    ("loss_eval", &["eval_loss", "val_loss"], ""),
    ("loss_last", &["loss", "train_loss"], ""),
];
/// Other names of the column of strategies, in a table that has none.
const OTHER_STRATEGIES: [&str; 5] = ["name", "method", "config", "configuration", "variant"];

/// Fails if a header is not that of a table of results, whether ours or another program's.
pub(super) fn check(file: &Path, header: &[String]) -> Result<(), CsvError> {
    let has = |column: &str| header.iter().any(|other| other == column);
    let error = |problem: String, help: String| CsvError::Header { file: file.to_path_buf(), problem, help };
    let is_ours = Foreign::OURS.iter().all(|column| has(column)) || has("experiment");
    if is_ours {
        return Ok(());
    }
    if let [one] = header {
        let found =
            SEPARATORS.iter().find(|(separator, _)| one.split(*separator).any(|cell| meant(cell).is_some()));
        if let Some((_, name)) = found {
            return Err(error(
                format!("the cells are separated by {name}"),
                "write the table with commas between cells and points in decimals, as in `1.5`".to_owned(),
            ));
        }
    }
    let renamed: Vec<String> = header
        .iter()
        .filter(|column| !COLUMNS.contains(column))
        .filter_map(|column| Some((column, meant(column).filter(|(own, _)| !has(own))?)))
        .map(|(column, (own, unit))| format!("`{own}`{unit} for `{column}`"))
        .collect();
    let is_table = Foreign::matches(header);
    match renamed.as_slice() {
        [] if is_table => Ok(()),
        // A column of that name would be read as a swept key.
        [_, ..] => Err(error(
            "its columns have other names than those of a table of results".to_owned(),
            format!("write {}", renamed.join(", ")),
        )),
        [] => Err(match other_file(file, Wanted::Table) {
            Some(other) => CsvError::OtherFile { file: file.to_path_buf(), other },
            None => CsvError::NoTable { file: file.to_path_buf(), figures: FIGURES.join(", ") },
        }),
    }
}

/// Our column that another name means, with its unit.
fn meant(column: &str) -> Option<(&str, &'static str)> {
    let lower = column.trim().to_lowercase();
    if let Some((own, _, unit)) = OTHER_NAMES.iter().find(|(_, others, _)| others.contains(&lower.as_str())) {
        return Some((own, unit));
    }
    if OTHER_STRATEGIES.contains(&lower.as_str()) {
        return Some((NAME, ""));
    }
    COLUMNS.iter().find(|own| **own == lower).map(|own| (own.as_str(), ""))
}
