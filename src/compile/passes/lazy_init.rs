//! Lazy initialisation: parameters, gradients and optimizer states are initialised right before their first use, in the first
//! optimizer step. The initialising instructions run only in the first iteration of their section.

use std::collections::{HashMap, HashSet};

use super::Draft;
use crate::ir::{Action, Instruction, Program, Section, SectionKind, When};
use device::{Event, Queue};
use ops::ValueId;
use spec::Init;

pub(super) fn initialise_lazily(draft: &mut Draft) {
    if draft.config.strategy.init != Init::Lazy {
        return;
    }
    let program = &mut draft.program;
    let live_out = program.section(SectionKind::Start).expect("added by `build`").live_out.clone();
    let initialised = program.mask(&live_out);
    let of_buckets = program.buckets.iter().flat_map(|bucket| {
        let beside = bucket.states.iter().chain(&bucket.scales).map(|state| state.value);
        beside.chain([bucket.parameters]).chain(bucket.gradients)
    });
    let is_lazy: Vec<ValueId> = of_buckets.filter(|storage| initialised[storage.index()]).collect();
    let mut is_lazy = program.mask(&is_lazy);
    let mut initialisers = Initialisers::of(program);
    for index in 0..program.sections.len() {
        if program.sections[index].kind.is_in_step() {
            initialise_in_section(program, index, &mut initialisers, &mut is_lazy);
        }
    }
    let lazy_storages: Vec<ValueId> = program.lazily_initialised().collect();
    let lazy_storages = program.mask(&lazy_storages);
    let start = program.section_mut(SectionKind::Start).expect("added by `build`");
    start.live_out.retain(|storage| !lazy_storages[storage.index()]);
    start.code = initialisers.code.into_iter().flatten().collect();
}

/// Moves the initialisation of the storages that a section uses first from the start into the section.
fn initialise_in_section(
    program: &mut Program,
    section: usize,
    initialisers: &mut Initialisers,
    is_lazy: &mut [bool],
) {
    let code = std::mem::take(&mut program.sections[section].code);
    let mut lazy_storages = Vec::new();
    let mut result = Vec::with_capacity(code.len());
    for instruction in code {
        for storage in instruction.action.touches().map(|id| program.storage(id)) {
            if !is_lazy[storage.index()] {
                continue;
            }
            let initialisers = initialisers.take(program, storage);
            // One launch writes codes and scales together.
            let writes = initialisers.iter().flat_map(|instruction| instruction.action.writes());
            for storage in writes.map(|&write| program.storage(write)) {
                if std::mem::take(&mut is_lazy[storage.index()]) {
                    lazy_storages.push(storage);
                }
            }
            let in_section =
                |initialisers| Instruction { when: When::Once, phase: instruction.phase, ..initialisers };
            result.extend(initialisers.into_iter().map(in_section));
        }
        result.push(instruction);
    }
    let section = &mut program.sections[section];
    (section.code, section.lazily_initialised) = (result, lazy_storages);
}

/// The start's instructions that no section has taken yet.
struct Initialisers {
    code: Vec<Option<Instruction>>,
    /// By storage: the instructions that write there.
    writers: HashMap<ValueId, Vec<usize>>,
}

impl Initialisers {
    fn of(program: &Program) -> Initialisers {
        let start = program.section(SectionKind::Start).expect("added by `build`");
        let mut writers: HashMap<ValueId, Vec<usize>> = HashMap::new();
        for (index, instruction) in start.code.iter().enumerate() {
            for &write in instruction.action.writes() {
                writers.entry(program.storage(write)).or_default().push(index);
            }
        }
        Initialisers { code: start.code.iter().cloned().map(Some).collect(), writers }
    }

    /// Takes the instructions that initialise a storage, with those that they depend on, in order.
    fn take(&mut self, program: &Program, storage: ValueId) -> Vec<Instruction> {
        let (mut needed, mut indices) = (vec![storage], Vec::new());
        while let Some(storage) = needed.pop() {
            for index in self.writers.remove(&storage).into_iter().flatten() {
                let reads = self.code[index].iter().flat_map(|instruction| instruction.action.reads());
                needed.extend(reads.map(|&read| program.storage(read)));
                indices.push(index);
            }
        }
        indices.sort_unstable();
        indices.into_iter().filter_map(|index| self.code[index].take()).collect()
    }
}

/// Splits code into the instructions of every iteration and those of the first iteration, which are grouped by the
/// index of the instruction that they precede.
pub(crate) fn split(code: Vec<Instruction>) -> (Vec<Instruction>, Vec<(usize, Vec<Instruction>)>) {
    let (mut always, mut first_iteration): (Vec<Instruction>, Vec<(usize, Vec<Instruction>)>) =
        Default::default();
    for instruction in code {
        if !instruction.is_once() {
            always.push(instruction);
            continue;
        }
        match first_iteration.last_mut() {
            Some((next, group)) if *next == always.len() => group.push(instruction),
            _ => first_iteration.push((always.len(), vec![instruction])),
        }
    }
    (always, first_iteration)
}

