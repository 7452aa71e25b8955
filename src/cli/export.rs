//! `export`: a run as a plain PyTorch script, and the allocator requests that are predicted for it.

use std::fs;
use std::path::PathBuf;

use super::failure::{ExitStatus, Failure};
use super::inputs::InputArgs;
use super::output;
use super::run_selector::{NumberedRun, choose, title};
use ::plan::Purpose;
use pytorch::{Card, Event, Implementation};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    inputs: InputArgs,
    /// The run: a strategy's name, a number in the order of `check --resolved`, or a prefix of an id
    #[arg(long, value_name = "NAME|N|ID")]
    run: Option<String>,
    /// The card: one that `devices --targets` lists, or a target file
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "device")]
    target: Option<PathBuf>,
    /// Write the script to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write the predicted requests and releases to this file
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let inputs = args.inputs.read(Purpose::Predict, "results".as_ref(), args.target.as_deref())?;
    let NumberedRun { plan, run, .. } = choose(&inputs.plans, args.run.as_deref())?;
    let config =
        run.config.as_ref().map_err(|reason| Failure::input(format!("the run is skipped: {reason}")))?;
    let Some(card) = Card::named(&plan.target.name) else {
        return Err(Failure::input(format!(
            "export needs a CUDA device, and {} is none that is known: add --target NAME",
            plan.target.name
        )));
    };
    let not_covered = |error: pytorch::NotCovered| Failure::input(format!("not covered: {error}"));
    let title = format!("{}, {}", plan.experiment, title(run));
    let script = pytorch::script(config, card, Implementation::Fused, &title).map_err(not_covered)?;
    match &args.out {
        Some(file) => fs::write(file, script)
            .map_err(|error| Failure::machine(format!("{}: {error}", file.display())))?,
        None => output::print(&script)?,
    }
    if let Some(file) = &args.requests {
        let sequence = pytorch::sequence(config, card, Implementation::Fused).map_err(not_covered)?;
        let line = |event: &Event| match event {
            Event::Request(bytes) => Some(format!("+{bytes}\n")),
            Event::Release(request) => Some(format!("-{request}\n")),
            Event::Phase(_) | Event::Step | Event::EmptyCache => None,
        };
        let text: String = sequence.events.iter().filter_map(line).collect();
        fs::write(file, text).map_err(|error| Failure::machine(format!("{}: {error}", file.display())))?;
        let peaks =
            pytorch::replay(&sequence, None).map_err(|(_, error)| Failure::machine(error.to_string()))?;
        for usage in &peaks.steps {
            output::print(&format!("allocated {} reserved {}\n", usage.allocated, usage.reserved))?;
        }
    }
    Ok(ExitStatus::Complete)
}
