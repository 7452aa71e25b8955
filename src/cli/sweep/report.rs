//! What a sweep tells its user, but for its progress.

use std::error::Error;
use std::io::ErrorKind;

use super::Sweep;
use super::queue::Queue;
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::output::{note, say};
use crate::compare::{self, Format, Options};
use crate::plan::{Plan, PlannedRun};
use crate::results::csv::{self, CsvError};
use crate::results::{Row, Status};

/// A repeat of a run as people call it.
pub(super) fn repeat_label(plan: &Plan, run: &PlannedRun, repeat: usize) -> String {
    let label = label(plan, run);
    if plan.repeats > 1 { format!("{label} #{repeat}") } else { label }
}

/// A run as people call it: its strategy and where on the axes it lies.
pub(super) fn label(plan: &Plan, run: &PlannedRun) -> String {
    let mut label = format!("{} {}", plan.experiment, run.strategy);
    for (key, value) in &run.axes {
        let key = key.rsplit('.').next().unwrap_or(key);
        label.push_str(&format!(" {key}={value}"));
    }
    label
}

/// The rows of a sweep, and how many others its table has.
pub(super) struct Table {
    rows: Vec<Row>,
    others: usize,
}

/// Writes the table of everything that belongs to the experiment, so that a later failure loses nothing. What the command
/// line changed of the experiment is no reason to drop what the table has.
pub(super) fn rebuild(sweep: &mut Sweep) -> Result<Table, Box<dyn Error>> {
    let Sweep { plan, store, changed } = sweep;
    let (file, rows) = (store.csv(), store.rows(plan)?);
    if !*changed {
        csv::write_file(&file, &rows, &plan.axes)?;
        return Ok(Table { rows, others: 0 });
    }
    let table = match csv::read(&file) {
        Err(CsvError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => Vec::new(),
        table => table.map_err(|error| {
            format!("{error}\n = help: --set keeps the rows of this table: move it away to begin another")
        })?,
    };
    let all = store.beside(table, &rows, &plan.overrides)?;
    csv::write_file(&file, &all, &plan.axes)?;
    Ok(Table { others: all.len().saturating_sub(rows.len()), rows })
}

/// Prints the comparison of what the filter lets through, and where its figures are with all others.
pub(super) fn comparison(sweep: &mut Sweep, filter: Option<&glob::Pattern>) -> Result<(), Failure> {
    let Table { mut rows, others } = rebuild(sweep).map_err(Failure::machine)?;
    let is_wanted = |row: &Row| filter.is_none_or(|filter| filter.matches(&row.strategy));
    // Ratios are against the baseline, wherever it has figures.
    let is_base = |row: &Row| row.strategy == sweep.plan.baseline && row.status != Status::Skipped;
    rows.retain(|row| is_wanted(row) || is_base(row));
    if !rows.is_empty() {
        let table = compare::render(&rows, &Options::default(), Format::Table).map_err(Failure::machine)?;
        say(&format!("\n{table}"));
    }
    let file = sweep.store.csv();
    say(&match others {
        0 => format!("wrote {}", file.display()),
        _ => format!("wrote {}: beside its {others} other rows, which --set leaves there", file.display()),
    });
    Ok(())
}

/// Says what is left to do, and how the sweep ended. Each run's own end was told when it came.
pub(super) fn outcome(ended: &[Status], queue: &Queue) -> ExitStatus {
    let (all, done) =
        (queue.done + queue.jobs.len(), ended.iter().filter(|status| status.is_final()).count());
    let done = queue.done + done;
    if ended.len() < queue.jobs.len() || ended.contains(&Status::Interrupted) {
        note(&format!("interrupted: {done} of {all} runs are done; the same command does the rest"));
        ExitStatus::Interrupted
    } else if done < all {
        note(&format!("{} of {all} runs have no result; the same command tries them again", all - done));
        ExitStatus::Failed
    } else {
        ExitStatus::Complete
    }
}
