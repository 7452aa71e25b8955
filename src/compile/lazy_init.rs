//! A lazy start: what belongs to a layer's parameters is made right before its first use, in the first optimizer step. The
//! instructions that make it are left out from the second time on that their section is gone through.

use std::collections::{HashMap, HashSet};

use super::Draft;
use super::instruction::{Action, Instruction};
use super::program::{Program, Section, SectionKind};
use device::{Event, Queue};
use ops::ValueId;
use spec::Init;

pub(super) fn make_late(draft: &mut Draft) {
    if draft.config.strategy.init != Init::Lazy {
        return;
    }
    let program = &mut draft.program;
    let exit = program.section(SectionKind::Start).expect("build makes it").exit.clone();
    let starts = program.marked(&exit);
    let of_buckets = program.buckets.iter().flat_map(|bucket| {
        let beside = bucket.states.iter().chain(&bucket.scales).map(|state| state.value);
        beside.chain([bucket.parameters]).chain(bucket.gradients)
    });
    let late: Vec<ValueId> = of_buckets.filter(|storage| starts[storage.index()]).collect();
    let mut late = program.marked(&late);
    let mut making = Making::of(program);
    for index in 0..program.sections.len() {
        if program.sections[index].kind.is_of_step() {
            make_in_section(program, index, &mut making, &mut late);
        }
    }
    let made: Vec<ValueId> = program.made_late().collect();
    let made = program.marked(&made);
    let start = program.section_mut(SectionKind::Start).expect("build makes it");
    start.exit.retain(|storage| !made[storage.index()]);
    start.code = making.code.into_iter().flatten().collect();
}

/// Takes what the section uses first out of what the start has been `making`.
fn make_in_section(program: &mut Program, section: usize, making: &mut Making, late: &mut [bool]) {
    let code = std::mem::take(&mut program.sections[section].code);
    let mut made = Vec::new();
    let mut result = Vec::with_capacity(code.len());
    for instruction in code {
        for storage in instruction.action.touches().map(|id| program.storage(id)) {
            if !late[storage.index()] {
                continue;
            }
            let making = making.take(program, storage);
            // Codes and their scales come into being together.
            let writes = making.iter().flat_map(|instruction| instruction.action.writes());
            for storage in writes.map(|&write| program.storage(write)) {
                if std::mem::take(&mut late[storage.index()]) {
                    made.push(storage);
                }
            }
            let now = |making| Instruction { once: true, phase: instruction.phase, ..making };
            result.extend(making.into_iter().map(now));
        }
        result.push(instruction);
    }
    let section = &mut program.sections[section];
    (section.code, section.made) = (result, made);
}

/// What the start makes, as long as nobody has taken it.
struct Making {
    code: Vec<Option<Instruction>>,
    /// By storage: the instructions that write there.
    writers: HashMap<ValueId, Vec<usize>>,
}

impl Making {
    fn of(program: &Program) -> Making {
        let start = program.section(SectionKind::Start).expect("build makes it");
        let mut writers: HashMap<ValueId, Vec<usize>> = HashMap::new();
        for (index, instruction) in start.code.iter().enumerate() {
            for &write in instruction.action.writes() {
                writers.entry(program.storage(write)).or_default().push(index);
            }
        }
        Making { code: start.code.iter().cloned().map(Some).collect(), writers }
    }

    /// Takes all that a storage is made by, in its order.
    fn take(&mut self, program: &Program, storage: ValueId) -> Vec<Instruction> {
        let (mut needed, mut makes) = (vec![storage], Vec::new());
        while let Some(storage) = needed.pop() {
            for index in self.writers.remove(&storage).into_iter().flatten() {
                let reads = self.code[index].iter().flat_map(|instruction| instruction.action.reads());
                needed.extend(reads.map(|&read| program.storage(read)));
                makes.push(index);
            }
        }
        makes.sort_unstable();
        makes.into_iter().filter_map(|index| self.code[index].take()).collect()
    }
}

/// Code without what is done once, and that by the instruction it comes before.
pub(super) fn apart(code: Vec<Instruction>) -> (Vec<Instruction>, Vec<(usize, Vec<Instruction>)>) {
    let (mut always, mut once): (Vec<Instruction>, Vec<(usize, Vec<Instruction>)>) = Default::default();
    for instruction in code {
        if !instruction.once {
            always.push(instruction);
            continue;
        }
        match once.last_mut() {
            Some((next, group)) if *next == always.len() => group.push(instruction),
            _ => once.push((always.len(), vec![instruction])),
        }
    }
    (always, once)
}

