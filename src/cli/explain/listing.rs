//! The program of a run: every operation with what is live at it, and what is live at the peak.

use std::cmp::Reverse;
use std::fmt::Write as _;

use super::again;
use crate::compile::{Action, Instruction, Program};
use crate::device::{Peak, Pool, Position, Target};
use crate::memory::{Cadence, LiveValue, Prediction, live_at, live_bytes, predict, rounded};
use crate::ops::ValueId;
use crate::plan::PlannedRun;
use crate::spec::RunConfig;
use crate::units::Bytes;

/// How many of the values live at the peak are listed.
const LARGEST: usize = 20;

pub(super) fn listing(program: &Program, target: &Target, config: &RunConfig, run: &PlannedRun) -> String {
    let prediction = predict(program, target, Cadence::of(config));
    let mut out = String::new();
    let axes: String = run.axes.iter().map(|(key, value)| format!(", {key} = {value}")).collect();
    // Writing to a string cannot fail.
    // Without its data it has no id.
    let id = if run.id.is_empty() { String::new() } else { format!(" {}", run.id) };
    let _ = writeln!(out, "run{id}: {}{axes}", run.strategy);
    let _ = writeln!(out, "{}", summary(program, &prediction));
    out.push_str(&again::lines(program));
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
            let once = if instruction.once { " (once)" } else { "" };
            let _ = writeln!(out, "{mark:6} {mib:9.2}  {scope:22}  {what}{once}");
        }
    }
    let _ = writeln!(out, "\nlive at the peak, largest first");
    let values = live_at_peak(program, target, prediction.device.steady_peak());
    for LiveValue { name, role, bytes } in values.iter().take(LARGEST) {
        let _ = writeln!(out, "  {:>10}  {:13}  {name}", Bytes(*bytes).to_string(), role.name());
    }
    if let Some(rest) = values.get(LARGEST..).filter(|rest| !rest.is_empty()) {
        let bytes: u64 = rest.iter().map(|value| value.bytes).sum();
        let _ = writeln!(out, "  {:>10}  {} more", Bytes(bytes).to_string(), rest.len());
    }
    out
}

/// The values that are live at a peak, with what other steps and micro-batches had left behind before it.
fn live_at_peak(program: &Program, target: &Target, peak: &Peak) -> Vec<LiveValue> {
    let mut values = live_at(program, target, Pool::Device, peak.position);
    for (role, live) in peak.live.iter() {
        let own: u64 = values.iter().filter(|value| value.role == role).map(|value| value.bytes).sum();
        if live > own {
            let name = "leaked before".to_owned();
            values.push(LiveValue { name, role, bytes: live - own });
        }
    }
    values.sort_by_key(|value| Reverse(value.bytes));
    values
}

fn summary(program: &Program, prediction: &Prediction) -> String {
    format!(
        "{} parameters, {} micro-batches, {:.2} GFLOP a step ({:.2} with recomputation)\n\
         predicted peak {} live, {} asked of the system; start-up {}",
        prediction.parameters,
        program.micro_batches(),
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
        Action::Leak(storage) => format!("leak {}", program.full_name(*storage)),
        Action::EmptyCache => "empty the cache".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::compile;
    use crate::spec::Leak;
    use crate::testing;

    /// The first of these is what a hundred steps leave behind.
    #[test]
    fn all_that_is_live_at_the_peak_is_listed() {
        let mut config = testing::small();
        config.measure.steps = 100;
        for leak in [None, Some(Leak::Logits)] {
            config.strategy.leak = leak;
            let program = compile(&config, &testing::target()).unwrap();
            let prediction = predict(&program, &testing::target(), Cadence::of(&config));
            let peak = prediction.device.steady_peak();
            let values = live_at_peak(&program, &testing::target(), peak);
            assert_eq!(values.iter().map(|value| value.bytes).sum::<u64>(), peak.live.total());
            let leaked = values.iter().position(|value| value.name == "leaked before");
            assert_eq!(leaked, leak.map(|_| 0));
        }
    }
}
