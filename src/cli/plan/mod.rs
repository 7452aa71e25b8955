//! `plan`: predicts the comparison table without training.

mod several;

use std::collections::HashSet;
use std::path::PathBuf;

use crate::estimates;
use crate::failure::{ExitStatus, Failure};
use crate::filter::Filter;
use crate::framework::{self, FrameworkArgs};
use crate::inputs::{InputArgs, Inputs};
use crate::messages;
use crate::output;
use crate::table::{self, TableArgs};
use crate::torch;
use base::rates::BytesPerSecond;
use compare::Options;
use device::DeviceKind;
use plan::{DeviceRates, Plan, PlannedRun, Purpose};
use results::Row;
use spec::NodeRates;

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
    /// Plan for another machine: a card that `devices --targets` lists, or a target file; several times: side by side
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "device")]
    target: Vec<PathBuf>,
    /// Rate of the link between the card and its host, per direction, such as 25GB/s
    #[arg(long, value_name = "RATE")]
    link: Option<BytesPerSecond>,
    /// Results folder: caches data digests, and supplies this device's measured rates for time estimates
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
}

pub(super) fn run(mut args: Args) -> Result<ExitStatus, Failure> {
    args.framework.choose_program(&mut args.inputs);
    if args.target.len() > 1 {
        return several::run(args);
    }
    let (target, framework) = (args.target.first().map(PathBuf::as_path), args.framework.framework());
    let inputs = args
        .inputs
        .read_shown(Purpose::Predict, &args.out, target, framework, |point| args.filter.names(point))?;
    args.filter.resolve(&inputs.plans)?;
    messages::devices(&inputs, args.table.is_for_programs());
    messages::absent(&inputs, args.table.is_for_programs());
    // All experiments share one machine, whatever their limits.
    let target = inputs.plans.first().map(|plan| &plan.target);
    let pytorch = framework::pytorch(&inputs.plans)?;
    check_link(&args, &inputs, pytorch.is_some())?;
    let (rows, rates) = args.rows(&inputs, pytorch.is_some());
    let basis = rates.map(|rates| estimates::Basis::of(&inputs.plans, &rates, &rows, &args.out));
    let cautions = target.and_then(|target| target.figures.caution()).into_iter();
    let cautions =
        cautions.chain(basis.as_ref().and_then(estimates::Basis::caution)).collect::<Vec<_>>().join("; ");
    let caution = Some(cautions).filter(|text| !text.is_empty());
    let ranks_caution = target.and_then(messages::communicator);
    let options = Options { caution, ranks_caution, pytorch, ..args.table.options(None) };
    let shown: HashSet<(&str, &[(String, String)])> =
        rows.iter().map(|row| (row.strategy.as_str(), row.axes.as_slice())).collect();
    let is_shown = |run: &PlannedRun| shown.contains(&(run.strategy.as_str(), run.axes.as_slice()));
    let tables = compare::render_planned(&rows, &options, args.table.format).map_err(Failure::input)?;
    if !args.table.is_for_programs() {
        output::print("\n")?;
    }
    table::print(&tables)?;
    let say = if args.table.is_for_programs() { output::mention } else { output::say };
    if let Some(target) = target.filter(|target| target.is_too_old()) {
        say(&format!("All figures are PyTorch's: {}.", framework::too_old(target)));
    }
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

/// Checks that `--link` has an effect on the estimates for a machine.
fn check_link(args: &Args, inputs: &Inputs, of_pytorch: bool) -> Result<(), Failure> {
    let is_cpu = inputs.plans.first().is_some_and(|plan| plan.target.kind == DeviceKind::Cpu);
    match args.link {
        Some(_) if is_cpu => Err(Failure::input(
            "--link has no effect: a CPU's device and host pools are one memory\n = help: remove it, or plan for a card \
             with `--target`",
        )),
        Some(_) if of_pytorch => Err(Failure::input(
            "--link has no effect: no times are estimated of PyTorch's programs\n = help: remove it, or add `--as runner`",
        )),
        _ => Ok(()),
    }
}

impl Args {
    /// The rows of the plans for one target, and the rates of their estimates. No times are estimated of PyTorch's programs.
    fn rows(&self, inputs: &Inputs, of_pytorch: bool) -> (Vec<Row>, Option<Vec<DeviceRates>>) {
        if of_pytorch {
            return (inputs.plans.iter().flat_map(|plan| rows(plan, None, &self.filter)).collect(), None);
        }
        let stated = NodeRates { link: self.link, ..NodeRates::default() };
        let rates = estimates::rates(&inputs.plans, &self.out, stated, inputs.node);
        let plans = inputs.plans.iter().zip(&rates);
        let rows = plans.flat_map(|(plan, rates)| rows(plan, Some(rates), &self.filter)).collect();
        (rows, Some(rates))
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
