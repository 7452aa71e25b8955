//! `export`: a run as a plain PyTorch script, and the allocator requests that are predicted for it.

use std::fs;
use std::path::{Path, PathBuf};

use super::failure::{ExitStatus, Failure};
use super::framework::FrameworkArgs;
use super::inputs::InputArgs;
use super::output::{self, note};
use super::run_selector::{NumberedRun, choose, is_named, title};
use super::torch;
use ::plan::{Point, Purpose};
use base::units::Bytes;
use pytorch::{Event, Machine, ScriptPrediction, Sequence, Stream, Usage};
use spec::{AllocConf, Framework};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    inputs: InputArgs,
    /// The run: a strategy's name, a number of `sweep --dry-run`, or the beginning of an id
    #[arg(long, value_name = "NAME|N|ID")]
    run: Option<String>,
    /// The card: one that `devices --targets` lists, or a target file
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "device")]
    target: Option<PathBuf>,
    #[command(flatten)]
    framework: FrameworkArgs,
    /// Write the script to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write the predicted requests and releases to this file: `+bytes` (`+bytes@stream` beside the first stream), and
    /// `-number` of the request that is released
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// Write the predicted requests as a memory snapshot of PyTorch to this file, for https://pytorch.org/memory_viz
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
}

pub(super) fn run(mut args: Args) -> Result<ExitStatus, Failure> {
    if args.framework.framework() == Some(Framework::Runner) {
        let help = "use `--as pytorch`, `--as transformers` or `--as trainer`";
        return Err(Failure::input(format!("`export` writes scripts of PyTorch\n = help: {help}")));
    }
    args.framework.choose_program(&mut args.inputs);
    let is_wanted = |point: &Point| is_named(args.run.as_deref(), point);
    let (out, target) = ("results".as_ref(), args.target.as_deref());
    let shown = Some(Framework::Pytorch);
    let inputs = args.inputs.read_shown(Purpose::Predict, out, target, shown, is_wanted)?;
    let NumberedRun { plan, run, .. } = choose(&inputs.plans, args.run.as_deref())?;
    let config =
        run.config.as_ref().map_err(|reason| Failure::input(format!("the run is skipped: {reason}")))?;
    let machine = torch::machine(&plan.target, plan.keys)?;
    let Machine { card, options, alloc_conf, .. } = machine;
    let not_covered =
        |reason| Failure::input(format!("the run {} has no PyTorch script: {reason}", run.strategy));
    let sequence = machine.sequence(config).map_err(not_covered)?;
    let peaks = pytorch::replay(&sequence, None, alloc_conf).map_err(|(_, error)| Failure::machine(error))?;
    let predicted_for = format!("{} on {}", plan.keys.torch_program(Some(config)), plan.target.name);
    let heading = format!("{}, {}, predicted for {predicted_for}", plan.experiment, title(run));
    let allocator = (alloc_conf != AllocConf::default()).then(|| {
        let variable = plan.keys.torch_version.allocator_variable();
        (variable, alloc_conf.to_string())
    });
    let prediction = ScriptPrediction { title: &heading, peaks: &peaks.steps, allocator };
    let script = pytorch::script(config, card, options, &prediction).map_err(not_covered)?;
    match &args.out {
        Some(file) => write(file, &script)?,
        None => output::print(&script)?,
    }
    if let Some(file) = &args.requests {
        write(file, lines(&sequence))?;
    }
    if let Some(file) = &args.snapshot {
        write(file, pytorch::predicted_snapshot(&sequence, alloc_conf))?;
    }
    note(&format!("the peaks are those of {predicted_for}"));
    for (step, Usage { allocated, reserved }) in peaks.steps.iter().enumerate() {
        let [allocated, reserved] = [allocated, reserved].map(|bytes| Bytes(*bytes));
        note(&format!("predicted peaks of step {}: {allocated} allocated, {reserved} reserved", step + 1));
    }
    torch::of_ranks(config).into_iter().for_each(note);
    Ok(ExitStatus::Complete)
}

fn lines(sequence: &Sequence) -> String {
    let mut stream = Stream::default();
    let line = |event: &Event| match event {
        Event::Request(bytes) => Some(format!("+{bytes}{stream}\n")),
        Event::Release(request) => Some(format!("-{request}\n")),
        Event::Stream(entered) => {
            stream = *entered;
            None
        }
        Event::Phase(_) | Event::Step | Event::EmptyCache => None,
    };
    sequence.events.iter().filter_map(line).collect()
}

pub(super) fn write(file: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    fs::write(file, content)
        .map_err(|error| Failure::machine(format!("cannot write {}: {error}", file.display())))
}
