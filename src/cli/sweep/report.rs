//! A sweep's messages besides its progress.

use std::error::Error;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Instant;

use super::{Args, Rebuilt, Sweep, others};
use crate::chance;
use crate::failure::{ExitStatus, Failure};
use crate::filter::Filter;
use crate::output::{self, mention, note, say};
use crate::table;
use compare::{CompareError, Comparison, Options, Styled};
use plan::{Label, Plan, PlannedRun};
use results::csv::{self, CsvError};
use results::{Row, Status, Store, StoreError};

/// The label of a repeat.
pub(super) fn repeat_label(plan: &Plan, run: &PlannedRun, repeat: usize) -> String {
    let label = label(plan, run);
    if plan.repeats.most() > 1 { format!("{label} #{repeat}") } else { label }
}

/// The label of a run: its strategy and its point on the axes.
pub(super) fn label(plan: &Plan, run: &PlannedRun) -> String {
    let mut label = format!("{} {}", plan.experiment, run.strategy);
    for (key, value) in Label::of(&run.strategy, &run.axes).shared {
        let key = key.rsplit('.').next().unwrap_or(key);
        label.push_str(&format!(" {key}={value}"));
    }
    label
}

/// The rows of a sweep.
pub(super) struct Table {
    rows: Vec<Row>,
    /// The number of other rows in its table.
    kept: usize,
    /// Results that its table does not hold.
    others: Vec<Row>,
}

impl Table {
    /// The lines of the comparison of the selected rows.
    pub(super) fn so_far(self, sweep: &Sweep, args: &Args, width: Option<usize>) -> Styled {
        let rows = compared(sweep, &args.filter, self.rows);
        let options = Options { width, ..args.table.options(None) };
        Comparison::new(&rows, &options).map(|comparison| comparison.rows()).unwrap_or_default()
    }
}

/// Writes the table of every row of the experiment, so that a later failure loses nothing, and beside it that of other results
/// under its name. With `--set`, the table's other rows stay.
pub(super) fn rebuild(sweep: &mut Sweep) -> Result<Table, Box<dyn Error>> {
    let begun = Instant::now();
    let Sweep { plan, store, changed, without_result, .. } = sweep;
    let (file, rows) = (store.csv(), store.rows(plan)?);
    let all = whole(store, plan, &rows, *changed)?;
    let others = others::find(store, plan, &all, without_result)?;
    others::write(store, &others)?;
    csv::write_file(&file, &all, &plan.axes)?;
    sweep.rebuilt = Some(Rebuilt { at: Instant::now(), took: begun.elapsed() });
    Ok(Table { kept: all.len().saturating_sub(rows.len()), rows, others })
}

/// All rows of the sweep's table: those of the sweep, and with `--set` those of the present table.
pub(super) fn whole(
    store: &mut Store,
    plan: &Plan,
    of_sweep: &[Row],
    changed: bool,
) -> Result<Vec<Row>, Box<dyn Error>> {
    if !changed {
        return Ok(of_sweep.to_vec());
    }
    let table = earlier(&store.csv())?;
    Ok(store.beside(table, of_sweep, &plan.overrides)?)
}

/// The rows of the present table, which `--set` keeps.
fn earlier(file: &Path) -> Result<Vec<Row>, String> {
    match csv::read(file) {
        Err(CsvError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        table => table.map_err(|error| {
            format!(
                "{error}\n = help: --set keeps the rows of this table: move the file away to start a new one"
            )
        }),
    }
}

/// The present results of the selected runs and of their baselines.
pub(super) fn rows(sweep: &mut Sweep, filter: &Filter) -> Result<Vec<Row>, StoreError> {
    let Sweep { plan, store, .. } = sweep;
    let rows = store.rows(plan)?;
    Ok(compared(sweep, filter, rows))
}

fn compared(sweep: &Sweep, filter: &Filter, rows: Vec<Row>) -> Vec<Row> {
    // Wherever it was measured.
    filter.rows(rows, |row| row.strategy == sweep.plan.baseline && row.status != Status::Skipped)
}

/// Checks the options of the comparison before anything is measured.
pub(super) fn check(args: &Args, plans: &[Plan]) -> Result<(), Failure> {
    let of_plan = |plan: &Plan| {
        let rows = plan.runs.iter().map(|run| results::planned_row(plan, run, 1)).collect();
        args.filter.rows(rows, |row| row.strategy == plan.baseline)
    };
    let rows: Vec<Row> = plans.iter().flat_map(of_plan).collect();
    compare::check(&rows, &args.table.options(None), args.table.format).map_err(Failure::input)
}

/// Prints the comparison of the selected runs, and the path of the whole table.
pub(super) fn comparison(sweep: &Sweep, args: &Args, table: Table) -> Result<(), Failure> {
    let Table { rows, kept, others } = table;
    let rows = compared(sweep, &args.filter, rows);
    if !rows.is_empty() && !args.json {
        let options = args.table.options(None);
        let table = match compare::render(&rows, &options, args.table.format) {
            // Another experiment has one.
            Err(CompareError::NoAblation { .. }) => Styled::default(),
            table => table.map_err(Failure::machine)?,
        };
        if !args.is_for_programs() {
            output::print("\n")?;
        }
        table::print(&table)?;
    }
    let floor = chance::least_losses(sweep.plan.runs.iter().filter_map(|run| run.config.as_ref().ok()));
    if let Some(floor) = floor.filter(|_| !args.is_for_programs()) {
        output::show(&format!("\n{floor}\n"))?;
    }
    let file = sweep.store.csv();
    let say = if args.is_for_programs() { mention } else { say };
    say(&match kept {
        0 => format!("\nwrote {}", file.display()),
        _ => format!("\nwrote {}; --set kept its {kept} other rows", file.display()),
    });
    if !others.is_empty() {
        let (plan, other_file) = (&sweep.plan, sweep.store.other_csv());
        let (here, there) = (file.display(), other_file.display());
        let text = format!(
            "{}: {there} has them.{} `runner compare {here} {there}` shows both.",
            others::counted(plan, &others),
            others::changes(plan, &others),
        );
        say(&text);
    }
    Ok(())
}

/// Reports the remaining of `all` runs, of which `before` had a result at the start. Returns the number of runs with a result, and
/// the exit status. Each run's own outcome was reported when it ended.
pub(super) fn outcome(ended: &[Status], before: usize, all: usize) -> (usize, ExitStatus) {
    let done = before + ended.iter().filter(|status| status.is_final()).count();
    let status = if before + ended.len() < all || ended.contains(&Status::Interrupted) {
        note(&format!("interrupted: {done} of {all} runs are done; repeat the command to continue"));
        ExitStatus::Interrupted
    } else if done < all {
        note(&format!("{} of {all} runs have no result; repeat the command to retry them", all - done));
        ExitStatus::Failed
    } else {
        ExitStatus::Complete
    };
    (done, status)
}
