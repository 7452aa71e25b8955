//! What lives in another pool than it is computed with is brought there ahead of its use, and taken back.

use std::collections::HashMap;

use super::Draft;
use super::program::{Action, Instruction, Program, Stage};
use super::value::Value;
use crate::device::{Pool, Queue};
use crate::ops::ValueId;

/// How many of the launches that something is brought for may lie between bringing it and its own launch.
const AHEAD: usize = 1;

pub(super) fn bring(draft: &mut Draft) {
    let program = &mut draft.program;
    for section in 0..program.sections.len() {
        let code = std::mem::take(&mut program.sections[section].code);
        program.sections[section].code = bring_in(program, code);
    }
    program.stage = Stage::Brought;
}

fn bring_in(program: &mut Program, code: Vec<Instruction>) -> Vec<Instruction> {
    let mut here = Here { program, of: HashMap::new() };
    let moved: Vec<Moved> = code.into_iter().map(|instruction| here.instruction(instruction)).collect();
    // What is brought for a launch comes before one that something is brought for, too.
    let users = moved.iter().enumerate().filter(|(_, moved)| !moved.fetches.is_empty());
    let users: Vec<usize> = users.map(|(index, _)| index).collect();
    let mut fetches: Vec<Vec<Instruction>> = vec![Vec::new(); moved.len()];
    for (nth, &index) in users.iter().enumerate() {
        let before = users[nth.saturating_sub(AHEAD)];
        fetches[before].extend(moved[index].fetches.iter().cloned());
    }
    let mut result = Vec::with_capacity(moved.len());
    for (moved, fetches) in moved.into_iter().zip(fetches) {
        result.extend(fetches);
        result.push(moved.instruction);
        result.extend(moved.stores);
    }
    result
}

/// An instruction on values of the device, and the copies that it takes.
struct Moved {
    fetches: Vec<Instruction>,
    instruction: Instruction,
    stores: Vec<Instruction>,
}

/// What stands on the device for values of other pools.
struct Here<'a> {
    program: &'a mut Program,
    of: HashMap<ValueId, ValueId>,
}

impl Here<'_> {
    fn instruction(&mut self, mut instruction: Instruction) -> Moved {
        let (mut fetches, mut stores) = (Vec::new(), Vec::new());
        let (scope, phase) = (instruction.scope, instruction.phase);
        if let Action::Launch { op, inputs, outputs, .. } = &mut instruction.action {
            let copy =
                |from, to| Instruction::new(Action::Copy { queue: Queue::Copy, from, to }, scope, phase);
            for input in inputs.iter_mut() {
                let there = *input;
                if !self.is_elsewhere(there) {
                    continue;
                }
                *input = self.of.get(&there).copied().unwrap_or_else(|| {
                    let here = self.stand_in(there);
                    fetches.push(copy(there, here));
                    here
                });
            }
            for (index, output) in outputs.iter_mut().enumerate() {
                if !self.is_elsewhere(*output) {
                    continue;
                }
                let there = *output;
                let updated = op.updates().iter().find(|(updating, _)| *updating == index);
                *output = match updated {
                    Some(&(_, input)) => self.program.add_version(inputs[input]),
                    None => self.stand_in(there),
                };
                self.of.insert(there, *output);
                stores.push(copy(*output, there));
            }
        }
        Moved { fetches, instruction, stores }
    }

    fn is_elsewhere(&self, id: ValueId) -> bool {
        self.program.value(id).pool != Pool::Device
    }

    fn stand_in(&mut self, there: ValueId) -> ValueId {
        let value = self.program.value(there).clone();
        let here = self.program.add_like(Value { pool: Pool::Device, ..value });
        self.of.insert(there, here);
        here
    }
}
