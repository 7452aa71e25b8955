//! Orders the queues: an event wherever one queue needs what another has done, and nowhere else.

use super::Draft;
use super::program::{Action, Instruction, Program, SectionKind, Stage};
use crate::device::{Event, Pool, Queue};
use crate::ops::ValueId;

pub(super) fn order(draft: &mut Draft) {
    let program = &mut draft.program;
    for section in 0..program.sections.len() {
        let code = std::mem::take(&mut program.sections[section].code);
        let kind = program.sections[section].kind;
        program.sections[section].code = order_section(program, kind, code);
    }
    program.stage = Stage::Ordered;
}

impl SectionKind {
    /// Whether the host has waited for both queues before the section begins: it puts a batch into memory, or takes the
    /// loss of the micro-batch before out of it.
    pub(super) fn begins_synchronized(self) -> bool {
        matches!(self, SectionKind::Start | SectionKind::First) || self.is_of_evaluation()
    }
}

/// An instruction that another queue's instruction waits for.
struct Edge {
    writer: usize,
    reader: usize,
}

fn order_section(program: &mut Program, kind: SectionKind, code: Vec<Instruction>) -> Vec<Instruction> {
    let edges = edges(program, &code);
    let mut ordered = Vec::with_capacity(code.len() + 2 * edges.len() + 2);
    let events: Vec<Event> = edges.iter().map(|_| program.add_event()).collect();
    let mut waits: Vec<Vec<Event>> = vec![Vec::new(); code.len() + 1];
    let mut records: Vec<Vec<Event>> = vec![Vec::new(); code.len()];
    for (Edge { writer, reader }, &event) in edges.iter().zip(&events) {
        debug_assert!(writer < reader);
        waits[*reader].push(event);
        records[*writer].push(event);
    }
    // Whether the compute queue was given work that the copy queue has not waited for.
    let mut behind = !kind.begins_synchronized();
    let mut last = None;
    for (index, instruction) in code.into_iter().enumerate() {
        let (scope, phase) = (instruction.scope, instruction.phase);
        let mut push = |action| ordered.push(Instruction::new(action, scope, phase));
        let queue = instruction.action.queue();
        if behind && queue == Queue::Copy && onto_device(program, &instruction.action) {
            // What is overwritten may lie where the compute queue still works.
            let event = program.add_event();
            push(Action::Record { queue: Queue::Compute, event });
            push(Action::Wait { queue: Queue::Copy, event });
            behind = false;
        }
        behind |= queue == Queue::Compute;
        for &event in &waits[index] {
            push(Action::Wait { queue, event });
        }
        ordered.push(instruction);
        for &event in &records[index] {
            ordered.push(Instruction::new(Action::Record { queue, event }, scope, phase));
        }
        last = Some((scope, phase));
    }
    if let Some((scope, phase)) = last {
        let end = waits.pop().unwrap_or_default().into_iter();
        let wait = |event| Action::Wait { queue: Queue::Compute, event };
        ordered.extend(end.map(|event| Instruction::new(wait(event), scope, phase)));
    }
    ordered
}

fn onto_device(program: &Program, action: &Action) -> bool {
    action.writes().iter().any(|&id| program.value(id).pool == Pool::Device)
}

/// Reads of what another queue wrote, less those that an earlier wait already covers; and the compute queue's waits for
/// what is taken from the device, whose memory it gives back. It has one more of these copies to go by then.
fn edges(program: &Program, code: &[Instruction]) -> Vec<Edge> {
    // By storage and queue: the last instruction that wrote there.
    let mut writers = vec![[None::<usize>; Queue::ALL.len()]; program.values.len()];
    // The last instruction of the other queue that each queue has waited for.
    let mut covered = [None::<usize>; Queue::ALL.len()];
    let mut edges = Vec::new();
    let mut cover = |queue: Queue, writer: usize, reader: usize| {
        if covered[queue as usize].is_none_or(|covered| covered < writer) {
            covered[queue as usize] = Some(writer);
            edges.push(Edge { writer, reader });
        }
    };
    // The copies off the device that the compute queue has not waited for: the last, and the one before it.
    let mut taken = [None::<usize>; 2];
    for (reader, instruction) in code.iter().enumerate() {
        let queue = instruction.action.queue();
        let others = Queue::ALL.into_iter().filter(|other| *other != queue);
        let written = |read: &ValueId| {
            let writers = writers[program.storage(*read).index()];
            others.clone().filter_map(move |other| writers[other as usize])
        };
        let written = instruction.action.reads().iter().flat_map(written).max();
        let gone = if queue == Queue::Compute { taken[1].take() } else { None };
        // The last one stands for all before it: there is one other queue.
        if let Some(writer) = written.max(gone) {
            cover(queue, writer, reader);
        }
        for write in instruction.action.writes() {
            writers[program.storage(*write).index()][queue as usize] = Some(reader);
        }
        if queue == Queue::Copy && !onto_device(program, &instruction.action) {
            taken = [Some(reader), taken[0]];
        }
    }
    if let [Some(last), _] = taken {
        cover(Queue::Compute, last, code.len());
    }
    edges
}
