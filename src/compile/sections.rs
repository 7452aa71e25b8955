//! Micro-batches: `first` writes gradients, `micro` adds to them. Gradients that are kept between steps are
//! added to from the first.

use super::Draft;
use super::program::{Action, Instruction, Program, Section, SectionKind, Stage};
use super::value::View;
use crate::device::Phase;
use crate::ops::{Fill, Op, ValueId};
use crate::spec::Gradients;

pub(super) fn split(draft: &mut Draft) {
    let program = &mut draft.program;
    let at = program.sections.iter().position(|section| section.kind == SectionKind::First);
    let at = at.expect("build makes it");
    let first = std::mem::take(&mut program.sections[at].code);
    let carried = program.sections[at].exit.clone();
    if program.micro_batches > 1 {
        let code = accumulating(program, &first, &carried, true);
        let micro = Section {
            kind: SectionKind::Micro,
            entry: carried.clone(),
            exit: carried.clone(),
            code,
            segments: Vec::new(),
        };
        program.sections.insert(at + 1, micro);
    }
    program.sections[at].code = match draft.config.strategy.gradients {
        Gradients::Free => first,
        Gradients::Zero => {
            keep_gradients(program);
            accumulating(program, &first, &carried, false)
        }
    };
    program.stage = Stage::Sectioned;
}

/// Gradients come into being with the parameters, and `first` adds to their zeros.
fn keep_gradients(program: &mut Program) {
    let buckets: Vec<ValueId> = program.buckets.iter().filter_map(|bucket| bucket.gradients).collect();
    let zeros: Vec<Instruction> =
        buckets.iter().map(|&bucket| fill_with_zeros(program, bucket, bucket, Phase::Start)).collect();
    let start = program.section_mut(SectionKind::Start).expect("build makes it");
    start.code.extend(zeros);
    let section = program.section_mut(SectionKind::First).expect("build makes it");
    section.entry.extend(&buckets);
    for kind in [SectionKind::Start, SectionKind::Evaluation] {
        if let Some(section) = program.section_mut(kind) {
            section.exit.extend(&buckets);
            if kind == SectionKind::Evaluation {
                section.entry.extend(&buckets);
            }
        }
    }
}

/// Zeros for a bucket; `written` is the bucket itself or its next version.
pub(super) fn fill_with_zeros(
    program: &Program,
    bucket: ValueId,
    written: ValueId,
    phase: Phase,
) -> Instruction {
    let op = Op::Fill(Fill { output: program.ty(bucket), value: 0.0 });
    let action = Action::Launch { op, inputs: Vec::new(), outputs: vec![written], workspace: None };
    Instruction::new(action, program.value(bucket).scope, phase)
}

/// By value of the code that is copied: what has taken its place, if anything has.
type Now = Vec<Option<ValueId>>;

/// The same code adding to what is carried into it. A `further` micro-batch has values of its own and adds to
/// the loss as well.
fn accumulating(
    program: &mut Program,
    code: &[Instruction],
    carried: &[ValueId],
    further: bool,
) -> Vec<Instruction> {
    let carried = program.marked(carried);
    let mut now: Now = vec![None; program.values.len()];
    let mut result = Vec::with_capacity(code.len());
    for instruction in code {
        let mut instruction = instruction.clone();
        match &mut instruction.action {
            Action::Launch { op, inputs, outputs, .. } => {
                let adds = further || op.as_loss().is_none();
                let sums = op.accumulated().iter().map(|&sum| program.storage(outputs[sum]));
                if adds && sums.into_iter().all(|storage| carried[storage.index()]) {
                    add_previous(op, inputs, outputs);
                }
                for input in inputs.iter_mut() {
                    *input = current(program, &mut now, *input);
                }
                for (index, output) in outputs.iter_mut().enumerate() {
                    let updated = op.updates().iter().find(|(output, _)| *output == index);
                    let previous = match updated {
                        Some(&(_, input)) => Some(inputs[input]),
                        None => {
                            let previous = program.value(*output).previous.filter(|_| further);
                            previous.map(|previous| current(program, &mut now, previous))
                        }
                    };
                    let next = match previous {
                        Some(previous) => program.add_version(previous),
                        None if further => fresh(program, &mut now, *output),
                        None => *output,
                    };
                    now[output.index()] = Some(next);
                    *output = next;
                }
            }
            Action::Copy { to, .. } if further => {
                let next = fresh(program, &mut now, *to);
                now[to.index()] = Some(next);
                *to = next;
            }
            _ => {}
        }
        result.push(instruction);
    }
    result
}

/// Turns an operation into its accumulating form: outputs that hold what is carried become updates of what the
/// section begins with, unless they update something already.
fn add_previous(op: &mut Op, inputs: &mut Vec<ValueId>, outputs: &[ValueId]) {
    let Some(accumulating) = op.accumulating() else { return };
    let updates = op.updates();
    let mut previous = Vec::new();
    for &output in op.accumulated() {
        let updated = updates.iter().find(|&&(updated, _)| updated == output);
        previous.push(updated.map_or(outputs[output], |&(_, input)| inputs[input]));
    }
    let mut index = 0;
    inputs.retain(|_| {
        index += 1;
        !updates.iter().any(|&(_, input)| input == index - 1)
    });
    inputs.extend(previous);
    *op = accumulating;
}

/// What takes a value's place by now: with what it is part of.
fn current(program: &mut Program, now: &mut Now, id: ValueId) -> ValueId {
    if let Some(next) = now[id.index()] {
        return next;
    }
    let Some(View { of, part }) = program.value(id).view else { return id };
    let parent = current(program, now, of);
    if parent == of {
        return id;
    }
    let next = program.add_view_like(id, part, parent);
    now[id.index()] = Some(next);
    next
}

/// A value like this one: with memory of its own, or part of one like its parent.
fn fresh(program: &mut Program, now: &mut Now, id: ValueId) -> ValueId {
    let Some(View { of, part }) = program.value(id).view else {
        return program.add_like(program.value(id).clone());
    };
    let parent = match now[of.index()] {
        Some(parent) => parent,
        None => fresh(program, now, of),
    };
    now[of.index()] = Some(parent);
    program.add_view_like(id, part, parent)
}
