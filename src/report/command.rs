//! The command that repeats a row.

use std::path::Path;

use base::shell::quoted;
use base::units::Bytes;
use compare::ComparedRow;
use plan::Label;
use results::{Row, Status};

/// The folder of the repeated results: beside the earlier ones a sweep would find nothing to do.
const OUT: &str = "repeated";

/// The command, for a shell in the folder where the report was made. `run` is the path of the run's configuration;
/// without it the experiment's file is assumed to have its name, and the label to be the one in the table.
///
/// # Errors
/// Why the row has no command; `-` for rows of other programs.
pub(crate) fn repeating(
    row: &ComparedRow,
    run: Option<&Path>,
    is_label: bool,
) -> Result<String, &'static str> {
    let Row { run_id, experiment, strategy, axes, .. } = &row.row;
    match () {
        () if row.row.status == Status::Skipped => return Err("none: the row was skipped"),
        () if run_id.is_empty() => return Err("-"),
        () if run.is_none() && !is_label => {
            return Err("none: the tables hold other runs of this name, and the run's folder is missing");
        }
        () => {}
    }
    let mut words = vec!["runner".to_owned(), "sweep".to_owned()];
    match run {
        Some(run) => words.push(run.display().to_string()),
        None => {
            words.push(format!("experiments/{experiment}.toml"));
            // In one word, since a name may begin with a hyphen.
            words.push(format!("--run={strategy}"));
            for (key, value) in Label::of(strategy, axes).shared {
                words.extend(["--filter".to_owned(), format!("{key}={}", pattern(value))]);
            }
        }
    }
    words.extend(["--repeats".to_owned(), row.repeats.max(1).to_string()]);
    words.extend(options(&row.row));
    words.extend(["--out".to_owned(), OUT.to_owned()]);
    Ok(words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))
}

/// The options for the machine that the row was measured on.
fn options(row: &Row) -> Vec<String> {
    let size = |bytes| Bytes(bytes).exact().replace(' ', "");
    let device = if row.context_bytes.is_some() { "cuda" } else { "cpu" };
    let mut options = vec!["--device".to_owned(), device.to_owned()];
    if let Some(limit) = row.limit_bytes.filter(|_| row.limited) {
        options.extend(["--memory".to_owned(), size(limit)]);
    }
    if let Some(limit) = row.host_limit_bytes {
        options.extend(["--host-memory".to_owned(), size(limit)]);
    }
    options
}

/// A glob for the value of a swept key. In filters, commas and brackets have meanings.
fn pattern(value: &str) -> String {
    let value = value.trim_matches('"').chars();
    value.map(|c| if c.is_alphanumeric() || "._-+ {}=".contains(c) { c } else { '?' }).collect()
}
