//! Losses computed some rows at a time: what they are computed from, the logits, and its gradient are then never there as
//! a whole.
//!
//! A loss and the operation that makes what it is computed from become as many pairs as there are slices. Each pair is differentiated as soon as it
//! was computed (`differentiate`), so that of the logits, one slice is there at a time.

use super::Draft;
use super::instruction::{Action, Instruction};
use super::program::{Program, Sliced};
use super::value::Like;
use graph::Pass;
use ops::{Op, Slice, ValueId};
use spec::RunConfig;

/// In how many slices so many rows are taken.
pub(super) fn count(config: &RunConfig, rows: usize) -> usize {
    Slice::count(rows, config.strategy.loss_chunks)
}

pub(super) fn slice(draft: &mut Draft) {
    let config = draft.config;
    let program = &mut draft.program;
    for section in 0..program.sections.len() {
        let mut code = std::mem::take(&mut program.sections[section].code);
        let mut at = 0;
        while let Some(next) = code[at..].iter().position(|instruction| instruction.action.is_loss()) {
            at += next + 1;
            // The loss that it adds to may have become slices.
            let loss = code[at - 1].action.writes()[0];
            program.set_previous(loss, program.value(loss).previous);
            let Some((pass, value, before)) = sliceable(program, &code, at - 1) else { continue };
            let rows = program.ty(source(&code[at - 1])).shape.rows();
            let sliced = Sliced { pass, value, count: count(config, rows) };
            if !program.slices.contains(&sliced) {
                program.slices.push(sliced);
            }
            if sliced.count > 1 {
                code[before..at - 1].rotate_left(1);
                slice_pair(program, &mut code, at - 2, sliced.count);
                at += 2 * (sliced.count - 1);
            }
        }
        program.sections[section].code = code;
    }
}

/// What an instruction is computed from.
fn source(instruction: &Instruction) -> ValueId {
    instruction.action.reads()[0]
}

/// What the loss at a place is computed from, as the value of a forward pass's graph, and where that is made, if it can be
/// sliced: it is made row by row, and nothing else needs what is made there.
fn sliceable(program: &Program, code: &[Instruction], at: usize) -> Option<(Pass, usize, usize)> {
    let of = source(&code[at]);
    let before = code[..at].iter().rposition(|instruction| instruction.action.writes().contains(&of))?;
    let Action::Launch { op, outputs, .. } = &code[before].action else { return None };
    if op.rowwise().is_none() || outputs[0] != of {
        return None;
    }
    let reads = code.iter().flat_map(|instruction| instruction.action.reads());
    match program.value(of).like {
        Like::Graph(pass, value) if reads.filter(|read| outputs.contains(read)).count() == 1 => {
            Some((pass, value, before))
        }
        _ => None,
    }
}

/// Puts slices in the place of two instructions.
fn slice_pair(program: &mut Program, code: &mut Vec<Instruction>, at: usize, count: usize) {
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
