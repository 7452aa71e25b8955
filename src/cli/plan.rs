//! `plan`: predicts the comparison table without training.

use std::collections::HashSet;
use std::path::PathBuf;

use super::estimates;
use super::failure::{ExitStatus, Failure};
use super::filter::Filter;
use super::framework::{self, FrameworkArgs};
use super::inputs::InputArgs;
use super::output;
use super::report;
use super::table::{self, TableArgs};
use super::torch;
use base::rates::BytesPerSecond;
use compare::Options;
use device::DeviceKind;
use plan::{DeviceRates, Plan, PlannedRun, Purpose};
use results::Row;
use spec::HostRates;

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
    /// Rate of the link between the card and its host, per direction, such as 25GB/s
    #[arg(long, value_name = "RATE")]
    link: Option<BytesPerSecond>,
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
    let target = inputs.plans.first().map(|plan| &plan.target);
    if args.link.is_some() && target.is_some_and(|target| target.kind == DeviceKind::Cpu) {
        return Err(Failure::input(
            "--link has no effect: a CPU's device and host pools are one memory\n = help: remove it, or plan for a card \
             with `--target`",
        ));
    }
    let pytorch = framework::pytorch(&inputs.plans)?;
    if args.link.is_some() && pytorch.is_some() {
        return Err(Failure::input(
            "--link has no effect: no times are estimated of PyTorch's programs\n = help: remove it, or add `--as runner`",
        ));
    }
    let stated = HostRates { link: args.link, ..HostRates::default() };
    // No times are estimated of PyTorch's programs.
    let rates = match pytorch {
        Some(_) => None,
        None => Some(estimates::rates(&inputs.plans, &args.out, stated, inputs.host)),
    };
    let rows: Vec<Row> = match &rates {
        None => inputs.plans.iter().flat_map(|plan| rows(plan, None, &args.filter)).collect(),
        Some(rates) => {
            let plans = inputs.plans.iter().zip(rates);
            plans.flat_map(|(plan, rates)| rows(plan, Some(rates), &args.filter)).collect()
        }
    };
    let basis = rates.map(|rates| estimates::Basis::of(&inputs.plans, &rates, &rows, &args.out));
    let cautions = target.and_then(|target| target.figures.caution()).into_iter();
    let cautions =
        cautions.chain(basis.as_ref().and_then(estimates::Basis::caution)).collect::<Vec<_>>().join("; ");
    let caution = Some(cautions).filter(|text| !text.is_empty());
    let options = Options { caution, pytorch, ..args.table.options(None) };
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
    match basis {
        Some(basis) => {
            say(&format!("\n{}\n{}", basis.text(), torch::summary(&inputs.plans, is_shown)));
        }
        None => {
            let explained = torch::explained(&inputs.plans, is_shown);
            if !explained.is_empty() {
                say(&format!("\n{explained}"));
            }
        }
    }
    Ok(ExitStatus::Complete)
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
