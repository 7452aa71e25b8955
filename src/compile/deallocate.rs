//! Allocates each storage before its first use and frees it after its last, as late as the strategy says, or leaves it behind.

use std::collections::{HashMap, HashSet, VecDeque};

use super::Draft;
use super::instruction::{Action, Instruction};
use super::leaks;
use super::program::{Program, Section, SectionKind, Stage};
use super::value::Form;
use device::{Phase, Queue, Role};
use graph::ScopeId;
use ops::ValueId;
use spec::{EvaluationPass, Release};

pub(super) fn release(draft: &mut Draft) {
    let again = draft.config.strategy.release;
    let kept = kept(&draft.program, &draft.config.strategy.keep);
    let of_evaluation = match draft.config.strategy.evaluation_pass {
        EvaluationPass::NoGrad => Vec::new(),
        EvaluationPass::Grad => {
            let micro_batches = [
                (SectionKind::First, SectionKind::Evaluation),
                (SectionKind::Tail, SectionKind::EvaluationTail),
            ];
            micro_batches.iter().flat_map(|&pair| kept_for_backward(&draft.program, pair)).collect()
        }
    };
    let of_evaluation = [&kept[..], &of_evaluation].concat();
    let program = &mut draft.program;
    let leaked = program.marked(&leaks::leaked(program, draft.config.strategy.leak));
    for index in 0..program.sections.len() {
        let code = std::mem::take(&mut program.sections[index].code);
        let section = &program.sections[index];
        let held = if section.kind.is_of_evaluation() { &of_evaluation } else { &kept };
        let mut code = with_lifetimes(program, section, code, again, held);
        leave_behind(&mut code, &leaked);
        program.sections[index].code = code;
    }
    program.stage = Stage::Released;
}

/// When a storage is used in a section, by instruction.
#[derive(Clone, Copy)]
struct Use {
    first: usize,
    last: usize,
    /// Whether what uses it is done once.
    once: bool,
}

/// The place in the code before or after which a storage is allocated or freed, the storage, and whether that is done once.
type Placed = (usize, ValueId, bool);

fn with_lifetimes(
    program: &Program,
    section: &Section,
    code: Vec<Instruction>,
    again: Release,
    held: &[ValueId],
) -> Vec<Instruction> {
    let is_start = section.kind == SectionKind::Start;
    let mut uses: Vec<Option<Use>> = vec![None; program.values.len()];
    let mut used = Vec::new();
    // What is waited for once is not from then on.
    let done_later = done(program, &code, false);
    let waits_once = code.iter().any(|instruction| instruction.once);
    let done_once = if waits_once { done(program, &code, true) } else { done_later.clone() };
    for (index, instruction) in code.iter().enumerate() {
        let once = instruction.once;
        let done = if once { done_once[index] } else { done_later[index] };
        for storage in instruction.action.touches().map(|id| program.storage(id)) {
            match &mut uses[storage.index()] {
                Some(known) => (known.last, known.once) = (known.last.max(done), known.once && once),
                unknown => {
                    *unknown = Some(Use { first: index, last: done, once });
                    used.push(storage);
                }
            }
        }
    }
    let [entered, left, held] = [&section.entry, &section.exit, held].map(|ids| program.marked(ids));
    let ends = layer_ends(program, &code);
    let (mut allocate, mut free): (Vec<Placed>, Vec<Placed>) = Default::default();
    let made = program.marked(&section.made);
    let begins = |storage: &&ValueId| !entered[storage.index()] || made[storage.index()];
    for &storage in section.exit.iter().filter(begins) {
        let first = uses[storage.index()].map_or(code.len(), |known| known.first);
        allocate.push((first, storage, made[storage.index()]));
    }
    for storage in used {
        let Some(Use { first, last, once }) = uses[storage.index()] else { continue };
        if !entered[storage.index()] && !left[storage.index()] {
            allocate.push((first, storage, once));
        }
        if !left[storage.index()] {
            let again = match program.value(storage).role {
                // No library holds on to its scratch memory.
                Role::Workspace => Release::Eager,
                // What parameters are made of is no part of a step.
                _ if once || is_start => Release::Eager,
                _ if held[storage.index()] => Release::Step,
                _ => again,
            };
            let after = match again {
                Release::Eager => last,
                Release::Scope => ends[last],
                Release::Step => code.len() - 1,
            };
            free.push((after, storage, once));
        }
    }
    interleave(program, code, allocate, free)
}

/// The storages of values of the forward pass that go by these full names, but of none that is a stand-in, or made again:
/// nobody refers to these.
fn kept(program: &Program, names: &[String]) -> Vec<ValueId> {
    if names.is_empty() {
        return Vec::new();
    }
    let names: HashSet<&str> = names.iter().map(String::as_str).collect();
    let is_kept = |&id: &ValueId| {
        let value = program.value(id);
        value.form == Form::Primal
            && value.role == Role::Activation
            && program.stands_for(id) == id
            && names.contains(program.full_name(id).as_str())
    };
    (0..program.values.len() as u32).map(ValueId).filter(is_kept).map(|id| program.storage(id)).collect()
}

fn leave_behind(code: &mut [Instruction], leaked: &[bool]) {
    for instruction in code {
        if let Action::Free(storage) = instruction.action
            && leaked[storage.index()]
        {
            instruction.action = Action::Leak(storage);
        }
    }
}

