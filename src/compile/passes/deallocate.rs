//! Allocates each storage before its first use and frees it after its last, as late as the `release` key requires,
//! unless it is leaked or collected.

use std::collections::{HashMap, HashSet, VecDeque};

use super::Draft;
use super::leaks;
use crate::ir::{Action, Instruction, Program, Section, SectionKind, Stage, Variant, When};
use device::{Phase, Queue, Role};
use graph::ScopeId;
use ops::ValueId;
use spec::{EvaluationPass, Release};

pub(super) fn deallocate(draft: &mut Draft) {
    let release = draft.config.strategy.release;
    let kept = kept(&draft.program, &draft.config.strategy.keep);
    let kept_in_evaluation = match draft.config.strategy.evaluation_pass {
        EvaluationPass::NoGrad => Vec::new(),
        EvaluationPass::Grad => {
            let micro_batches = [
                (SectionKind::First, SectionKind::Evaluation),
                (SectionKind::Tail, SectionKind::EvaluationTail),
            ];
            micro_batches
                .iter()
                .flat_map(|&pair| counterparts_read_by_backward(&draft.program, pair))
                .collect()
        }
    };
    let kept_in_evaluation = [&kept[..], &kept_in_evaluation].concat();
    let program = &mut draft.program;
    let leaked = program.mask(&leaks::leaked(program, draft.config.strategy.leak));
    for index in 0..program.sections.len() {
        let code = std::mem::take(&mut program.sections[index].code);
        let section = &program.sections[index];
        let kept_storages = if section.kind.is_in_evaluation() { &kept_in_evaluation } else { &kept };
        let mut code = insert_lifetimes(program, section, code, release, kept_storages);
        replace_frees_by_leaks(&mut code, &leaked);
        // The outputs of a forward pass are collected once it has returned, and freed all else.
        code.sort_by_key(|instruction| matches!(instruction.action, Action::Collect { .. }));
        program.sections[index].code = code;
    }
    program.stage = Stage::Deallocated;
}

/// The uses of a storage in a section, as instruction indices.
#[derive(Clone, Copy)]
struct Use {
    first: usize,
    last: usize,
    /// Whether only first-iteration instructions use it.
    first_iteration: bool,
}

/// An allocation or deallocation to insert: the index of the instruction before or after it, the storage, and whether
/// it is for the first iteration only.
type Insertion = (usize, ValueId, bool);

fn insert_lifetimes(
    program: &Program,
    section: &Section,
    code: Vec<Instruction>,
    release: Release,
    kept_storages: &[ValueId],
) -> Vec<Instruction> {
    let is_start = section.kind == SectionKind::Start;
    let mut uses: Vec<Option<Use>> = vec![None; program.values.len()];
    let mut used = Vec::new();
    // A wait of the first iteration is missing in later ones, so completion differs.
    let later_completion = completion(program, &code, false);
    let has_first_iteration = code.iter().any(|instruction| instruction.is_once());
    let first_completion =
        if has_first_iteration { completion(program, &code, true) } else { later_completion.clone() };
    for (index, instruction) in code.iter().enumerate() {
        let first_iteration = instruction.is_once();
        let completion = if first_iteration { first_completion[index] } else { later_completion[index] };
        for storage in instruction.action.touches().map(|id| program.storage(id)) {
            match &mut uses[storage.index()] {
                Some(known) => {
                    (known.last, known.first_iteration) =
                        (known.last.max(completion), known.first_iteration && first_iteration)
                }
                unused => {
                    *unused = Some(Use { first: index, last: completion, first_iteration });
                    used.push(storage);
                }
            }
        }
    }
    let collected = code.iter().filter_map(|instruction| match instruction.action {
        Action::Collect { value, .. } => Some(program.storage(value)),
        _ => None,
    });
    let collected: Vec<ValueId> = collected.collect();
    let [live_in, live_out, kept_storages, collected] =
        [&section.live_in, &section.live_out, kept_storages, &collected].map(|ids| program.mask(ids));
    let ends = layer_ends(program, &code);
    let (mut allocate, mut free): (Vec<Insertion>, Vec<Insertion>) = Default::default();
    let lazily_initialised = program.mask(&section.lazily_initialised);
    let is_allocated = |storage: &&ValueId| !live_in[storage.index()] || lazily_initialised[storage.index()];
    for &storage in section.live_out.iter().filter(is_allocated) {
        let first = uses[storage.index()].map_or(code.len(), |known| known.first);
        allocate.push((first, storage, lazily_initialised[storage.index()]));
    }
    for storage in used {
        let Some(Use { first, last, first_iteration }) = uses[storage.index()] else { continue };
        if !live_in[storage.index()] && !live_out[storage.index()] {
            allocate.push((first, storage, first_iteration));
        }
        if !live_out[storage.index()] && !collected[storage.index()] {
            let release = match program.value(storage).role {
                // Workspaces are freed at once: no library keeps its scratch memory.
                Role::Workspace => Release::Eager,
                // Temporaries of initialisation are not part of a step.
                _ if first_iteration || is_start => Release::Eager,
                _ if kept_storages[storage.index()] => Release::Step,
                _ => release,
            };
            let after = match release {
                Release::Eager => last,
                Release::Scope => ends[last],
                Release::Step => code.len() - 1,
            };
            free.push((after, storage, first_iteration));
        }
    }
    interleave(program, code, allocate, free)
}

