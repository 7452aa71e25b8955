//! The storages that each optimizer step leaks. Instead of being freed, their memory goes to an owner that never
//! frees it, so that the next step must allocate other memory.

use crate::ir::{Instruction, Program, Section, Variant};
use device::{Phase, Role};
use ops::ValueId;
use spec::Leak;

/// The storages that a step leaks, before allocation is inserted.
pub(crate) fn leaked(program: &Program, leak: Option<Leak>) -> Vec<ValueId> {
    let Some(leak) = leak else { return Vec::new() };
    match leak {
        // One storage: all micro-batches of a step add to it.
        Leak::Loss => program.loss.iter().map(|&loss| program.storage(loss)).collect(),
        Leak::Logits => program.step().flat_map(|section| logits(program, section)).collect(),
        Leak::Graph => program.step().flat_map(|section| graph(program, section)).collect(),
    }
}

/// The inputs of the losses.
fn logits<'a>(program: &'a Program, section: &'a Section) -> impl Iterator<Item = ValueId> + 'a {
    let losses = section.code.iter().filter(|instruction| instruction.action.is_loss());
    losses.map(|loss| program.storage(loss.action.reads()[0]))
}

/// Activations and inputs that forward writes and backward reads. Parameters are live anyway, and so are their copies
/// and casts.
fn graph(program: &Program, section: &Section) -> Vec<ValueId> {
    let storages = |id: &ValueId| program.storage(*id);
    let is_backward = |instruction: &&Instruction| instruction.phase == Phase::Backward;
    let backward = section.code.iter().filter(is_backward);
    let read = backward.flat_map(|instruction| instruction.action.reads()).map(storages);
    let read = program.mask(&read.collect::<Vec<_>>());
    let forward = section.code.iter().filter(|instruction| {
        instruction.phase == Phase::Forward && !instruction.recompute && !instruction.is_once()
    });
    let written = forward.flat_map(|instruction| instruction.action.writes()).filter(|&&id| {
        let value = program.value(id);
        matches!(value.role, Role::Activation | Role::Input) && value.variant != Variant::Gradient
    });
    let carried = program.mask(&[&section.live_in[..], &section.live_out].concat());
    let written = written.map(storages).filter(|storage| read[storage.index()] && !carried[storage.index()]);
    let mut written: Vec<ValueId> = written.collect();
    written.sort_unstable();
    written.dedup();
    written
}
