//! `runner collect`: merges the results of several clusters and machines into one table.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::failure::{ExitStatus, Failure};
use super::output::{self, note, say};
use results::{Collected, csv};

/// Merge results folders of several clusters and machines into one table for `compare`
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Results folders, as `runner sweep --out` writes them
    #[arg(required = true, value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// The table to write [default: standard output]
    #[arg(long, short, value_name = "FILE.csv")]
    out: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let Collected { rows, copies, again } = results::collect(&args.folders).map_err(Failure::input)?;
    let counted =
        |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    if let Some(out) = &args.out {
        csv::write_file(out, &rows, &[]).map_err(Failure::machine)?;
        let distinct =
            |value: fn(&results::Row) -> &str| rows.iter().map(value).collect::<BTreeSet<_>>().len();
        say(&format!(
            "wrote {}: {} of {} on {}",
            out.display(),
            counted(rows.len(), "row", "rows"),
            counted(distinct(|row| &row.experiment), "experiment", "experiments"),
            counted(distinct(|row| &row.device), "device", "devices"),
        ));
    } else {
        let mut text = Vec::new();
        csv::write(&rows, &[], &mut text).map_err(Failure::machine)?;
        output::print(&String::from_utf8_lossy(&text))?;
    }
    if copies > 0 {
        note(&format!(
            "{} in several folders: the table holds each once",
            counted(copies, "result is", "results are")
        ));
    }
    if again > 0 {
        note(&format!(
            "{} measured in several folders on equal targets: the table holds each measurement",
            counted(again, "repeat was", "repeats were")
        ));
    }
    Ok(ExitStatus::Complete)
}
