//! Micro-batches: `first` writes gradients, `micro` and `tail` add to them. Gradients that are kept between steps are
//! added to from the first.

use super::Draft;
use super::instruction::{Action, Instruction};
use super::program::{Program, Section, SectionKind, Stage};
use super::value::View;
use device::Phase;
use graph::MicroBatch;
use ops::{Fill, Op, ValueId};
use spec::{Gradients, RunConfig};

impl Section {
    /// As yet without code, of the sizes that a run gives it.
    pub(super) fn new(kind: SectionKind, config: &RunConfig) -> Section {
        let mut section = Section {
            kind,
            times: 1,
            samples: 0,
            model_flops: 0,
            entry: Vec::new(),
            exit: Vec::new(),
            made: Vec::new(),
            code: Vec::new(),
            segments: Vec::new(),
        };
        section.resize(config);
        section
    }

    /// How often it is gone through, and how many samples it sees, in a run.
    pub(super) fn resize(&mut self, config: &RunConfig) {
        let tail = config.tail();
        let full = config.micro_batches() - usize::from(tail.is_some());
        self.times = match self.kind {
            SectionKind::Micro => full - 1,
            SectionKind::Evaluation => full,
            _ => 1,
        };
        self.samples = match self.kind.micro_batch() {
            Some(MicroBatch::Full) => config.micro_batch(),
            Some(MicroBatch::Tail) => tail.unwrap_or(0),
            None => 0,
        };
    }
}

pub(super) fn split(draft: &mut Draft) {
    let program = &mut draft.program;
    let at = program.sections.iter().position(|section| section.kind == SectionKind::First);
    let at = at.expect("build makes it");
    let (carried, model_flops) = (program.sections[at].exit.clone(), program.sections[at].model_flops);
    let first = std::mem::take(&mut program.sections[at].code);
    let own = |ids: &[ValueId]| -> Vec<_> { ids.iter().map(|&id| (id, id)).collect() };
    if let Some(tail) = program.sections.iter().position(|section| section.kind == SectionKind::Tail) {
        // What it leaves in the place of what `first` does.
        let left = std::mem::replace(&mut program.sections[tail].exit, carried.clone());
        program.sections[tail].entry = carried.clone();
        let adds_to: Vec<_> = left.into_iter().zip(carried.iter().copied()).collect();
        let code = std::mem::take(&mut program.sections[tail].code);
        program.sections[tail].code = accumulating(program, &code, &adds_to, false);
    }
    let micro = Section::new(SectionKind::Micro, draft.config);
    if micro.times > 0 {
        let code = accumulating(program, &first, &own(&carried), true);
        let (entry, exit) = (carried.clone(), carried);
        program.sections.insert(at + 1, Section { model_flops, entry, exit, code, ..micro });
    }
    program.sections[at].code = match draft.config.strategy.gradients {
        Gradients::Free => first,
        Gradients::Zero => {
            let kept = keep_gradients(program);
            accumulating(program, &first, &own(&kept), false)
        }
    };
    program.stage = Stage::Sectioned;
}

/// Gradients come into being with the parameters, and `first` adds to their zeros. Returns them.
fn keep_gradients(program: &mut Program) -> Vec<ValueId> {
    let buckets: Vec<ValueId> = program.buckets.iter().filter_map(|bucket| bucket.gradients).collect();
    let zeros: Vec<Instruction> =
        buckets.iter().map(|&bucket| fill_with_zeros(program, bucket, bucket, Phase::Start)).collect();
    for Section { kind, entry, exit, code, .. } in &mut program.sections {
        match kind {
            SectionKind::Start => {
                code.extend(zeros.iter().cloned());
                exit.extend(&buckets);
            }
            SectionKind::First => entry.extend(&buckets),
            kind if kind.is_of_evaluation() => {
                entry.extend(&buckets);
                exit.extend(&buckets);
            }
            _ => {}
        }
    }
    buckets
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

/// The same code adding to what is carried into it: the storages that it leaves, each with what is carried in its place.
/// A `copy` of the code has values of its own.
fn accumulating(
    program: &mut Program,
    code: &[Instruction],
    adds_to: &[(ValueId, ValueId)],
    copy: bool,
) -> Vec<Instruction> {
    let left: Vec<ValueId> = adds_to.iter().map(|(left, _)| *left).collect();
    let left = program.marked(&left);
    let mut now: Now = vec![None; program.values.len()];
    for &(left, carried) in adds_to.iter().filter(|(left, carried)| left != carried) {
        now[left.index()] = Some(carried);
    }
    let mut result = Vec::with_capacity(code.len());
    for instruction in code {
        let mut instruction = instruction.clone();
        match &mut instruction.action {
            Action::Launch { op, inputs, outputs, .. } => {
                let mut sums = op.accumulated().iter().map(|&sum| program.storage(outputs[sum]));
                if sums.all(|storage| left[storage.index()]) {
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
                            let previous = program.value(*output).previous.filter(|_| copy);
                            previous.map(|previous| current(program, &mut now, previous))
                        }
                    };
                    let next = match previous {
                        Some(previous) => program.add_version(previous),
                        None if copy => fresh(program, &mut now, *output),
                        None => *output,
                    };
                    now[output.index()] = Some(next);
                    *output = next;
                }
            }
            Action::Copy { to, .. } if copy => {
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
