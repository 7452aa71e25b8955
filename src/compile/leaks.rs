//! What each optimizer step leaves behind for ever. Where it would be freed its memory is handed over to what never lets go of
//! it, so that the next step has to be given other memory.

use super::instruction::{Action, Instruction};
use super::program::{Program, Section};
use super::value::Form;
use device::{Phase, Role};
use ops::ValueId;
use spec::Leak;

/// The storages that a step leaves behind, before any is allocated.
pub(super) fn leaked(program: &Program, leak: Option<Leak>) -> Vec<ValueId> {
    let Some(leak) = leak else { return Vec::new() };
    match leak {
        // One for all of a step's micro-batches, which add to it.
        Leak::Loss => program.loss.iter().map(|&loss| program.storage(loss)).collect(),
        Leak::Logits => program.step().flat_map(|section| logits(program, section)).collect(),
        Leak::Graph => program.step().flat_map(|section| graph(program, section)).collect(),
    }
}

/// What losses are computed from.
fn logits<'a>(program: &'a Program, section: &'a Section) -> impl Iterator<Item = ValueId> + 'a {
    let losses = section.code.iter().filter(|instruction| instruction.action.is_loss());
    losses.map(|loss| program.storage(loss.action.reads()[0]))
}

/// What the forward pass makes, its batch among it, and backward reads. Parameters are there in any case, and so is what they
/// are brought or cast to.
fn graph(program: &Program, section: &Section) -> Vec<ValueId> {
    let storages = |id: &ValueId| program.storage(*id);
    let is_backward = |instruction: &&Instruction| instruction.phase == Phase::Backward;
    let backward = section.code.iter().filter(is_backward);
    let read = backward.flat_map(|instruction| instruction.action.reads()).map(storages);
    let read = program.marked(&read.collect::<Vec<_>>());
    let forward = section.code.iter().filter(|instruction| {
        instruction.phase == Phase::Forward && !instruction.recompute && !instruction.once
    });
    let made = forward.flat_map(|instruction| instruction.action.writes()).filter(|&&id| {
        let value = program.value(id);
        matches!(value.role, Role::Activation | Role::Input) && value.form != Form::Gradient
    });
    let carried = program.marked(&[&section.entry[..], &section.exit].concat());
    let made = made.map(storages).filter(|storage| read[storage.index()] && !carried[storage.index()]);
    let mut made: Vec<ValueId> = made.collect();
    made.sort_unstable();
    made.dedup();
    made
}

impl Program {
    /// The storages that are left behind.
    pub fn left_behind(&self) -> impl Iterator<Item = ValueId> + '_ {
        let code = self.sections.iter().flat_map(|section| &section.code);
        code.filter_map(|instruction| match instruction.action {
            Action::Leak(storage) => Some(storage),
            _ => None,
        })
    }
}
