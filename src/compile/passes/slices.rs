//! Computes losses in slices of rows, so that the logits and their gradient are never in memory as a whole.
//!
//! A loss and the operation that produces its input (the logits) become one pair per slice. Each pair is
//! differentiated right after it is computed (`differentiate`), so that one slice of the logits is in memory at a
//! time.

use super::Draft;
use crate::ir::{Action, Instruction, LossSlices, Program, ShapeSource};
use graph::Pass;
use ops::{Op, RowSlice, ValueId};
use spec::RunConfig;

/// The number of slices for `rows` rows.
pub(crate) fn count(config: &RunConfig, rows: usize) -> usize {
    RowSlice::count(rows, config.strategy.loss_chunks)
}

pub(super) fn slice(draft: &mut Draft) {
    let config = draft.config;
    let program = &mut draft.program;
    for section in 0..program.sections.len() {
        let mut code = std::mem::take(&mut program.sections[section].code);
        let mut at = 0;
        while let Some(next) = code[at..].iter().position(|instruction| instruction.action.is_loss()) {
            at += next + 1;
            // The loss that it adds to may have been sliced.
            let loss = code[at - 1].action.writes()[0];
            program.set_previous(loss, program.value(loss).previous);
            let Some((pass, value, producer)) = sliceable(program, &code, at - 1) else { continue };
            let rows = program.ty(input(&code[at - 1])).shape.rows();
            let sliced = LossSlices { pass, value, count: count(config, rows) };
            if !program.loss_slices.contains(&sliced) {
                program.loss_slices.push(sliced);
            }
            if sliced.count > 1 {
                code[producer..at - 1].rotate_left(1);
                slice_pair(program, &mut code, at - 2, sliced.count);
                at += 2 * (sliced.count - 1);
            }
        }
        program.sections[section].code = code;
    }
}

/// The first input of an instruction.
fn input(instruction: &Instruction) -> ValueId {
    instruction.action.reads()[0]
}

/// The input of the loss at `at` as a value of a forward pass's graph, and the instruction that produces it, if it
/// can be sliced: the producer is row-wise, and nothing else reads its outputs.
fn sliceable(program: &Program, code: &[Instruction], at: usize) -> Option<(Pass, usize, usize)> {
    let of = input(&code[at]);
    let producer = code[..at].iter().rposition(|instruction| instruction.action.writes().contains(&of))?;
    let Action::Launch { op, outputs, .. } = &code[producer].action else { return None };
    if op.rowwise().is_none() || outputs[0] != of {
        return None;
    }
    let reads = code.iter().flat_map(|instruction| instruction.action.reads());
    match program.value(of).shape_source {
        ShapeSource::Graph(pass, value) if reads.filter(|read| outputs.contains(read)).count() == 1 => {
            Some((pass, value, producer))
        }
        _ => None,
    }
}

/// Replaces the producer at `at` and the loss after it with slices.
fn slice_pair(program: &mut Program, code: &mut Vec<Instruction>, at: usize, count: usize) {
    let [producer, loss_instruction] = [&code[at], &code[at + 1]].map(Clone::clone);
    let (
        Action::Launch { op, inputs, outputs, .. },
        Action::Launch { op: loss, inputs: of, outputs: losses, .. },
    ) = (producer.action, loss_instruction.action)
    else {
        unreachable!("`sliceable` returns two launches")
    };
    let rowwise = op.rowwise().expect("`sliceable` checked it");
    let loss = loss.as_loss().expect("`slice` found a loss");
    // The last slice writes the original loss value. Each slice adds to the partial loss of the slices before it.
    let mut partial_loss = program.value(losses[0]).previous;
    let mut sliced = Vec::with_capacity(2 * count);
    for slice in RowSlice::all(count) {
        let mut push = |op, inputs, outputs, scope| {
            let action = Action::Launch { op, inputs, outputs, workspace: None };
            sliced
                .push(Instruction { slice: Some(slice), ..Instruction::new(action, scope, producer.phase) });
        };
        let mut inputs = inputs.clone();
        rowwise.iter().for_each(|&index| inputs[index] = program.add_rows(inputs[index], slice));
        let rows: Vec<ValueId> = outputs.iter().map(|&output| program.add_slice(output, slice)).collect();
        push(op.clone(), inputs, rows.clone(), producer.scope);

        let mut inputs = of.clone();
        inputs[0] = rows[0];
        let op = match partial_loss {
            None => loss.sliced(slice),
            Some(partial_loss) => accumulate(loss.sliced(slice), &mut inputs, partial_loss),
        };
        if slice.index + 1 == count {
            program.set_previous(losses[0], partial_loss);
            push(op, inputs, losses.clone(), loss_instruction.scope);
        } else {
            let next = match partial_loss {
                Some(partial_loss) => program.add_version(partial_loss),
                None => program.add_like(program.value(losses[0]).clone()),
            };
            partial_loss = Some(next);
            push(op, inputs, vec![next], loss_instruction.scope);
        }
    }
    code.splice(at..at + 2, sliced);
}

/// The loss in the form that adds to a partial loss.
fn accumulate(op: Op, inputs: &mut Vec<ValueId>, partial_loss: ValueId) -> Op {
    match op.updates() {
        &[(_, input), ..] => {
            inputs[input] = partial_loss;
            op
        }
        [] => {
            inputs.push(partial_loss);
            op.accumulating().expect("every loss has an accumulating form")
        }
    }
}
