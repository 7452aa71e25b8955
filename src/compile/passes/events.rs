//! Orders the queues: one event per cross-queue dependency, none where an earlier event covers it.

use super::{Draft, lazy_init};
use crate::ir::{Action, Instruction, Program, SectionKind, Stage};
use device::{Event, Pool, Queue};
use ops::ValueId;

pub(super) fn order(draft: &mut Draft) {
    let program = &mut draft.program;
    for section in 0..program.sections.len() {
        let code = std::mem::take(&mut program.sections[section].code);
        let (always, first_iteration) = lazy_init::split(code);
        let ordered = order_section(program, section, always);
        program.sections[section].code = lazy_init::merge(program, ordered, first_iteration);
    }
    program.stage = Stage::Ordered;
}

impl SectionKind {
    /// Whether the host has synchronised all queues before the section begins, to write a batch or to read the loss
    /// of the micro-batch before.
    pub(crate) fn begins_synchronized(self) -> bool {
        matches!(self, SectionKind::Start | SectionKind::First) || self.is_in_evaluation()
    }
}

/// A dependency: an instruction that another queue waits for.
struct Edge {
    done: usize,
    waiter: Queue,
    /// The instruction that the wait precedes.
    next: usize,
}

fn order_section(program: &mut Program, at: usize, code: Vec<Instruction>) -> Vec<Instruction> {
    let live_in = program.mask(&program.sections[at].live_in);
    let live_out = program.mask(&program.sections[at].live_out);
    let is_last_use = last_uses(program, &live_out, &code);
    let edges = edges(program, &is_last_use, &code);
    // If another queue is the last to use a storage, the compute queue also frees memory between its own launches.
    let frees_between = code
        .iter()
        .zip(&is_last_use)
        .any(|(instruction, last)| *last && instruction.queue() != Queue::Compute);
    let mut ordered = Vec::with_capacity(code.len() + 2 * edges.len() + 2);
    let events: Vec<Event> = edges.iter().map(|_| program.add_event()).collect();
    let mut waits: Vec<Vec<(Queue, Event)>> = vec![Vec::new(); code.len() + 1];
    let mut records: Vec<Vec<Event>> = vec![Vec::new(); code.len()];
    for (&Edge { done, waiter, next }, &event) in edges.iter().zip(&events) {
        debug_assert!(done < next);
        waits[next].push((waiter, event));
        records[done].push(event);
    }
    // By queue: whether it has waited for the compute queue, and whether the compute queue has advanced since.
    let mut joined = [program.sections[at].kind.begins_synchronized(); Queue::ALL.len()];
    let mut behind = [false; Queue::ALL.len()];
    let mut last = None;
    for (index, instruction) in code.into_iter().enumerate() {
        let (scope, phase, queue) = (instruction.scope, instruction.phase, instruction.queue());
        let mut push = |action| ordered.push(Instruction::new(action, scope, phase));
        let (compute_waits, other_waits): (Vec<_>, Vec<_>) =
            waits[index].iter().partition(|(waiter, _)| *waiter == Queue::Compute);
        for (queue, event) in compute_waits {
            push(Action::Wait { queue, event });
            behind = [true; Queue::ALL.len()];
        }
        let may_conflict =
            || (behind[queue as usize] || frees_between) && may_conflict(program, &live_in, &instruction);
        if queue != Queue::Compute && (!joined[queue as usize] || may_conflict()) {
            let event = program.add_event();
            push(Action::Record { queue: Queue::Compute, event });
            push(Action::Wait { queue, event });
            (joined[queue as usize], behind[queue as usize]) = (true, false);
        }
        if queue == Queue::Compute {
            behind = [true; Queue::ALL.len()];
        }
        for (queue, event) in other_waits {
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
        let wait = |(queue, event)| Action::Wait { queue, event };
        ordered.extend(end.map(|edge| Instruction::new(wait(edge), scope, phase)));
    }
    ordered
}

/// Whether an instruction of another queue may write to memory that the compute queue still uses: memory that was
/// just freed, or device memory.
fn may_conflict(program: &Program, live_in: &[bool], instruction: &Instruction) -> bool {
    let writes = instruction.action.writes().iter().copied().chain(instruction.action.workspace());
    let mut fresh = writes.map(|id| (program.value(id).pool, live_in[program.storage(id).index()]));
    fresh.any(|(pool, entered)| pool == Pool::Device || !entered)
}

/// The dependencies of each queue: the writers of its inputs, and the users of its outputs, unless an earlier wait
/// covers them. The compute queue also waits for the last users on other queues before it frees their storages; the
/// latest of each queue may still be outstanding.
fn edges(program: &Program, is_last_use: &[bool], code: &[Instruction]) -> Vec<Edge> {
    let mut waits =
        Waits { edges: Vec::new(), known: [[0; QUEUES]; QUEUES], after: Vec::with_capacity(code.len()) };
    // By storage and queue: the last writer and the last user, counted from 1.
    let mut uses = vec![[[0u32; 2]; QUEUES]; program.values.len()];
    // By queue: the latest two last users of storages that the compute queue has not waited for.
    let mut finished = [[0; 2]; QUEUES];
    for (index, instruction) in code.iter().enumerate() {
        let queue = instruction.queue();
        let storage = |id: &ValueId| program.storage(*id).index();
        let (reads, writes) = (instruction.action.reads(), instruction.action.writes());
        let mut finished_before = [0; QUEUES];
        if matches!(queue, Queue::Compute | Queue::Host) {
            finished_before = finished.each_mut().map(|[_, before]| std::mem::take(before));
        }
        for other in Queue::ALL.into_iter().filter(|other| *other != queue) {
            let written = reads.iter().map(|read| uses[storage(read)][other as usize][0]);
            let used = writes.iter().map(|write| uses[storage(write)][other as usize][1]);
            let mut needed = written.chain(used).max().unwrap_or(0);
            if queue == Queue::Compute {
                needed = needed.max(finished_before[other as usize]);
            }
            waits.cover(queue, other, needed, index);
        }
        if queue == Queue::Host {
            waits.wait_to_free(finished_before, index);
        }
        let now = index as u32 + 1;
        reads.iter().for_each(|read| uses[storage(read)][queue as usize][1] = now);
        writes.iter().for_each(|write| uses[storage(write)][queue as usize] = [now; 2]);
        if queue != Queue::Compute && is_last_use[index] {
            finished[queue as usize] = [now, finished[queue as usize][0]];
        }
        waits.enqueue(queue);
    }
    let latest = Queue::ALL.map(|queue| match queue {
        Queue::Compute => 0,
        _ => waits.known[queue as usize][queue as usize],
    });
    waits.wait_to_free(latest, code.len());
    waits.edges
}

const QUEUES: usize = Queue::ALL.len();

/// By queue: its last instruction that is known to be done, counted from 1: a vector clock.
type Clock = [u32; QUEUES];

/// The waits so far, and the vector clock of each queue.
struct Waits {
    edges: Vec<Edge>,
    known: [Clock; QUEUES],
    /// By instruction: the vector clock of its queue when it is done.
    after: Vec<Clock>,
}

impl Waits {
    /// Adds a wait of `waiter` for instruction `done` of another queue before the instruction `next`, unless its
    /// clock covers it.
    fn cover(&mut self, waiter: Queue, other: Queue, done: u32, next: usize) {
        if self.known[waiter as usize][other as usize] >= done {
            return;
        }
        let done = done as usize - 1;
        self.edges.push(Edge { done, waiter, next });
        for (known, after) in self.known[waiter as usize].iter_mut().zip(self.after[done]) {
            *known = (*known).max(after);
        }
    }

    /// Adds waits of the compute queue, latest first: a later instruction may already have waited for an earlier one.
    fn wait_to_free(&mut self, done: Clock, next: usize) {
        let mut done: Vec<(u32, Queue)> = Queue::ALL.map(|queue| (done[queue as usize], queue)).into();
        done.sort_by_key(|&(done, _)| std::cmp::Reverse(done));
        done.into_iter().for_each(|(done, other)| self.cover(Queue::Compute, other, done, next));
    }

    /// Advances the clock of a queue by the next instruction.
    fn enqueue(&mut self, queue: Queue) {
        self.known[queue as usize][queue as usize] = self.after.len() as u32 + 1;
        self.after.push(self.known[queue as usize]);
    }
}

/// By instruction: whether it is the last user of a storage that is not live-out.
fn last_uses(program: &Program, live_out: &[bool], code: &[Instruction]) -> Vec<bool> {
    let mut seen = live_out.to_vec();
    let mut last: Vec<bool> = code
        .iter()
        .rev()
        .map(|instruction| {
            let storages = instruction.action.touches().map(|id| program.storage(id).index());
            storages.fold(false, |last, storage| last | !std::mem::replace(&mut seen[storage], true))
        })
        .collect();
    last.reverse();
    last
}