/// By instruction: which one of the compute queue is the first that begins after it is done, the first time or later.
fn done(program: &Program, code: &[Instruction], first_time: bool) -> Vec<usize> {
    const QUEUES: usize = Queue::ALL.len();
    let mut done: Vec<usize> = (0..code.len()).collect();
    // By queue and by event: up to which instruction each queue's work is done then.
    let mut known = [[0; QUEUES]; QUEUES];
    let mut recorded = vec![[0; QUEUES]; program.events as usize];
    // By queue: what the compute queue has not waited for.
    let mut open: [VecDeque<usize>; QUEUES] = Default::default();
    let goes = |instruction: &Instruction| first_time || !instruction.once;
    for (index, instruction) in code.iter().enumerate().filter(|(_, instruction)| goes(instruction)) {
        let queue = instruction.queue();
        let known = &mut known[queue as usize];
        match &instruction.action {
            Action::Record { event, .. } => {
                known[queue as usize] = index;
                recorded[event.0 as usize] = *known;
            }
            Action::Wait { event, .. } => {
                let then = recorded[event.0 as usize];
                known.iter_mut().zip(then).for_each(|(known, then)| *known = then.max(*known));
                let of_compute = open.iter_mut().zip(*known).filter(|_| queue == Queue::Compute);
                for (open, known) in of_compute {
                    while let Some(&other) = open.front().filter(|other| **other < known) {
                        done[other] = index;
                        open.pop_front();
                    }
                }
            }
            _ if queue == Queue::Compute => {}
            _ => open[queue as usize].push_back(index),
        }
    }
    open.into_iter().flatten().for_each(|other| done[other] = code.len() - 1);
    done
}

/// By instruction: the last of those that follow it in the same layer without a break.
fn layer_ends(program: &Program, code: &[Instruction]) -> Vec<usize> {
    let mut layers: Vec<ScopeId> =
        code.iter().map(|instruction| program.scope(instruction.scope).layer).collect();
    // What is done once ends no layer.
    for index in (1..code.len()).rev().filter(|&index| code[index - 1].once) {
        layers[index - 1] = layers[index];
    }
    let mut ends: Vec<usize> = (0..code.len()).collect();
    for index in (1..code.len()).rev() {
        if layers[index - 1] == layers[index] {
            ends[index - 1] = ends[index];
        }
    }
    ends
}

/// At one place, storages keep their order.
fn interleave(
    program: &Program,
    code: Vec<Instruction>,
    mut allocate: Vec<Placed>,
    mut free: Vec<Placed>,
) -> Vec<Instruction> {
    let mut result = Vec::with_capacity(code.len() + allocate.len() + free.len());
    // Storages that the section hands on without using them itself are allocated at its end.
    let phase = code.last().map_or(Phase::Start, |instruction| instruction.phase);
    allocate.sort_by_key(|&(before, ..)| before);
    free.sort_by_key(|&(after, ..)| after);
    let (mut allocate, mut free) = (allocate.into_iter().peekable(), free.into_iter().peekable());
    for (index, instruction) in code.into_iter().enumerate() {
        let (scope, phase) = (instruction.scope, instruction.phase);
        let here = |action, once| Instruction { once, ..Instruction::new(action, scope, phase) };
        while let Some((_, storage, once)) = allocate.next_if(|&(before, ..)| before == index) {
            result.push(here(Action::Allocate(storage), once));
        }
        result.push(instruction);
        while let Some((_, storage, once)) = free.next_if(|&(after, ..)| after == index) {
            result.push(here(Action::Free(storage), once));
        }
    }
    let unused = |(_, id, once)| Instruction {
        once,
        ..Instruction::new(Action::Allocate(id), program.value(id).scope, phase)
    };
    result.extend(allocate.map(unused));
    result
}

/// The values of an evaluation pass whose like in training the backward pass reads.
fn kept_for_backward(program: &Program, pair: (SectionKind, SectionKind)) -> Vec<ValueId> {
    let (Some(training), Some(evaluation)) = (program.section(pair.0), program.section(pair.1)) else {
        return Vec::new();
    };
    let mut read = vec![false; program.values.len()];
    for instruction in training.code.iter().filter(|instruction| instruction.phase == Phase::Backward) {
        // What was brought back for it is what was taken away.
        let reads = instruction.action.reads().iter().map(|&id| program.stands_for(id));
        reads.for_each(|id| read[id.index()] = true);
    }
    let written = |section: &Section| -> Vec<ValueId> {
        // Both have their batch. What else is copied differs between the two, and what is cast again of what was brought.
        let launches = section.code.iter().filter(|instruction| {
            let in_both = match instruction.action {
                Action::Launch { .. } => !instruction.recompute,
                Action::Copy { from, .. } => program.value(from).like.batches().is_some(),
                _ => false,
            };
            instruction.phase != Phase::Backward && in_both && !instruction.once
        });
        launches.flat_map(|instruction| instruction.action.writes().to_vec()).collect()
    };
    // What is dropped while something is learnt is not there in an evaluation: values go by what they are called. Those that are
    // called alike, such as slices, are in one order in both.
    let called = |id: ValueId| {
        let value = program.value(id);
        (value.scope, value.name, value.form)
    };
    let mut evaluated: HashMap<_, VecDeque<ValueId>> = HashMap::new();
    for id in written(evaluation) {
        evaluated.entry(called(id)).or_default().push_back(id);
    }
    let pairs = written(training).into_iter().filter_map(|trained| {
        let alike = evaluated.get_mut(&called(trained))?.pop_front()?;
        Some((trained, alike))
    });
    pairs.filter(|(trained, _)| read[trained.index()]).map(|(_, evaluated)| evaluated).collect()
}
