//! `plan`: the same table, predicted, without training.

use std::path::PathBuf;

use super::failure::{ExitStatus, Failure};
use super::filter::Filter;
use super::inputs::InputArgs;
use super::output;
use super::report;
use super::table::{self, TableArgs};
use crate::compare::{self, Options};
use crate::plan::{Plan, Purpose};
use crate::results::{self, Row};

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
    /// Where results are: what is known of the data is kept there
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
    let rows: Vec<Row> = inputs.plans.iter().flat_map(|plan| rows(plan, &args.filter)).collect();
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
    say(&format!("\n{WHOSE_FIGURES}"));
    Ok(ExitStatus::Complete)
}

fn rows(plan: &Plan, filter: &Filter) -> Vec<Row> {
    let rows = plan.runs.iter().map(|run| results::predicted_row(plan, run)).collect();
    filter.rows(rows, |row| row.strategy == plan.baseline)
}
