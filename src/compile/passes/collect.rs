//! Outputs that an evaluation collects: each forward pass adds its own at its end, and they outlive it.

use super::Draft;
use crate::ir::{Action, Instruction, Program, Section, Value};
use device::{Phase, Pool, Queue};
use ops::ValueId;
use spec::{CollectedIn, CollectedOutput};

pub(super) fn collect(draft: &mut Draft) {
    let Some(collect) = draft.config.collect() else { return };
    let program = &mut draft.program;
    for index in 0..program.sections.len() {
        let section = &program.sections[index];
        if !section.kind.is_in_evaluation() {
            continue;
        }
        let mut end = Vec::new();
        for output in outputs(program, section, collect.what) {
            let value = program.value(output).clone();
            let moves = collect.to == CollectedIn::Host && value.pool == Pool::Device;
            let scope = value.scope;
            let mut push = |action| end.push(Instruction::new(action, scope, Phase::Evaluation));
            let mut collected = output;
            if moves {
                collected = program.add_like(Value { pool: Pool::Host, ..value });
                push(Action::Copy { queue: Queue::Compute, from: output, to: collected });
            }
            push(Action::Collect { value: collected, concatenate: collect.concatenate });
        }
        program.sections[index].code.extend(end);
    }
}

/// The values of a section that are collected, one per storage.
fn outputs(program: &Program, section: &Section, what: CollectedOutput) -> Vec<ValueId> {
    let mut losses = section.code.iter().filter(|instruction| instruction.action.is_loss());
    let mut outputs: Vec<ValueId> = match what {
        CollectedOutput::Logits => losses.map(|loss| loss.action.reads()[0]).collect(),
        // All losses add to the last one.
        CollectedOutput::Loss => losses.next_back().map(|loss| loss.action.writes()[0]).into_iter().collect(),
    };
    // Not their copies on another device.
    outputs.iter_mut().for_each(|output| *output = program.original(*output));
    outputs.sort_unstable_by_key(|&output| program.storage(output));
    outputs.dedup_by_key(|output| program.storage(*output));
    outputs
}

impl Program {
    /// The storages that no section frees: leaked or collected, in memory of their own.
    pub(crate) fn outliving(&self) -> impl Iterator<Item = ValueId> + '_ {
        let code = self.sections.iter().flat_map(|section| &section.code);
        code.filter_map(|instruction| match instruction.action {
            Action::Leak(storage) => Some(storage),
            Action::Collect { value, .. } => Some(self.storage(value)),
            _ => None,
        })
    }
}
