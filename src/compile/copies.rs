//! Work goes to the processor it is marked for. What lives in another pool is brought there ahead of its use, and taken
//! back.

use std::collections::HashMap;

use super::Draft;
use super::program::{Action, Instruction, Program, Stage};
use super::value::Value;
use crate::device::{Phase, Pool, Queue};
use crate::graph::ScopeId;
use crate::ops::ValueId;

pub(super) fn bring(draft: &mut Draft) {
    let program = &mut draft.program;
    for section in 0..program.sections.len() {
        let mut code = std::mem::take(&mut program.sections[section].code);
        code.iter_mut().for_each(|instruction| instruction.home = draft.marks.home(program, instruction));
        program.sections[section].code = bring_in(program, code, draft.marks.ahead);
    }
    program.stage = Stage::Brought;
}

fn bring_in(program: &mut Program, code: Vec<Instruction>, ahead: usize) -> Vec<Instruction> {
    let mut here = Here { program, stretch: None, of: HashMap::new(), written: HashMap::new() };
    let code = code.into_iter().enumerate();
    let moved: Vec<Moved> = code.map(|(index, instruction)| here.instruction(index, instruction)).collect();
    // What is brought for a launch comes before one that something is brought for, too, if it is there by then.
    let users = moved.iter().enumerate().filter(|(_, moved)| !moved.fetches.is_empty());
    let users: Vec<usize> = users.map(|(index, _)| index).collect();
    let mut fetches: Vec<Vec<Instruction>> = vec![Vec::new(); moved.len()];
    for (nth, &index) in users.iter().enumerate() {
        let before = users[nth.saturating_sub(ahead)];
        for (there_from, fetch) in &moved[index].fetches {
            fetches[before.max(*there_from)].push(fetch.clone());
        }
    }
    let mut result = Vec::with_capacity(moved.len());
    for (moved, fetches) in moved.into_iter().zip(fetches) {
        result.extend(fetches);
        result.push(moved.instruction);
        result.extend(moved.stores);
    }
    result
}

/// An instruction on values of its home, and the copies that it takes.
struct Moved {
    /// With the first instruction before which each can be.
    fetches: Vec<(usize, Instruction)>,
    instruction: Instruction,
    stores: Vec<Instruction>,
}

/// What stands in one pool for values of another, for as long as the code is about one layer.
struct Here<'a> {
    program: &'a mut Program,
    stretch: Option<(ScopeId, Phase)>,
    of: HashMap<(Pool, ValueId), ValueId>,
    /// By storage that something is written to: the instruction behind the last that did.
    written: HashMap<ValueId, usize>,
}

impl Here<'_> {
    fn instruction(&mut self, index: usize, mut instruction: Instruction) -> Moved {
        let (mut fetches, mut stores) = (Vec::new(), Vec::new());
        let (scope, phase, home) = (instruction.scope, instruction.phase, instruction.home);
        let written: Vec<ValueId> =
            instruction.action.writes().iter().map(|&id| self.program.storage(id)).collect();
        if let Action::Launch { op, inputs, outputs, .. } = &mut instruction.action {
            let stretch = Some((self.program.scope(scope).layer, phase));
            if self.stretch != stretch {
                self.stretch = stretch;
                self.of.clear();
            }
            let copy =
                |from, to| Instruction::new(Action::Copy { queue: Queue::Copy, from, to }, scope, phase);
            for input in inputs.iter_mut() {
                let there = *input;
                if self.program.value(there).pool == home {
                    continue;
                }
                *input = self.of.get(&(home, there)).copied().unwrap_or_else(|| {
                    let here = self.stand_in(home, there);
                    let from = self.written.get(&self.program.storage(there)).copied().unwrap_or(0);
                    fetches.push((from, copy(there, here)));
                    here
                });
            }
            for (index, output) in outputs.iter_mut().enumerate() {
                if self.program.value(*output).pool == home {
                    continue;
                }
                let there = *output;
                let updated = op.updates().iter().find(|(updating, _)| *updating == index);
                *output = match updated {
                    Some(&(_, input)) => self.program.add_version(inputs[input]),
                    None => self.stand_in(home, there),
                };
                self.stands(home, there, *output);
                stores.push(copy(*output, there));
            }
        }
        // What is taken back is there behind this instruction, as is what it writes at home.
        self.written.extend(written.into_iter().map(|storage| (storage, index + 1)));
        Moved { fetches, instruction, stores }
    }

    fn stand_in(&mut self, home: Pool, there: ValueId) -> ValueId {
        let value = self.program.value(there).clone();
        let here = self.program.add_like(Value { pool: home, ..value });
        self.stands(home, there, here);
        here
    }

    fn stands(&mut self, home: Pool, there: ValueId, here: ValueId) {
        self.of.insert((home, there), here);
        self.program.stand_ins.insert(here, there);
    }
}
