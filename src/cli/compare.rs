//! `runner compare`: compares the strategies of result tables.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::failure::{ExitStatus, Failure};
use super::output;
use super::table::{self, TableArgs};
use compare::{Against, Tolerated};
use results::{Row, csv};

/// Compare the strategies in result CSVs
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// CSVs from `runner sweep`, or from other programs (strategy, and peak_bytes or tokens_per_s)
    #[arg(required = true, value_name = "FILE.csv")]
    files: Vec<PathBuf>,
    /// The strategy that is the denominator of ratios [default: the first one]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["by", "ladder"])]
    baseline: Option<String>,
    /// Compare with this stored table: each of its runs must be in the new one
    #[arg(long, value_name = "OLD.csv", conflicts_with_all = ["baseline", "ladder"])]
    against: Option<PathBuf>,
    /// With --against: fail if a run is slower by more than this, and by more than its repeats differ
    #[arg(long, value_name = "PERCENT", requires = "against", value_parser = percent)]
    fail_if_slower: Option<f64>,
    /// With --against: fail if the peak memory of a run is larger by more than this
    #[arg(long, value_name = "PERCENT", requires = "against", value_parser = percent)]
    fail_if_larger: Option<f64>,
    #[command(flatten)]
    table: TableArgs,
}

/// `5%` as a share.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').map(str::trim_end).and_then(|number| number.parse::<f64>().ok());
    match number {
        Some(number) if (0.0..=1000.0).contains(&number) => Ok(number / 100.0),
        _ => Err("write a percentage, such as 5%".to_owned()),
    }
}

/// Reads tables, each with a short name.
///
/// # Errors
/// A table is unreadable or has no rows.
pub(super) fn read(files: &[PathBuf]) -> Result<Vec<(String, Vec<Row>)>, Failure> {
    let table = |(file, source): (&PathBuf, String)| {
        let rows = csv::read(file).map_err(Failure::input)?;
        if rows.is_empty() {
            return Err(Failure::input(format!("{} holds no rows: no run has finished yet", file.display())));
        }
        Ok((source, rows))
    };
    files.iter().zip(sources(files)).map(table).collect()
}

/// The rows of all tables. Rows of other programs, which have no experiment, join the only experiment. Equal labels of different
/// runs are distinguished by the keys that differ, else by their files.
pub(super) fn side_by_side(tables: Vec<(String, Vec<Row>)>) -> Vec<Row> {
    let experiments: BTreeSet<String> = tables
        .iter()
        .flat_map(|(_, rows)| rows)
        .map(|row| row.experiment.clone())
        .filter(|experiment| !experiment.is_empty())
        .collect();
    let one = Some(&experiments).filter(|all| all.len() == 1).and_then(BTreeSet::first);
    let mut taken: BTreeSet<String> = BTreeSet::new();
    let (mut all, mut sources) = (Vec::new(), Vec::new());
    for (source, mut rows) in tables {
        let is_named = rows.iter().all(|row| !row.experiment.is_empty());
        for row in rows.iter_mut().filter(|_| !is_named) {
            row.experiment = one.cloned().unwrap_or_else(|| source.clone());
            if taken.contains(&row.strategy) {
                row.strategy = format!("{} ({source})", row.strategy);
            }
        }
        taken.extend(rows.iter().map(|row| row.strategy.clone()));
        sources.extend(std::iter::repeat_n(source, rows.len()));
        all.extend(rows);
    }
    compare::tell_apart(&mut all, &sources);
    all
}

/// Short names of files: their stems, or their paths where two stems are equal.
fn sources(files: &[PathBuf]) -> Vec<String> {
    let stem = |file: &PathBuf| file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let stems: Vec<String> = files.iter().map(stem).collect();
    let path = |file: &PathBuf| file.with_extension("").display().to_string();
    if stems.iter().collect::<BTreeSet<_>>().len() == files.len() {
        stems
    } else {
        files.iter().map(path).collect()
    }
}

/// Reads the tables and prints the comparison.
pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let tables = read(&args.files)?;
    if let Some(old) = &args.against {
        let rows: Vec<Row> = tables.into_iter().flat_map(|(_, rows)| rows).collect();
        return against(&args, &rows, old);
    }
    let rows = side_by_side(tables);
    let options = args.table.options(args.baseline);
    table::print(&compare::render(&rows, &options, args.table.format).map_err(Failure::input)?)?;
    Ok(ExitStatus::Complete)
}

fn against(args: &Args, rows: &[Row], old: &Path) -> Result<ExitStatus, Failure> {
    let stored = csv::read(old).map_err(Failure::input)?;
    let tolerated = Tolerated { slower: args.fail_if_slower, larger: args.fail_if_larger };
    let Against { text, exceeding } = compare::against(rows, &stored, tolerated).map_err(Failure::input)?;
    output::print(&text)?;
    if exceeding == 0 {
        return Ok(ExitStatus::Complete);
    }
    let runs = if exceeding == 1 { "1 run is".to_owned() } else { format!("{exceeding} runs are") };
    Err(Failure::machine(format!("{runs} worse than in {}", old.display())))
}
