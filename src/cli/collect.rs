//! `runner collect`: merges the results of several clusters and machines into one table.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::check::counted;
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
    let Collected { rows, copies, remeasured } = results::collect(&args.folders).map_err(Failure::input)?;
    if let Some(out) = &args.out {
        csv::write_file(out, &rows, &[]).map_err(Failure::machine)?;
        let distinct =
            |value: fn(&results::Row) -> &str| rows.iter().map(value).collect::<BTreeSet<_>>().len();
        say(&format!(
            "wrote {}: {} of {} on {}",
            out.display(),
            counted(rows.len(), "row"),
            counted(distinct(|row| &row.experiment), "experiment"),
            counted(distinct(|row| &row.device), "device"),
        ));
    } else {
        let mut text = Vec::new();
        csv::write(&rows, &[], &mut text).map_err(Failure::machine)?;
        output::print(&String::from_utf8_lossy(&text))?;
    }
    if copies > 0 {
        note(&format!(
            "several folders hold the same {}: the table holds each once",
            counted(copies, "result")
        ));
    }
    if remeasured > 0 {
        note(&format!(
            "{} of repeats on equal targets: the table holds each",
            counted(remeasured, "further measurement")
        ));
    }
    Ok(ExitStatus::Complete)
}