/// Merges first-iteration instructions back into code that has been ordered by events, and orders them: each queue
/// hands over to the next, and all queues wait for the last. The serialisation costs time in the first iteration
/// only.
pub(crate) fn merge(
    program: &mut Program,
    ordered: Vec<Instruction>,
    first_iteration: Vec<(usize, Vec<Instruction>)>,
) -> Vec<Instruction> {
    let all = ordered.iter().chain(first_iteration.iter().flat_map(|(_, group)| group));
    let used: HashSet<Queue> = all.map(Instruction::queue).chain([Queue::Compute]).collect();
    let mut first_iteration = first_iteration.into_iter().peekable();
    let mut result = Vec::with_capacity(ordered.len());
    let mut count = 0;
    for instruction in ordered {
        if !matches!(instruction.action, Action::Record { .. } | Action::Wait { .. }) {
            while let Some((_, group)) = first_iteration.next_if(|(next, _)| *next == count) {
                insert_group(program, group, &used, &mut result);
            }
            count += 1;
        }
        result.push(instruction);
    }
    result
}

fn insert_group(
    program: &mut Program,
    group: Vec<Instruction>,
    used: &HashSet<Queue>,
    result: &mut Vec<Instruction>,
) {
    // Memory is freed in the order of the compute queue.
    let mut last = Queue::Compute;
    let end = group.last().cloned();
    for instruction in group {
        if instruction.queue() != last {
            let event = program.add_event();
            result.extend(handover(&instruction, event, last, instruction.queue()));
            last = instruction.queue();
        }
        result.push(instruction);
    }
    let Some(end) = end else { return };
    for other in Queue::ALL.into_iter().filter(|other| *other != last && used.contains(other)) {
        let event = program.add_event();
        result.extend(handover(&end, event, last, other));
    }
}

fn handover(like: &Instruction, event: Event, done: Queue, waiter: Queue) -> [Instruction; 2] {
    let of = |action| Instruction { when: When::Once, ..Instruction::new(action, like.scope, like.phase) };
    [of(Action::Record { queue: done, event }), of(Action::Wait { queue: waiter, event })]
}

impl Program {
    /// The storages that the first step initialises, in order.
    pub fn lazily_initialised(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.sections.iter().flat_map(|section| section.lazily_initialised.iter().copied())
    }

    /// Sections and instructions in an order that covers every set of storages that are live together: all sections in
    /// their first iteration and, with lazy initialisation, all but `start` in a later one.
    pub fn liveness_order(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let all = self.sections.iter().enumerate();
        let all = all.flat_map(|(number, section)| (0..section.code.len()).map(move |index| (number, index)));
        let has_lazy_init = self.sections.iter().any(|section| !section.lazily_initialised.is_empty());
        let second_step = all.clone().filter(move |&(number, index)| {
            let section = &self.sections[number];
            has_lazy_init && section.kind != SectionKind::Start && !section.code[index].is_once()
        });
        all.chain(second_step)
    }

    /// The section with the live sets of its first iteration; without lazy initialisation, those of every iteration.
    pub(crate) fn first_iteration(&self, section: usize) -> Section {
        let from = |section: usize| {
            self.sections[section..].iter().flat_map(|section| &section.lazily_initialised).copied()
        };
        let [before, after] =
            [section, section + 1].map(|section| from(section).collect::<HashSet<ValueId>>());
        let mut first = self.sections[section].clone();
        first.live_in.retain(|storage| !before.contains(storage));
        first.live_out.retain(|storage| !after.contains(storage));
        first
    }
}

impl Section {
    /// The section as in every iteration after the first.
    pub(crate) fn later_iterations(&self) -> Section {
        let code = self.code.iter().filter(|instruction| !instruction.is_once()).cloned().collect();
        Section { code, ..self.clone() }
    }
}

/// Tracks which sections have completed their first iteration.
#[derive(Clone, Debug)]
pub struct FirstIterations(Vec<bool>);

impl FirstIterations {
    /// No section has completed its first iteration.
    pub fn new(program: &Program) -> FirstIterations {
        FirstIterations(vec![false; program.sections.len()])
    }

    /// Whether the section's next iteration skips the instruction.
    pub fn skips(&self, section: usize, instruction: &Instruction) -> bool {
        instruction.is_once() && self.0[section]
    }

    /// Records a completed iteration. Returns whether it was the section's first.
    pub fn complete(&mut self, section: usize) -> bool {
        !std::mem::replace(&mut self.0[section], true)
    }

    /// Sections with lazy initialisation whose first iteration is still pending.
    pub fn pending(&self, program: &Program) -> Vec<usize> {
        let is_pending =
            |&section: &usize| !self.0[section] && !program.sections[section].lazily_initialised.is_empty();
        (0..self.0.len()).filter(is_pending).collect()
    }
}
