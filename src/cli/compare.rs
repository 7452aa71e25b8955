//! `runner compare`: which strategy to use.

use std::path::PathBuf;

use super::failure::{ExitStatus, Failure};
use super::output;
use crate::compare::{self, Format, Options, Sort};
use crate::results::csv;

/// Compares the strategies in CSVs of results
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// CSVs that `runner sweep` wrote
    #[arg(required = true, value_name = "FILE.csv")]
    files: Vec<PathBuf>,
    /// The strategy that ratios are against [default: the first one]
    #[arg(long, value_name = "NAME")]
    baseline: Option<String>,
    /// Order of the rows within a group
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Put the values of this swept key beside each other instead of the strategies
    #[arg(long, value_name = "AXIS", conflicts_with = "baseline")]
    by: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    format: Format,
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
    let options = Options { baseline: args.baseline, by: args.by, sort: args.sort };
    output::print(&compare::render(&rows, &options, args.format).map_err(Failure::input)?)?;
    Ok(ExitStatus::Complete)
}
