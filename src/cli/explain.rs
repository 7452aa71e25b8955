//! `explain`: the program of a run, as it is executed.

use std::fmt::Write as _;
use std::path::Path;

use super::failure::{ExitStatus, Failure};
use super::inputs::InputArgs;
use super::output;
use crate::compile::{Action, Instruction, Program, compile};
use crate::device::{Pool, Position, Target};
use crate::memory::{LiveValue, Prediction, live_at, live_bytes, predict, rounded};
use crate::ops::ValueId;
use crate::plan::{PlannedRun, Purpose};
use crate::units::Bytes;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    inputs: InputArgs,
    /// Which run: its number in the order of `check --resolved`, or the beginning of its id
    #[arg(long, value_name = "N")]
    run: String,
}

/// How many of the values live at the peak are listed.
const LARGEST: usize = 20;

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let inputs = args.inputs.read(Purpose::Predict, Path::new("results"), None)?;
    let runs: Vec<(&Target, &PlannedRun)> =
        inputs.plans.iter().flat_map(|plan| plan.runs.iter().map(|run| (&plan.target, run))).collect();
    let (target, run) = pick(&runs, &args.run)?;
    let config =
        run.config.as_ref().map_err(|reason| Failure::input(format!("the run is skipped: {reason}")))?;
    let program = compile(config, target).map_err(Failure::machine)?;
    output::say(explain(&program, target, run).trim_end());
    Ok(ExitStatus::Complete)
}

fn pick<'a>(
    runs: &[(&'a Target, &'a PlannedRun)],
    which: &str,
) -> Result<(&'a Target, &'a PlannedRun), Failure> {
    let by_number = which.parse::<usize>().ok().and_then(|number| runs.get(number.checked_sub(1)?));
    let by_id = || runs.iter().find(|(_, run)| which.len() >= 4 && run.id.starts_with(which));
    by_number.or_else(by_id).copied().ok_or_else(|| {
        let last = runs.len();
        Failure::input(format!(
            "there is no run `{which}`; use a number from 1 to {last}, or the beginning of an id"
        ))
    })
}

fn explain(program: &Program, target: &Target, run: &PlannedRun) -> String {
    let prediction = predict(program, target);
    let mut out = String::new();
    let axes: String = run.axes.iter().map(|(key, value)| format!(", {key} = {value}")).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "run {}: {}{axes}", run.id, run.strategy);
    let _ = writeln!(out, "{}", summary(program, &prediction));
    let peak = prediction.device.steady_peak().position;
    let live = live_bytes(program, target);
    for (index, section) in program.sections.iter().enumerate() {
        let _ = writeln!(
            out,
            "\n{} ({} carried in, {} out)",
            section.kind.name(),
            section.entry.len(),
            section.exit.len()
        );
        let _ = writeln!(out, "        live MiB  scope                   operation");
        for (number, instruction) in section.code.iter().enumerate() {
            let here = Position { section: index as u32, instruction: number as u32 };
            let mark = if here == peak { "> peak" } else { "" };
            let scope = &program.scope(instruction.scope).path;
            let what = describe(program, target, instruction);
            let mib = live[index][number] as f64 / f64::from(1 << 20);
            let _ = writeln!(out, "{mark:6} {mib:9.2}  {scope:22}  {what}");
        }
    }
    let _ = writeln!(out, "\nlive at the peak, largest first");
    let values = live_at(program, target, Pool::Device, peak);
    for LiveValue { name, role, bytes } in values.iter().take(LARGEST) {
        let _ = writeln!(out, "  {:>10}  {:13}  {name}", Bytes(*bytes).to_string(), role.name());
    }
    if let Some(rest) = values.get(LARGEST..).filter(|rest| !rest.is_empty()) {
        let bytes: u64 = rest.iter().map(|value| value.bytes).sum();
        let _ = writeln!(out, "  {:>10}  {} more", Bytes(bytes).to_string(), rest.len());
    }
    out
}

fn summary(program: &Program, prediction: &Prediction) -> String {
    format!(
        "{} parameters, {} micro-batches, {:.2} GFLOP a step ({:.2} with recomputation)\n\
         predicted peak {} live, {} asked of the system; start-up {}",
        prediction.parameters,
        program.micro_batches,
        prediction.model_flops as f64 / 1e9,
        prediction.hardware_flops as f64 / 1e9,
        Bytes(prediction.device.steady_peak().live.total()),
        Bytes(prediction.device.reserved_peak),
        Bytes(prediction.device.phase_peaks[0].live.total()),
    )
}

/// One instruction in a line: `layer-norm x f32[8, 256, 384], ... -> normed f32[8, 256, 384]`.
fn describe(program: &Program, target: &Target, instruction: &Instruction) -> String {
    let names = |ids: &[ValueId]| -> String {
        let names: Vec<String> = ids.iter().map(|&id| program.full_name(id)).collect();
        names.join(", ")
    };
    let typed = |ids: &[ValueId]| -> String {
        let names: Vec<String> =
            ids.iter().map(|&id| format!("{} {}", program.full_name(id), program.ty(id))).collect();
        names.join(", ")
    };
    match &instruction.action {
        Action::Launch { op, inputs, outputs, .. } => {
            let again = if instruction.recompute { " again" } else { "" };
            format!("{}{again} ({}) -> {}", op.name(), names(inputs), typed(outputs))
        }
        Action::Copy { queue, from, to } => {
            format!("copy on the {} queue: {} -> {}", queue.name(), program.full_name(*from), typed(&[*to]))
        }
        Action::Record { queue, event } => {
            format!("event {} recorded by the {} queue", event.0, queue.name())
        }
        Action::Wait { queue, event } => format!("event {} awaited by the {} queue", event.0, queue.name()),
        Action::Allocate(storage) => {
            let pool = program.value(*storage).pool;
            let place =
                program.places[storage.index()].map_or(String::new(), |offset| format!(" at {offset}"));
            let bytes = rounded(program, *storage, target);
            format!("+ {} ({}, {}{place})", program.full_name(*storage), Bytes(bytes), pool.name())
        }
        Action::Free(storage) => format!("- {}", program.full_name(*storage)),
    }
}
