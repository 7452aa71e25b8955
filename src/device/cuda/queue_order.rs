//! Tracks which work of one queue the other queue already waits for, and thus where the device must add an event
//! itself.
//!
//! A program's events order reads and writes between queues. The device itself must ensure that memory is allocated
//! before the copy queue uses it and freed afterwards: both happen on the compute queue. The host processor uses no
//! card memory.

use std::collections::HashMap;

use crate::{Event, Queue};

/// A position in a queue's work; later positions are larger.
pub(super) type SequenceNumber = u64;

#[derive(Debug, Default)]
pub(super) struct QueueOrder {
    /// The latest position of each queue.
    latest: [SequenceNumber; Queue::ALL.len()],
    /// For each queue, the position of the other queue that its later work waits for.
    waits_for: [SequenceNumber; Queue::ALL.len()],
    recorded: HashMap<Event, (Queue, SequenceNumber)>,
}

impl QueueOrder {
    /// Advances a queue after work that the other queue may have to wait for.
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
            let waits_for = &mut self.waits_for[queue as usize];
            *waits_for = position.max(*waits_for);
        }
    }

    /// Whether a queue's later work could run before this position of the other queue.
    pub(super) fn could_overtake(&self, queue: Queue, position: SequenceNumber) -> bool {
        position > self.waits_for[queue as usize]
    }

    /// Marks that the queue waits for all of the other queue's work so far.
    pub(super) fn mark_joined(&mut self, queue: Queue) {
        self.waits_for[queue as usize] = self.latest[other(queue) as usize];
    }

    /// Marks both queues as idle.
    pub(super) fn mark_idle(&mut self) {
        Queue::OF_DEVICE.into_iter().for_each(|queue| self.mark_joined(queue));
    }
}

/// The other of the card's two queues.
pub(super) fn other(queue: Queue) -> Queue {
    match queue {
        Queue::Compute => Queue::Copy,
        Queue::Copy => Queue::Compute,
        Queue::Host | Queue::Communication => unreachable!("the queue uses no card memory"),
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
        assert!(order.could_overtake(Queue::Copy, allocated));
        order.record(Queue::Compute, EVENT);
        let later = order.advance(Queue::Compute);
        order.wait(Queue::Copy, EVENT);
        assert!(!order.could_overtake(Queue::Copy, allocated));
        assert!(order.could_overtake(Queue::Copy, later), "enqueued after the event");
        order.mark_joined(Queue::Copy);
        assert!(!order.could_overtake(Queue::Copy, later));
        assert!(!order.could_overtake(Queue::Compute, 0), "the copy queue has done nothing");
    }

    #[test]
    fn recording_an_event_again_replaces_it() {
        let mut order = QueueOrder::default();
        order.record(Queue::Copy, EVENT);
        let used = order.advance(Queue::Copy);
        order.wait(Queue::Compute, EVENT);
        assert!(order.could_overtake(Queue::Compute, used));
        order.record(Queue::Copy, EVENT);
        order.wait(Queue::Copy, EVENT);
        assert!(
            order.could_overtake(Queue::Compute, used),
            "a queue that waits for its own event does not wait for the other queue"
        );
        order.wait(Queue::Compute, EVENT);
        assert!(!order.could_overtake(Queue::Compute, used));
        let later = order.advance(Queue::Copy);
        order.mark_idle();
        assert!(!order.could_overtake(Queue::Compute, later));
    }
}
