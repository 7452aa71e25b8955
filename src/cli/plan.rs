//! `plan`: the same table, predicted, without training.

use std::path::{Path, PathBuf};

use super::failure::{ExitStatus, Failure};
use super::filter::Filter;
use super::inputs::InputArgs;
use super::output;
use super::report;
use super::table::{self, TableArgs};
use compare::Options;
use plan::{Origin, Plan, Purpose, Speeds};
use results::Row;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    inputs: InputArgs,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    table: TableArgs,
    /// Plan for another machine: a card that `devices --targets` lists, or a file such as a `target.toml` among the results
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "device")]
    target: Option<PathBuf>,
    /// Where results are: what is known of the data is kept there, and what was measured on this device tells how fast it is
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
}

/// Who looks for the other number finds no way from this one to it.
const WHOSE_FIGURES: &str =
    "These figures are this program's own: what PyTorch needs for the same training is another number.";

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let inputs = args.inputs.read(Purpose::Predict, &args.out, args.target.as_deref())?;
    args.filter.check(&inputs.plans)?;
    report::devices(&inputs, args.table.is_for_programs());
    report::absent(&inputs, args.table.is_for_programs());
    // One machine for all, whatever limits each experiment has.
    let caution = inputs.plans.first().and_then(|plan| plan.target.figures.caution());
    let options = Options { caution, ..args.table.options(None) };
    let speeds = speeds(&inputs.plans, &args.out);
    let rows: Vec<Row> = inputs.plans.iter().flat_map(|plan| rows(plan, &speeds, &args.filter)).collect();
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
                "a sweep would skip all of {experiment} here: {reason}; `--target` plans for another machine"
            ));
        }
    }
    say(&format!("\n{}\n{WHOSE_FIGURES}", whose_estimates(&speeds, &args.out)));
    Ok(ExitStatus::Complete)
}

/// How fast the machine is that is planned for: by what was measured on it, or else by its data sheet.
fn speeds(plans: &[Plan], out: &Path) -> Speeds {
    let Some(Plan { target, .. }) = plans.first() else { return Speeds::default() };
    let (learned, unread) = results::learned(out, target);
    unread.iter().for_each(|error| output::mention(&format!("nothing is learnt of speeds from it: {error}")));
    match learned.origin {
        Origin::Unknown => Speeds::of_data_sheet(target).unwrap_or(learned),
        Origin::Runs(_) | Origin::DataSheet => learned,
    }
}

fn whose_estimates(speeds: &Speeds, out: &Path) -> String {
    let out = out.display();
    match speeds.origin {
        Origin::Unknown => {
            format!("No time is estimated: no run on this device is in {out}. `runner sweep` measures there.")
        }
        Origin::Runs(1) => format!("Times are estimates, by the rates of the run in {out} on this device."),
        Origin::Runs(runs) => {
            format!("Times are estimates, by the rates of {runs} runs in {out} on this device.")
        }
        Origin::DataSheet => {
            "Times are estimates by the peaks of a data sheet, which no program reaches: they rank, no more."
                .to_owned()
        }
    }
}

fn rows(plan: &Plan, speeds: &Speeds, filter: &Filter) -> Vec<Row> {
    let rows = plan.runs.iter().map(|run| results::predicted_row(plan, run, speeds)).collect();
    filter.rows(rows, |row| row.strategy == plan.baseline)
}
