//! Cross-queue dependencies are ordered by events: happens-before by vector clocks.

use super::{Invariant, Violation, at, broken};
use crate::ir::{Action, Program, Section};
use device::Queue;

/// Instructions of a section are counted from 2; 1 stands for everything before the section.
const BEFORE: u32 = 1;

const QUEUES: usize = Queue::ALL.len();

/// The last instruction of each queue that is known to be done.
type Clock = [u32; QUEUES];

#[derive(Clone, Copy, Default)]
struct StorageUse {
    last_read: Clock,
    last_write: Clock,
    /// Uses of memory that was freed before this storage was allocated, which it may reuse.
    before: Clock,
}

pub(super) fn check(program: &Program, section: &Section) -> Result<(), Violation> {
    let mut storages = vec![StorageUse::default(); program.values.len()];
    let mut events: Vec<Clock> = vec![Clock::default(); program.events as usize];
    let mut clocks = [Clock::default(); QUEUES];
    // At the end of every section, the compute queue has waited for the others.
    clocks[Queue::Compute as usize] = [BEFORE; QUEUES];
    if section.kind.begins_synchronized() {
        clocks = [[BEFORE; QUEUES]; QUEUES];
    }
    // Live-in storages were last used before the section.
    for &storage in &section.live_in {
        let live_in = &mut storages[storage.index()];
        (live_in.last_read, live_in.last_write) = ([BEFORE; QUEUES], [BEFORE; QUEUES]);
    }
    let mut freed: Clock = [BEFORE; QUEUES];
    let mut last: Clock = Clock::default();
    for (index, instruction) in section.code.iter().enumerate() {
        let now = index as u32 + BEFORE + 1;
        let queue = instruction.queue() as usize;
        match instruction.action {
            Action::Record { event, .. } => {
                events[event.0 as usize] = clocks[queue];
                events[event.0 as usize][queue] = now;
            }
            Action::Wait { event, .. } => {
                let known = events[event.0 as usize];
                for (mine, theirs) in clocks[queue].iter_mut().zip(known) {
                    *mine = (*mine).max(theirs);
                }
            }
            Action::Allocate(storage) => storages[storage.index()].before = freed,
            // Its memory is never reused.
            Action::Leak(_) => {}
            // Free memory may be reused by any storage.
            Action::EmptyCache => {}
            Action::Free(storage) => {
                let known = storages[storage.index()];
                for (freed, (read, write)) in
                    freed.iter_mut().zip(known.last_read.into_iter().zip(known.last_write))
                {
                    *freed = (*freed).max(read).max(write);
                }
                if !ordered(&clocks[queue], queue, &known.last_write)
                    || !ordered(&clocks[queue], queue, &known.last_read)
                {
                    return broken(Invariant::Events, at(program, section, instruction));
                }
            }
            Action::Launch { .. }
            | Action::Copy { .. }
            | Action::Exchange { .. }
            | Action::Collect { .. } => {
                last[queue] = now;
                let action = &instruction.action;
                for id in action.reads() {
                    let storage = &mut storages[program.storage(*id).index()];
                    storage.last_read[queue] = now;
                    if !ordered(&clocks[queue], queue, &storage.last_write) {
                        return broken(Invariant::Events, at(program, section, instruction));
                    }
                }
                for id in action.writes().iter().copied().chain(action.workspace()) {
                    let storage = &mut storages[program.storage(id).index()];
                    let known = *storage;
                    storage.last_write[queue] = now;
                    let needed = [known.last_read, known.last_write, known.before];
                    if !needed.iter().all(|needed| ordered(&clocks[queue], queue, needed)) {
                        return broken(Invariant::Events, at(program, section, instruction));
                    }
                }
            }
        }
    }
    let compute = Queue::Compute as usize;
    if !ordered(&clocks[compute], compute, &last) {
        return broken(Invariant::Events, format!("{} ends before its copies do", section.kind.name()));
    }
    Ok(())
}

/// Whether a queue's clock covers `needed` of the other queues. Its own work is ordered by itself.
fn ordered(clock: &Clock, queue: usize, needed: &Clock) -> bool {
    (0..QUEUES).all(|other| other == queue || clock[other] >= needed[other])
}
