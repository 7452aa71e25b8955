//! Micro-batches: `first` writes gradients, `micro` and `tail` add to them. If gradients are kept between steps,
//! `first` adds to them as well.

use super::Draft;
use crate::ir::{Action, Instruction, Program, Section, SectionKind, Stage, View};
use device::Phase;
use graph::MicroBatch;
use ops::{Add, Fill, Op, ValueId};
use spec::{Gradients, RunConfig};

impl Section {
    /// A section without code, with the sizes of a run.
    pub(crate) fn new(kind: SectionKind, config: &RunConfig) -> Section {
        let mut section = Section {
            kind,
            repeat_count: 1,
            samples: 0,
            model_flops: 0,
            live_in: Vec::new(),
            live_out: Vec::new(),
            lazily_initialised: Vec::new(),
            code: Vec::new(),
            capture_ranges: Vec::new(),
        };
        section.resize(config);
        section
    }

    /// Sets the repeat count and the number of samples of a run.
    pub(crate) fn resize(&mut self, config: &RunConfig) {
        let own_batch = config.evaluation_batch().filter(|_| self.kind.is_in_evaluation());
        let tail = config.tail();
        let full = config.micro_batches() - usize::from(tail.is_some());
        self.repeat_count = match self.kind {
            SectionKind::Micro => full - 1,
            SectionKind::Evaluation if own_batch.is_none() => full,
            _ => 1,
        };
        self.samples = match self.kind.micro_batch() {
            Some(MicroBatch::Full) => own_batch.unwrap_or(config.micro_batch()),
            Some(MicroBatch::Tail) => tail.unwrap_or(0),
            None => 0,
        };
    }
}

pub(super) fn split(draft: &mut Draft) {
    let program = &mut draft.program;
    let at = program.sections.iter().position(|section| section.kind == SectionKind::First);
    let at = at.expect("added by `build`");
    let (carried, model_flops) = (program.sections[at].live_out.clone(), program.sections[at].model_flops);
    let first = std::mem::take(&mut program.sections[at].code);
    let own = |ids: &[ValueId]| -> Vec<_> { ids.iter().map(|&id| (id, id)).collect() };
    if let Some(tail) = program.sections.iter().position(|section| section.kind == SectionKind::Tail) {
        // Pairs its own live-out values with those of `first`, to which they must add.
        let left = std::mem::replace(&mut program.sections[tail].live_out, carried.clone());
        program.sections[tail].live_in = carried.clone();
        let adds_to: Vec<_> = left.into_iter().zip(carried.iter().copied()).collect();
        let code = std::mem::take(&mut program.sections[tail].code);
        // Whole gradients that live within a micro-batch are its own.
        let copy = draft.config.shards_gradients();
        program.sections[tail].code = accumulating(program, &code, &adds_to, copy);
    }
    let micro = Section::new(SectionKind::Micro, draft.config);
    if micro.repeat_count > 0 {
        let code = accumulating(program, &first, &own(&carried), true);
        let (live_in, live_out) = (carried.clone(), carried);
        program.sections.insert(at + 1, Section { model_flops, live_in, live_out, code, ..micro });
    }
    program.sections[at].code = match draft.config.strategy.gradients {
        Gradients::Free => first,
        Gradients::Zero => {
            let kept = zero_gradients_at_start(program);
            accumulating(program, &first, &own(&kept), false)
        }
    };
    program.stage = Stage::Sectioned;
}

/// Zeroes the gradients at the start, so that `first` adds to them. Returns the gradient buckets.
fn zero_gradients_at_start(program: &mut Program) -> Vec<ValueId> {
    let buckets: Vec<ValueId> = program.buckets.iter().filter_map(|bucket| bucket.gradients).collect();
    let zeros: Vec<Instruction> =
        buckets.iter().map(|&bucket| fill_with_zeros(program, bucket, bucket, Phase::Start)).collect();
    for Section { kind, live_in, live_out, code, .. } in &mut program.sections {
        match kind {
            SectionKind::Start => {
                code.extend(zeros.iter().cloned());
                live_out.extend(&buckets);
            }
            SectionKind::First => live_in.extend(&buckets),
            kind if kind.is_in_evaluation() => {
                live_in.extend(&buckets);
                live_out.extend(&buckets);
            }
            _ => {}
        }
    }
    buckets
}

