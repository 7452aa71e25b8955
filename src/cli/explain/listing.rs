//! Lists a run's program: every operation with the live bytes after it.

use std::fmt::Write as _;

use base::units::Bytes;
use compile::{Action, Instruction, Program, When};
use device::{Position, Target};
use memory::{Prediction, live_bytes, rounded};
use ops::ValueId;

pub(super) fn listing(program: &Program, target: &Target, prediction: &Prediction) -> String {
    let mut out = String::new();
    let peak = prediction.device.steady_peak().position;
    let live = live_bytes(program, target);
    for (index, section) in program.sections.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{} ({} live-in, {} live-out)",
            section.kind.name(),
            section.live_in.len(),
            section.live_out.len()
        );
        let _ = writeln!(out, "        live MiB  scope                   operation");
        for (number, instruction) in section.code.iter().enumerate() {
            let here = Position { section: index as u32, instruction: number as u32 };
            let mark = if here == peak { "> peak" } else { "" };
            let scope = &program.scope(instruction.scope).path;
            let what = describe(program, target, instruction);
            let mib = live[index][number] as f64 / f64::from(1 << 20);
            let once = match instruction.when {
                When::Always => "",
                When::Once => " (once)",
                When::Last => " (last)",
            };
            let _ = writeln!(out, "{mark:6} {mib:9.2}  {scope:22}  {what}{once}");
        }
        out.push('\n');
    }
    out
}

/// One instruction as a line: `layer-norm x f32[8, 256, 384], ... -> normed f32[8, 256, 384]`.
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
        Action::Exchange { collective, to, .. } => format!("{} -> {}", collective.name(), typed(&[*to])),
        Action::Record { queue, event } => {
            format!("event {} recorded by the {} queue", event.0, queue.name())
        }
        Action::Wait { queue, event } => format!("the {1} queue waits for event {0}", event.0, queue.name()),
        Action::Allocate(storage) => {
            let pool = program.value(*storage).pool;
            let place = program.arena_offsets[storage.index()]
                .map_or(String::new(), |offset| format!(" at {offset}"));
            let bytes = rounded(program, *storage, target);
            format!("+ {} ({}, {}{place})", program.full_name(*storage), Bytes(bytes), pool.name())
        }
        Action::Free(storage) => format!("- {}", program.full_name(*storage)),
        Action::Leak(storage) => format!("leak {}", program.full_name(*storage)),
        Action::Collect { value, .. } => format!("collect {}", program.full_name(*value)),
        Action::EmptyCache => "empty the cache".to_owned(),
    }
}