/// The storages of forward values with these full names. Transferred copies and recomputed values do not match: users
/// do not refer to them.
fn kept(program: &Program, names: &[String]) -> Vec<ValueId> {
    if names.is_empty() {
        return Vec::new();
    }
    let names: HashSet<&str> = names.iter().map(String::as_str).collect();
    let is_kept = |&id: &ValueId| {
        let value = program.value(id);
        value.variant == Variant::Primal
            && value.role == Role::Activation
            && program.original(id) == id
            && names.contains(program.full_name(id).as_str())
    };
    (0..program.values.len() as u32).map(ValueId).filter(is_kept).map(|id| program.storage(id)).collect()
}

fn replace_frees_by_leaks(code: &mut [Instruction], leaked: &[bool]) {
    for instruction in code {
        if let Action::Free(storage) = instruction.action
            && leaked[storage.index()]
        {
            instruction.action = Action::Leak(storage);
        }
    }
}

/// By instruction: the first instruction of the compute queue that begins after it has completed, in the first
/// iteration or in later ones.
fn completion(program: &Program, code: &[Instruction], first_time: bool) -> Vec<usize> {
    const QUEUES: usize = Queue::ALL.len();
    let mut completion: Vec<usize> = (0..code.len()).collect();
    // By queue and by event: the instructions of each queue that are known to be done (vector clocks).
    let mut known = [[0; QUEUES]; QUEUES];
    let mut recorded = vec![[0; QUEUES]; program.events as usize];
    // By queue: instructions that the compute queue has not waited for.
    let mut pending: [VecDeque<usize>; QUEUES] = Default::default();
    let is_executed = |instruction: &Instruction| first_time || !instruction.is_once();
    for (index, instruction) in code.iter().enumerate().filter(|(_, instruction)| is_executed(instruction)) {
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
                let of_compute = pending.iter_mut().zip(*known).filter(|_| queue == Queue::Compute);
                for (pending, known) in of_compute {
                    while let Some(&other) = pending.front().filter(|other| **other < known) {
                        completion[other] = index;
                        pending.pop_front();
                    }
                }
            }
            _ if queue == Queue::Compute => {}
            _ => pending[queue as usize].push_back(index),
        }
    }
    pending.into_iter().flatten().for_each(|other| completion[other] = code.len() - 1);
    completion
}

