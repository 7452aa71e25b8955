//! Tracks which work of one queue the other queues already wait for, and thus where the device must add an event
//! itself.
//!
//! A program's events order reads and writes between queues. The device itself must ensure that memory is allocated
//! before the copy and the communication queue use it and freed afterwards: both happen on the compute queue. The host
//! processor uses no card memory.

use std::collections::HashMap;

use crate::{Event, Queue};

/// A position in a queue's work; later positions are larger.
pub(super) type SequenceNumber = u64;

#[derive(Debug, Default)]
pub(super) struct QueueOrder {
    /// The latest position of each queue.
    latest: [SequenceNumber; Queue::ALL.len()],
    /// For each queue, the position of each other queue that its later work waits for.
    waits_for: [[SequenceNumber; Queue::ALL.len()]; Queue::ALL.len()],
    recorded: HashMap<Event, (Queue, SequenceNumber)>,
}

impl QueueOrder {
    /// Advances a queue after work that another queue may have to wait for.
    pub(super) fn advance(&mut self, queue: Queue) -> SequenceNumber {
        self.latest[queue as usize] += 1;
        self.latest[queue as usize]
    }

    pub(super) fn record(&mut self, queue: Queue, event: Event) {
        self.recorded.insert(event, (queue, self.latest[queue as usize]));
    }

    pub(super) fn wait(&mut self, queue: Queue, event: Event) {
        if let Some(&(recorded_on, position)) = self.recorded.get(&event)
            && recorded_on != queue
        {
            let waits_for = &mut self.waits_for[queue as usize][recorded_on as usize];
            *waits_for = position.max(*waits_for);
        }
    }

    /// Whether a queue's later work could run before this position of another queue.
    pub(super) fn could_overtake(&self, queue: Queue, other: Queue, position: SequenceNumber) -> bool {
        position > self.waits_for[queue as usize][other as usize]
    }

    /// Marks that the queue waits for all of the other queue's work so far.
    pub(super) fn mark_joined(&mut self, queue: Queue, other: Queue) {
        self.waits_for[queue as usize][other as usize] = self.latest[other as usize];
    }

    /// Marks all queues as idle.
    pub(super) fn mark_idle(&mut self) {
        self.waits_for = [self.latest; Queue::ALL.len()];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: Event = Event(7);

    #[test]
    fn only_unordered_work_needs_an_event() {
        let mut order = QueueOrder::default();
        let allocated = order.advance(Queue::Compute);
        assert!(order.could_overtake(Queue::Copy, Queue::Compute, allocated));
        order.record(Queue::Compute, EVENT);
        let later = order.advance(Queue::Compute);
        order.wait(Queue::Copy, EVENT);
        assert!(!order.could_overtake(Queue::Copy, Queue::Compute, allocated));
        assert!(order.could_overtake(Queue::Copy, Queue::Compute, later), "enqueued after the event");
        order.mark_joined(Queue::Copy, Queue::Compute);
        assert!(!order.could_overtake(Queue::Copy, Queue::Compute, later));
        assert!(!order.could_overtake(Queue::Compute, Queue::Copy, 0), "the copy queue has done nothing");
        assert!(
            order.could_overtake(Queue::Communication, Queue::Compute, allocated),
            "a queue waits for itself only"
        );
    }

    #[test]
    fn recording_an_event_again_replaces_it() {
        let mut order = QueueOrder::default();
        order.record(Queue::Copy, EVENT);
        let used = order.advance(Queue::Copy);
        order.wait(Queue::Compute, EVENT);
        assert!(order.could_overtake(Queue::Compute, Queue::Copy, used));
        order.record(Queue::Copy, EVENT);
        order.wait(Queue::Copy, EVENT);
        assert!(
            order.could_overtake(Queue::Compute, Queue::Copy, used),
            "a queue that waits for its own event does not wait for the other queue"
        );
        order.wait(Queue::Compute, EVENT);
        assert!(!order.could_overtake(Queue::Compute, Queue::Copy, used));
        let later = order.advance(Queue::Copy);
        order.mark_idle();
        assert!(!order.could_overtake(Queue::Compute, Queue::Copy, later));
    }
}
