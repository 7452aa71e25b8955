//! `explain`: the program of a run, as it is executed, and where its time went if it has been.

mod again;
mod listing;
mod measured;
mod profile;
mod tables;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use super::failure::{ExitStatus, Failure};
use super::inputs::InputArgs;
use super::{output, report};
use crate::compile::compile_verified;
use crate::plan::{Plan, PlannedRun, Purpose};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    inputs: InputArgs,
    /// Which run: its number in the order of `check --resolved`, or the beginning of its id
    #[arg(long, value_name = "N")]
    run: String,
    /// For another machine: a card that `devices --targets` lists, or a file such as a `target.toml` among the results
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "device")]
    target: Option<PathBuf>,
    /// The folder with the results of `sweep`, which say where time goes
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let inputs = args.inputs.read(Purpose::Predict, &args.out, args.target.as_deref())?;
    if args.target.is_some() {
        report::devices(&inputs, false);
    }
    report::absent(&inputs, false);
    let runs: Vec<(&Plan, &PlannedRun)> =
        inputs.plans.iter().flat_map(|plan| plan.runs.iter().map(move |run| (plan, run))).collect();
    let (plan, run) = pick(&runs, &args.run)?;
    let config =
        run.config.as_ref().map_err(|reason| Failure::input(format!("the run is skipped: {reason}")))?;
    let program = compile_verified(config, &plan.target).map_err(Failure::machine)?;
    // What was measured comes last: programs are long, and the end is what a terminal shows.
    let measured = measured::text(&args.out, plan, run)?;
    output::print(&format!("{}\n{measured}", listing::listing(&program, &plan.target, config, run)))?;
    Ok(ExitStatus::Complete)
}

fn pick<'a>(runs: &[(&'a Plan, &'a PlannedRun)], which: &str) -> Result<(&'a Plan, &'a PlannedRun), Failure> {
    let by_number = which.parse::<usize>().ok().and_then(|number| runs.get(number.checked_sub(1)?));
    let by_id = || runs.iter().find(|(_, run)| which.len() >= 4 && run.id.starts_with(which));
    by_number.or_else(by_id).copied().ok_or_else(|| {
        let last = runs.len();
        Failure::input(format!(
            "there is no run `{which}`; use a number from 1 to {last}, or the beginning of an id"
        ))
    })
}