/// By instruction: the last instruction of the contiguous code of its layer.
fn layer_ends(program: &Program, code: &[Instruction]) -> Vec<usize> {
    let mut layers: Vec<ScopeId> =
        code.iter().map(|instruction| program.scope(instruction.scope).layer).collect();
    // First-iteration instructions do not end a layer.
    for index in (1..code.len()).rev().filter(|&index| code[index - 1].is_once()) {
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

fn when(first_iteration: bool) -> When {
    if first_iteration { When::Once } else { When::Always }
}

/// Merges allocations and deallocations into the code, in stable order.
fn interleave(
    program: &Program,
    code: Vec<Instruction>,
    mut allocate: Vec<Insertion>,
    mut free: Vec<Insertion>,
) -> Vec<Instruction> {
    let mut result = Vec::with_capacity(code.len() + allocate.len() + free.len());
    // Live-out storages that the section itself does not use are allocated at its end.
    let phase = code.last().map_or(Phase::Start, |instruction| instruction.phase);
    allocate.sort_by_key(|&(before, ..)| before);
    free.sort_by_key(|&(after, ..)| after);
    let (mut allocate, mut free) = (allocate.into_iter().peekable(), free.into_iter().peekable());
    for (index, instruction) in code.into_iter().enumerate() {
        let (scope, phase) = (instruction.scope, instruction.phase);
        let new_instruction = |action, first_iteration| Instruction {
            when: when(first_iteration),
            ..Instruction::new(action, scope, phase)
        };
        while let Some((_, storage, first_iteration)) = allocate.next_if(|&(before, ..)| before == index) {
            result.push(new_instruction(Action::Allocate(storage), first_iteration));
        }
        result.push(instruction);
        while let Some((_, storage, first_iteration)) = free.next_if(|&(after, ..)| after == index) {
            result.push(new_instruction(Action::Free(storage), first_iteration));
        }
    }
    let unused = |(_, id, first_iteration)| Instruction {
        when: when(first_iteration),
        ..Instruction::new(Action::Allocate(id), program.value(id).scope, phase)
    };
    result.extend(allocate.map(unused));
    result
}

/// Values of an evaluation pass whose counterparts in training are read by backward.
fn counterparts_read_by_backward(program: &Program, pair: (SectionKind, SectionKind)) -> Vec<ValueId> {
    let (Some(training), Some(evaluation)) = (program.section(pair.0), program.section(pair.1)) else {
        return Vec::new();
    };
    let mut read = vec![false; program.values.len()];
    for instruction in training.code.iter().filter(|instruction| instruction.phase == Phase::Backward) {
        // Reads of transferred copies count as reads of the originals.
        let reads = instruction.action.reads().iter().map(|&id| program.original(id));
        reads.for_each(|id| read[id.index()] = true);
    }
    let written = |section: &Section| -> Vec<ValueId> {
        // Both upload their batch. Other copies and repeated casts differ between the two.
        let launches = section.code.iter().filter(|instruction| {
            let in_both = match instruction.action {
                Action::Launch { .. } => !instruction.recompute,
                Action::Copy { from, .. } => program.value(from).shape_source.batch_buffer().is_some(),
                _ => false,
            };
            instruction.phase != Phase::Backward && in_both && !instruction.is_once()
        });
        launches.flat_map(|instruction| instruction.action.writes().to_vec()).collect()
    };
    // Dropout has no counterpart in evaluation, so values are matched by scope, name and variant; values that share
    // these, such as slices, are in the same order in both.
    let key = |id: ValueId| {
        let value = program.value(id);
        (value.scope, value.name, value.variant)
    };
    let mut evaluated: HashMap<_, VecDeque<ValueId>> = HashMap::new();
    for id in written(evaluation) {
        evaluated.entry(key(id)).or_default().push_back(id);
    }
    let pairs = written(training).into_iter().filter_map(|trained| {
        let counterpart = evaluated.get_mut(&key(trained))?.pop_front()?;
        Some((trained, counterpart))
    });
    pairs.filter(|(trained, _)| read[trained.index()]).map(|(_, evaluated)| evaluated).collect()
}
