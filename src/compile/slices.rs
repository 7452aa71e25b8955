//! Losses computed some rows at a time: what they are computed from, the logits, and its gradient are then never there as
//! a whole.
//!
//! A loss and the operation before it become as many pairs as there are slices. Each pair is differentiated as soon as it
//! was computed (`differentiate`), so that of the logits, one slice is there at a time.

use super::Draft;
use super::program::{Action, Instruction, Program, SectionKind};
use crate::ops::{Op, Slice, ValueId};

pub(super) fn slice(draft: &mut Draft) {
    let most = draft.config.strategy.loss_chunks;
    let program = &mut draft.program;
    for section in 0..program.sections.len() {
        if program.sections[section].kind != SectionKind::Start {
            let mut code = std::mem::take(&mut program.sections[section].code);
            while let Some(pair) = code.windows(2).position(|pair| slices(program, &code, pair, most) > 1) {
                slice_pair(program, &mut code, pair, most);
            }
            program.sections[section].code = code;
        }
    }
}

/// In how many slices to compute an operation and what follows it: one, unless that is a loss of it and nothing else needs
/// what it makes.
fn slices(program: &Program, code: &[Instruction], pair: &[Instruction], most: usize) -> usize {
    let [Action::Launch { op, outputs, .. }, Action::Launch { op: loss, inputs, .. }] =
        [&pair[0].action, &pair[1].action]
    else {
        return 1;
    };
    let whole = pair.iter().all(|instruction| instruction.slice.is_none());
    if !whole || op.rowwise().is_none() || loss.as_loss().is_none() || outputs[0] != inputs[0] {
        return 1;
    }
    let reads = code.iter().flat_map(|instruction| instruction.action.reads());
    if reads.filter(|read| outputs.contains(read)).count() > 1 {
        return 1;
    }
    Slice::count(program.ty(outputs[0]).shape.rows(), most)
}

/// Puts slices in the place of two instructions.
fn slice_pair(program: &mut Program, code: &mut Vec<Instruction>, at: usize, most: usize) {
    let [before, of_loss] = [&code[at], &code[at + 1]].map(Clone::clone);
    let (
        Action::Launch { op, inputs, outputs, .. },
        Action::Launch { op: loss, inputs: of, outputs: losses, .. },
    ) = (before.action, of_loss.action)
    else {
        unreachable!("both are launches")
    };
    let rowwise = op.rowwise().expect("it goes row by row");
    let loss = loss.as_loss().expect("it is a loss");
    let count = Slice::count(program.ty(outputs[0]).shape.rows(), most);
    // The loss of all slices is the value that there was before; what it adds to, one after the other, comes before it.
    let mut so_far = program.value(losses[0]).previous;
    let mut sliced = Vec::with_capacity(2 * count);
    for slice in Slice::all(count) {
        let mut push = |op, inputs, outputs, scope| {
            let action = Action::Launch { op, inputs, outputs, workspace: None };
            sliced.push(Instruction { slice: Some(slice), ..Instruction::new(action, scope, before.phase) });
        };
        let mut inputs = inputs.clone();
        rowwise.iter().for_each(|&index| inputs[index] = program.add_rows(inputs[index], slice));
        let rows: Vec<ValueId> = outputs.iter().map(|&output| program.add_slice(output, slice)).collect();
        push(op.clone(), inputs, rows.clone(), before.scope);

        let mut inputs = of.clone();
        inputs[0] = rows[0];
        let op = match so_far {
            None => loss.sliced(slice),
            Some(so_far) => adding(loss.sliced(slice), &mut inputs, so_far),
        };
        if slice.index + 1 == count {
            program.set_previous(losses[0], so_far);
            push(op, inputs, losses.clone(), of_loss.scope);
        } else {
            let next = match so_far {
                Some(so_far) => program.add_version(so_far),
                None => program.add_like(program.value(losses[0]).clone()),
            };
            so_far = Some(next);
            push(op, inputs, vec![next], of_loss.scope);
        }
    }
    code.splice(at..at + 2, sliced);
}

/// A loss that adds to the one so far.
fn adding(op: Op, inputs: &mut Vec<ValueId>, so_far: ValueId) -> Op {
    match op.updates() {
        &[(_, input), ..] => {
            inputs[input] = so_far;
            op
        }
        [] => {
            inputs.push(so_far);
            op.accumulating().expect("losses add up")
        }
    }
}
