//! `--dry-run`: prints the grid and which runs have a result.

use std::collections::HashMap;

use super::Args;
use super::queue::is_wanted;
use crate::failure::{ExitStatus, Failure};
use crate::output::print;
use base::units::Bytes;
use plan::{Label, Plan, PlannedRun};
use results::Store;

/// Prints every run. Reads results, writes nothing.
pub(super) fn show(args: &Args, plans: Vec<Plan>) -> Result<ExitStatus, Failure> {
    let mut number = 0;
    for plan in &plans {
        let mut store = Store::at(&args.out, &plan.experiment);
        let mut lines = vec![["#", "run", "strategy", "axes", "peak", "state"].map(str::to_string)];
        let mut left = 0;
        let mut first_label = HashMap::new();
        for run in &plan.runs {
            let state = state(args, plan, run, &mut store, &mut first_label)?;
            left += state.left;
            number += 1;
            lines.push([
                number.to_string(),
                run.id.clone(),
                run.strategy.clone(),
                axes(run),
                predicted_peak(plan, run),
                state.text,
            ]);
        }
        let lines = columns(&lines).join("\n");
        let (experiment, file) = (&plan.experiment, plan.file.display());
        print(&format!("\n{experiment} ({file})\n{lines}\n{left} to run\n"))?;
    }
    Ok(ExitStatus::Complete)
}

/// The sweep's action for a run.
struct State {
    text: String,
    /// Repeats that would be executed.
    left: usize,
}

fn state<'a>(
    args: &Args,
    plan: &Plan,
    run: &'a PlannedRun,
    store: &mut Store,
    first_label: &mut HashMap<&'a str, &'a str>,
) -> Result<State, Failure> {
    let idle = |text: String| Ok(State { text, left: 0 });
    if let Err(reason) = &run.config {
        return idle(format!("skipped: {reason}"));
    }
    if !is_wanted(run, &args.filter) {
        return idle("not in --filter".into());
    }
    if let Some(first) = first_label.get(run.id.as_str()) {
        return idle(format!("same as {first}"));
    }
    first_label.insert(&run.id, &run.strategy);
    let (most, mut done) = (plan.repeats.most(), 0);
    for repeat in 1..=most {
        // An unreadable result is measured again.
        if !args.fresh && store.finished(&run.id, repeat).map_err(Failure::input)?.is_some() {
            done += 1;
        }
    }
    let left = most - done;
    let text = match (done, left) {
        (_, 0) => "cached".to_string(),
        (0, _) => "to do".to_string(),
        _ => format!("to do ({done} of {most} cached)"),
    };
    Ok(State { text, left })
}

fn axes(run: &PlannedRun) -> String {
    let shared = Label::of(&run.strategy, &run.axes).shared;
    let pairs: Vec<String> = shared.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(" ")
}

fn predicted_peak(plan: &Plan, run: &PlannedRun) -> String {
    if run.prediction.as_ref().is_some_and(|prediction| prediction.out_of_memory.is_some()) {
        return "OOM".into();
    }
    let peak = results::planned_row(plan, run, 1).predicted_peak_bytes;
    peak.map(|bytes| Bytes(bytes).to_string()).unwrap_or_default()
}

/// Aligned columns, without empty ones.
fn columns<const N: usize>(lines: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let empty: [bool; N] =
        std::array::from_fn(|column| lines.iter().skip(1).all(|line| line[column].is_empty()));
    let write = |line: &[String; N]| {
        let mut text = String::new();
        for column in (0..N).filter(|column| !empty[*column]) {
            text.push_str(&format!("  {:<1$}", line[column], widths[column]));
        }
        text.trim_end().to_string()
    };
    lines.iter().map(write).collect()
}