/// Fills a bucket with zeros; `written` is the bucket itself or its next version.
pub(crate) fn fill_with_zeros(
    program: &Program,
    bucket: ValueId,
    written: ValueId,
    phase: Phase,
) -> Instruction {
    let op = Op::Fill(Fill { output: program.ty(bucket), value: 0.0 });
    let action = Action::Launch { op, inputs: Vec::new(), outputs: vec![written], workspace: None };
    Instruction::new(action, program.value(bucket).scope, phase)
}

/// By value of the code that is rewritten: its replacement, if any.
type Replacements = Vec<Option<ValueId>>;

/// The code in accumulating form: `adds_to` pairs each live-out storage with the live-in value that it adds to. With
/// `copy`, the code gets new values. Shares of sums over ranks are added after each exchange.
fn accumulating(
    program: &mut Program,
    code: &[Instruction],
    adds_to: &[(ValueId, ValueId)],
    copy: bool,
) -> Vec<Instruction> {
    let left: Vec<ValueId> = adds_to.iter().map(|(left, _)| *left).collect();
    let left = program.mask(&left);
    let mut replacements: Replacements = vec![None; program.values.len()];
    for &(left, carried) in adds_to.iter().filter(|(left, carried)| left != carried) {
        replacements[left.index()] = Some(carried);
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
                    *input = current(program, &mut replacements, *input);
                }
                for (index, output) in outputs.iter_mut().enumerate() {
                    let updated = op.updates().iter().find(|(output, _)| *output == index);
                    let previous = match updated {
                        Some(&(_, input)) => Some(inputs[input]),
                        None => {
                            let previous = program.value(*output).previous.filter(|_| copy);
                            previous.map(|previous| current(program, &mut replacements, previous))
                        }
                    };
                    let next = match previous {
                        Some(previous) => program.add_version(previous),
                        None if copy => new_value(program, &mut replacements, *output),
                        None => *output,
                    };
                    replacements[output.index()] = Some(next);
                    *output = next;
                }
            }
            Action::Copy { to, .. } if copy => {
                let next = new_value(program, &mut replacements, *to);
                replacements[to.index()] = Some(next);
                *to = next;
            }
            Action::Exchange { from, to, .. } => {
                let own = *to;
                *from = current(program, &mut replacements, *from);
                *to = program.add_like(program.value(own).clone());
                let inputs = vec![current(program, &mut replacements, own), *to];
                let next = program.add_version(inputs[0]);
                replacements[own.index()] = Some(next);
                let op = Op::Add(Add::PLAIN);
                let add = Action::Launch { op, inputs, outputs: vec![next], workspace: None };
                let add = Instruction { action: add, ..instruction.clone() };
                result.extend([instruction, add]);
                continue;
            }
            _ => {}
        }
        result.push(instruction);
    }
    result
}

/// Turns an operation into its accumulating form: its accumulated outputs become updates of live-in values, unless
/// they update something already.
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

/// The current replacement of a value, views of replaced values included.
fn current(program: &mut Program, replacements: &mut Replacements, id: ValueId) -> ValueId {
    if let Some(next) = replacements[id.index()] {
        return next;
    }
    let Some(View { of, range }) = program.value(id).view else { return id };
    let parent = current(program, replacements, of);
    if parent == of {
        return id;
    }
    let next = program.add_view_like(id, range, parent);
    replacements[id.index()] = Some(next);
    next
}

/// A new value like this one: with its own memory, or a view of a new parent.
fn new_value(program: &mut Program, replacements: &mut Replacements, id: ValueId) -> ValueId {
    let Some(View { of, range }) = program.value(id).view else {
        return program.add_like(program.value(id).clone());
    };
    let parent = match replacements[of.index()] {
        Some(parent) => parent,
        None => new_value(program, replacements, of),
    };
    replacements[of.index()] = Some(parent);
    program.add_view_like(id, range, parent)
}
