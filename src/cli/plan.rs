//! `plan`: the same table, predicted, without training.

use std::path::PathBuf;

use super::failure::{ExitStatus, Failure};
use super::inputs::InputArgs;
use super::output;
use super::report;
use crate::compare::{self, Options};
use crate::plan::Purpose;
use crate::results::{self, Row};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    inputs: InputArgs,
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
    report::devices(&inputs);
    report::absent(&inputs);
    for plan in &inputs.plans {
        let rows: Vec<Row> = plan.runs.iter().map(|run| results::predicted_row(plan, run)).collect();
        let caution = plan.target.figures.caution();
        let table =
            compare::predicted_table(&rows, &Options::default(), caution).map_err(Failure::machine)?;
        output::print(&format!("\n{}\n", table.trim_end()))?;
        if let Some(reason) = &plan.unsuited {
            output::print(&format!(
                "a sweep would skip all of it here: {reason}; `--target` plans for another machine\n"
            ))?;
        }
    }
    output::print(&format!("\n{WHOSE_FIGURES}\n"))?;
    Ok(ExitStatus::Complete)
}
