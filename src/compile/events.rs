//! Orders the queues: an event wherever one queue needs what another has done, and nowhere else.

use super::instruction::{Action, Instruction};
use super::program::{Program, SectionKind, Stage};
use super::{Draft, lazy_init};
use device::{Event, Pool, Queue};
use ops::ValueId;

pub(super) fn order(draft: &mut Draft) {
    let program = &mut draft.program;
    for section in 0..program.sections.len() {
        let code = std::mem::take(&mut program.sections[section].code);
        let (always, once) = lazy_init::apart(code);
        let ordered = order_section(program, section, always);
        program.sections[section].code = lazy_init::together(program, ordered, once);
    }
    program.stage = Stage::Ordered;
}

impl SectionKind {
    /// Whether the host has waited for all queues before the section begins: it puts a batch into memory, or takes the
    /// loss of the micro-batch before out of it.
    pub(super) fn begins_synchronized(self) -> bool {
        matches!(self, SectionKind::Start | SectionKind::First) || self.is_of_evaluation()
    }
}

/// An instruction that another queue waits for before it goes on.
struct Edge {
    done: usize,
    waiter: Queue,
    /// What the wait comes before.
    next: usize,
}

fn order_section(program: &mut Program, at: usize, code: Vec<Instruction>) -> Vec<Instruction> {
    let entry = program.marked(&program.sections[at].entry);
    let carried = program.marked(&program.sections[at].exit);
    let finishes = last_uses(program, &carried, &code);
    let edges = edges(program, &finishes, &code);
    // Where another queue is the last to use something, the compute queue frees memory between its own work as well.
    let frees_between =
        code.iter().zip(&finishes).any(|(instruction, last)| *last && instruction.queue() != Queue::Compute);
    let mut ordered = Vec::with_capacity(code.len() + 2 * edges.len() + 2);
    let events: Vec<Event> = edges.iter().map(|_| program.add_event()).collect();
    let mut waits: Vec<Vec<(Queue, Event)>> = vec![Vec::new(); code.len() + 1];
    let mut records: Vec<Vec<Event>> = vec![Vec::new(); code.len()];
    for (&Edge { done, waiter, next }, &event) in edges.iter().zip(&events) {
        debug_assert!(done < next);
        waits[next].push((waiter, event));
        records[done].push(event);
    }
    // By queue: whether it has waited for the compute queue, and whether that has gone on since then.
    let mut joined = [program.sections[at].kind.begins_synchronized(); Queue::ALL.len()];
    let mut behind = [false; Queue::ALL.len()];
    let mut last = None;
    for (index, instruction) in code.into_iter().enumerate() {
        let (scope, phase, queue) = (instruction.scope, instruction.phase, instruction.queue());
        let mut push = |action| ordered.push(Instruction::new(action, scope, phase));
        let (of_compute, own): (Vec<_>, Vec<_>) =
            waits[index].iter().partition(|(waiter, _)| *waiter == Queue::Compute);
        for (queue, event) in of_compute {
            push(Action::Wait { queue, event });
            behind = [true; Queue::ALL.len()];
        }
        let overtakes =
            || (behind[queue as usize] || frees_between) && overtakes(program, &entry, &instruction);
        if queue != Queue::Compute && (!joined[queue as usize] || overtakes()) {
            let event = program.add_event();
            push(Action::Record { queue: Queue::Compute, event });
            push(Action::Wait { queue, event });
            (joined[queue as usize], behind[queue as usize]) = (true, false);
        }
        if queue == Queue::Compute {
            behind = [true; Queue::ALL.len()];
        }
        for (queue, event) in own {
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

/// Whether what an instruction of another queue writes may lie where the compute queue still works: in memory that it has
/// just freed, or on the device, where it works on all.
fn overtakes(program: &Program, entry: &[bool], instruction: &Instruction) -> bool {
    let writes = instruction.action.writes().iter().copied().chain(instruction.action.workspace());
    let mut fresh = writes.map(|id| (program.value(id).pool, entry[program.storage(id).index()]));
    fresh.any(|(pool, entered)| pool == Pool::Device || !entered)
}

/// What each queue waits for: that others have written what it reads and are done with what it writes, unless an earlier
/// wait covers it; and the compute queue for what others have used last, whose memory it gives back. It has one more such
/// instruction to go by then.
fn edges(program: &Program, finishes: &[bool], code: &[Instruction]) -> Vec<Edge> {
    let mut waits =
        Waits { edges: Vec::new(), known: [[0; QUEUES]; QUEUES], then: Vec::with_capacity(code.len()) };
    // By storage and queue: the last instruction that wrote there, and the last that used it. They are counted from 1.
    let mut uses = vec![[[0u32; 2]; QUEUES]; program.values.len()];
    // By queue: the instructions that used something last, and that the compute queue has not waited for: the last, and
    // the one before it.
    let mut finished = [[0; 2]; QUEUES];
    for (index, instruction) in code.iter().enumerate() {
        let queue = instruction.queue();
        let storage = |id: &ValueId| program.storage(*id).index();
        let (reads, writes) = (instruction.action.reads(), instruction.action.writes());
        let mut gone = [0; QUEUES];
        if queue != Queue::Copy {
            gone = finished.each_mut().map(|[_, before]| std::mem::take(before));
        }
        for other in Queue::ALL.into_iter().filter(|other| *other != queue) {
            let written = reads.iter().map(|read| uses[storage(read)][other as usize][0]);
            let used = writes.iter().map(|write| uses[storage(write)][other as usize][1]);
            let mut needed = written.chain(used).max().unwrap_or(0);
            if queue == Queue::Compute {
                needed = needed.max(gone[other as usize]);
            }
            waits.cover(queue, other, needed, index);
        }
        if queue == Queue::Host {
            waits.give_back(gone, index);
        }
        let now = index as u32 + 1;
        reads.iter().for_each(|read| uses[storage(read)][queue as usize][1] = now);
        writes.iter().for_each(|write| uses[storage(write)][queue as usize] = [now; 2]);
        if queue != Queue::Compute && finishes[index] {
            finished[queue as usize] = [now, finished[queue as usize][0]];
        }
        waits.is_enqueued(queue);
    }
    let latest = Queue::ALL.map(|queue| match queue {
        Queue::Compute => 0,
        _ => waits.known[queue as usize][queue as usize],
    });
    waits.give_back(latest, code.len());
    waits.edges
}

const QUEUES: usize = Queue::ALL.len();

/// By queue: its last instruction that is known to be done, counted from 1.
type Known = [u32; QUEUES];

/// Waits so far, and what they let each queue know.
struct Waits {
    edges: Vec<Edge>,
    known: [Known; QUEUES],
    /// By instruction: what its queue knows once it is done.
    then: Vec<Known>,
}

impl Waits {
    /// Lets a queue wait, before the next instruction, until another has done this one, unless it knows.
    fn cover(&mut self, waiter: Queue, other: Queue, done: u32, next: usize) {
        if self.known[waiter as usize][other as usize] >= done {
            return;
        }
        let done = done as usize - 1;
        self.edges.push(Edge { done, waiter, next });
        for (known, then) in self.known[waiter as usize].iter_mut().zip(self.then[done]) {
            *known = (*known).max(then);
        }
    }

    /// Lets the compute queue wait for others: what comes later may have waited for what came before.
    fn give_back(&mut self, done: Known, next: usize) {
        let mut done: Vec<(u32, Queue)> = Queue::ALL.map(|queue| (done[queue as usize], queue)).into();
        done.sort_by_key(|&(done, _)| std::cmp::Reverse(done));
        done.into_iter().for_each(|(done, other)| self.cover(Queue::Compute, other, done, next));
    }

    /// The next instruction is a queue's.
    fn is_enqueued(&mut self, queue: Queue) {
        self.known[queue as usize][queue as usize] = self.then.len() as u32 + 1;
        self.then.push(self.known[queue as usize]);
    }
}

/// By instruction: whether it is the last that uses something that is not carried on.
fn last_uses(program: &Program, carried: &[bool], code: &[Instruction]) -> Vec<bool> {
    let mut seen = carried.to_vec();
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