/// Puts what is done once back into code that has been ordered by events, and orders it: one queue hands over to the next, and
/// all go on when it is done. That takes time once.
pub(super) fn together(
    program: &mut Program,
    ordered: Vec<Instruction>,
    once: Vec<(usize, Vec<Instruction>)>,
) -> Vec<Instruction> {
    let all = ordered.iter().chain(once.iter().flat_map(|(_, group)| group));
    let used: HashSet<Queue> = all.map(Instruction::queue).chain([Queue::Compute]).collect();
    let mut once = once.into_iter().peekable();
    let mut result = Vec::with_capacity(ordered.len());
    let mut count = 0;
    for instruction in ordered {
        if !matches!(instruction.action, Action::Record { .. } | Action::Wait { .. }) {
            while let Some((_, group)) = once.next_if(|(next, _)| *next == count) {
                hand_over(program, group, &used, &mut result);
            }
            count += 1;
        }
        result.push(instruction);
    }
    result
}

fn hand_over(
    program: &mut Program,
    group: Vec<Instruction>,
    used: &HashSet<Queue>,
    result: &mut Vec<Instruction>,
) {
    // Memory is given back in the order of the compute queue.
    let mut last = Queue::Compute;
    let end = group.last().cloned();
    for instruction in group {
        if instruction.queue() != last {
            let event = program.add_event();
            result.extend(crossing(&instruction, event, last, instruction.queue()));
            last = instruction.queue();
        }
        result.push(instruction);
    }
    let Some(end) = end else { return };
    for other in Queue::ALL.into_iter().filter(|other| *other != last && used.contains(other)) {
        let event = program.add_event();
        result.extend(crossing(&end, event, last, other));
    }
}

fn crossing(like: &Instruction, event: Event, done: Queue, waiter: Queue) -> [Instruction; 2] {
    let of = |action| Instruction { once: true, ..Instruction::new(action, like.scope, like.phase) };
    [of(Action::Record { queue: done, event }), of(Action::Wait { queue: waiter, event })]
}

impl Program {
    /// What the first step makes, in its order.
    pub fn made_late(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.sections.iter().flat_map(|section| section.made.iter().copied())
    }

    /// Sections and their instructions in an order in which all that is ever live together is: a second step, if it has more
    /// than the first, comes after the evaluation.
    pub fn walk(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let all = self.sections.iter().enumerate();
        let all = all.flat_map(|(number, section)| (0..section.code.len()).map(move |index| (number, index)));
        let makes = self.sections.iter().any(|section| !section.made.is_empty());
        let again = all.clone().filter(move |&(number, index)| {
            let section = &self.sections[number];
            makes && section.kind != SectionKind::Start && !section.code[index].once
        });
        all.chain(again)
    }

    /// A section as it is gone through the first time, in the first step; where nothing is made late, that is each time.
    pub(super) fn first_time(&self, section: usize) -> Section {
        let from =
            |section: usize| self.sections[section..].iter().flat_map(|section| &section.made).copied();
        let [before, after] =
            [section, section + 1].map(|section| from(section).collect::<HashSet<ValueId>>());
        let mut first = self.sections[section].clone();
        first.entry.retain(|storage| !before.contains(storage));
        first.exit.retain(|storage| !after.contains(storage));
        first
    }
}

impl Section {
    /// As it is gone through from the second time on.
    pub(super) fn later(&self) -> Section {
        let code = self.code.iter().filter(|instruction| !instruction.once).cloned().collect();
        Section { code, ..self.clone() }
    }
}

/// Which sections have been gone through, so that they leave out what is done once.
#[derive(Clone, Debug)]
pub struct FirstIterations(Vec<bool>);

impl FirstIterations {
    /// None yet.
    pub fn none(program: &Program) -> FirstIterations {
        FirstIterations(vec![false; program.sections.len()])
    }

    /// Whether it leaves out an instruction now.
    pub fn leaves_out(&self, section: usize, instruction: &Instruction) -> bool {
        instruction.once && self.0[section]
    }

    /// It has been gone through: whether for the first time.
    pub fn open(&mut self, section: usize) -> bool {
        !std::mem::replace(&mut self.0[section], true)
    }

    /// The sections that have something to do once, and have not done it.
    pub fn unopened(&self, program: &Program) -> Vec<usize> {
        let makes = |&section: &usize| !self.0[section] && !program.sections[section].made.is_empty();
        (0..self.0.len()).filter(makes).collect()
    }
}
