//! `runner compare`: which strategy to use.

use std::path::PathBuf;

use super::failure::{ExitStatus, Failure};
use super::table::{self, TableArgs};
use crate::compare;
use crate::results::csv;

/// Compares the strategies in CSVs of results
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// CSVs that `runner sweep` wrote
    #[arg(required = true, value_name = "FILE.csv")]
    files: Vec<PathBuf>,
    /// The strategy that ratios are against [default: the first one]
    #[arg(long, value_name = "NAME", conflicts_with = "by")]
    baseline: Option<String>,
    #[command(flatten)]
    table: TableArgs,
}

/// Prints the comparison.
pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let mut rows = Vec::new();
    for file in &args.files {
        let more = csv::read(file).map_err(Failure::input)?;
        if more.is_empty() {
            return Err(Failure::input(format!("{} holds no rows: no run has finished yet", file.display())));
        }
        rows.extend(more);
    }
    let options = args.table.options(args.baseline);
    table::print(&compare::render(&rows, &options, args.table.format).map_err(Failure::input)?)?;
    Ok(ExitStatus::Complete)
}
