//! `runner report`: a comparison as a page or as a plot.

use std::path::{Path, PathBuf};

use super::compare::{read, side_by_side};
use super::failure::{ExitStatus, Failure};
use super::output::say;
use super::table::LayoutArgs;
use base::temporary;
use base::units::Bytes;
use report::{Report, ReportError, Tables};
use spec::nearest;

/// Write the comparison as a web page with plots, or one plot as SVG
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// CSVs from `runner sweep`, or from other programs, as for `compare`. The folders of runs beside them add the timeline of
    /// a step and losses
    #[arg(required = true, value_name = "FILE.csv")]
    files: Vec<PathBuf>,
    /// The file to write [default: report.html, or plot.svg with --svg]
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write only this plot, as SVG: speed, memory, loss or timeline, with a point and a strategy if there are several, as in
    /// 'timeline/batch 4/plain'
    #[arg(long, value_name = "PLOT")]
    svg: Option<String>,
    /// The strategy that is the denominator of ratios [default: the first one]
    #[arg(long, value_name = "NAME", conflicts_with = "by")]
    baseline: Option<String>,
    #[command(flatten)]
    layout: LayoutArgs,
}

/// Reads the tables and writes the report.
pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let ending = if args.svg.is_some() { "svg" } else { "html" };
    let out = args.out.unwrap_or_else(|| if ending == "svg" { "plot.svg" } else { "report.html" }.into());
    check_ending(&out, ending)?;
    let read = read(&args.files)?;
    let written = read.iter().flat_map(|(_, rows)| rows);
    let labels = written.map(|row| (row.run_id.clone(), row.strategy.clone())).collect();
    let folders = args.files.iter().map(|file| file.with_extension("")).collect();
    let rows = side_by_side(read);
    let options = args.layout.options(args.baseline);
    let report = Report::read(&rows, &options, &Tables { folders, labels }).map_err(Failure::input)?;
    let text = match &args.svg {
        Some(name) => report.svg(name).map_err(|error| unknown(error, name, &report.plots()))?,
        None => report.page(),
    };
    temporary::replace(&out, |to| std::io::Write::write_all(to, text.as_bytes()))
        .map_err(|error| Failure::machine(format!("cannot write {}: {error}", out.display())))?;
    say(&format!("wrote {} ({})", out.display(), Bytes(text.len() as u64)));
    Ok(ExitStatus::Complete)
}

/// The file may exist and is replaced. So its name must not be that of a table: in `-o *.csv`, the shell puts one there.
fn check_ending(out: &Path, ending: &str) -> Result<(), Failure> {
    if out.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending)) {
        return Ok(());
    }
    let what = if ending == "svg" { "a plot" } else { "the page" };
    let name = out.with_extension(ending);
    Err(Failure::input(format!(
        "the name of {what} must end in .{ending}: `{}`\n = help: write `-o {}`",
        out.display(),
        name.display()
    )))
}

fn unknown(error: ReportError, name: &str, known: &[String]) -> Failure {
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    match (&error, nearest(name, &known)) {
        (ReportError::UnknownPlot { .. }, Some(near)) => {
            Failure::input(format!("{error}\n = help: did you mean `{near}`?"))
        }
        _ => Failure::input(error),
    }
}
