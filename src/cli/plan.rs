//! `plan`: predicts the comparison table without training.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::failure::{ExitStatus, Failure};
use super::filter::Filter;
use super::framework::{self, FrameworkArgs};
use super::inputs::InputArgs;
use super::output;
use super::report;
use super::table::{self, TableArgs};
use super::torch;
use compare::Options;
use plan::{DeviceRates, Plan, PlannedRun, Purpose, RatesOrigin};
use results::Row;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    inputs: InputArgs,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    framework: FrameworkArgs,
    #[command(flatten)]
    table: TableArgs,
    /// Plan for another machine: a card that `devices --targets` lists, or a target file
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "device")]
    target: Option<PathBuf>,
    /// Results folder: caches data digests, and supplies this device's measured rates for time estimates
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
}

pub(super) fn run(mut args: Args) -> Result<ExitStatus, Failure> {
    let (target, framework) = (args.target.as_deref(), args.framework.framework());
    let inputs = args
        .inputs
        .read_shown(Purpose::Predict, &args.out, target, framework, |point| args.filter.names(point))?;
    args.filter.resolve(&inputs.plans)?;
    report::devices(&inputs, args.table.is_for_programs());
    report::absent(&inputs, args.table.is_for_programs());
    // All experiments share one machine, whatever their limits.
    let caution = inputs.plans.first().and_then(|plan| plan.target.figures.caution());
    let pytorch = framework::pytorch(&inputs.plans)?;
    let speeds = match pytorch {
        Some(_) => None,
        None => Some(speeds(&inputs.plans, &args.out)),
    };
    let options = Options { caution, pytorch, ..args.table.options(None) };
    let rows: Vec<Row> =
        inputs.plans.iter().flat_map(|plan| rows(plan, speeds.as_ref(), &args.filter)).collect();
    let shown: HashSet<(&str, &[(String, String)])> =
        rows.iter().map(|row| (row.strategy.as_str(), row.axes.as_slice())).collect();
    let is_shown = |run: &PlannedRun| shown.contains(&(run.strategy.as_str(), run.axes.as_slice()));
    let tables = compare::render_planned(&rows, &options, args.table.format).map_err(Failure::input)?;
    if !args.table.is_for_programs() {
        output::print("\n")?;
    }
    table::print(&tables)?;
    let say = if args.table.is_for_programs() { output::mention } else { output::say };
    for plan in &inputs.plans {
        if let Some(reason) = &plan.unsuited {
            let experiment = &plan.experiment;
            say(&format!(
                "a sweep would skip every run of {experiment} on this machine: {reason}; plan for another one with `--target`"
            ));
        }
    }
    match speeds {
        Some(speeds) => {
            let estimates = whose_estimates(&speeds, &args.out);
            say(&format!("\n{estimates}\n{}", torch::summary(&inputs.plans, is_shown)));
        }
        None => say(&format!("\n{}", torch::explained(&inputs.plans, is_shown))),
    }
    Ok(ExitStatus::Complete)
}

/// The device rates of the machine: measured there, else from the card's data sheet.
fn speeds(plans: &[Plan], out: &Path) -> DeviceRates {
    let Some(Plan { target, .. }) = plans.first() else { return DeviceRates::default() };
    let (learned, unread) = results::learned(out, target);
    unread.iter().for_each(|error| output::mention(&format!("ignored for device rates: {error}")));
    match learned.origin {
        RatesOrigin::Unknown => DeviceRates::of_data_sheet(target).unwrap_or(learned),
        RatesOrigin::Runs(_) | RatesOrigin::DataSheet => learned,
    }
}

fn whose_estimates(speeds: &DeviceRates, out: &Path) -> String {
    let out = out.display();
    match speeds.origin {
        RatesOrigin::Unknown => {
            format!("No times are estimated: {out} has no run of this device. `runner sweep` measures some.")
        }
        RatesOrigin::Runs(1) => format!("Times are estimates from the rates of the run of this device in {out}."),
        RatesOrigin::Runs(runs) => {
            format!("Times are estimates from the rates of {runs} runs of this device in {out}.")
        }
        RatesOrigin::DataSheet => {
            "Times are estimates from a data sheet's peak rates, which no program reaches: use them to rank only."
                .to_owned()
        }
    }
}

/// The rows of a plan; without device rates, those of PyTorch's memory.
fn rows(plan: &Plan, speeds: Option<&DeviceRates>, filter: &Filter) -> Vec<Row> {
    let row = |run| match speeds {
        Some(speeds) => results::predicted_row(plan, run, speeds),
        None => results::pytorch_row(plan, run),
    };
    let rows = plan.runs.iter().map(row).collect();
    filter.rows(rows, |row| row.strategy == plan.baseline)
}
