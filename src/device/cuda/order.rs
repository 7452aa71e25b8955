//! Which queue is known to be behind what the other has done with memory: where an event is needed that the program
//! does not have.
//!
//! A program's events order what queues write and read. That memory exists before the copy queue uses it, and is given
//! back after, is the device's own matter: both happen on the compute queue. The host's processor uses none of the card's
//! memory.

use std::collections::HashMap;

use crate::{Event, Queue};

/// A moment in a queue's work. Later ones are larger.
pub(super) type Moment = u64;

#[derive(Debug, Default)]
pub(super) struct Order {
    /// The latest moment of each queue.
    latest: [Moment; Queue::ALL.len()],
    /// Up to which moment of the other queue each queue's further work is behind.
    behind: [Moment; Queue::ALL.len()],
    recorded: HashMap<Event, (Queue, Moment)>,
}

impl Order {
    /// Something was enqueued that the other queue may have to wait for.
    pub(super) fn happens(&mut self, queue: Queue) -> Moment {
        self.latest[queue as usize] += 1;
        self.latest[queue as usize]
    }

    pub(super) fn record(&mut self, queue: Queue, event: Event) {
        self.recorded.insert(event, (queue, self.latest[queue as usize]));
    }

    pub(super) fn wait(&mut self, queue: Queue, event: Event) {
        if let Some(&(recorded_on, moment)) = self.recorded.get(&event)
            && recorded_on != queue
        {
            let behind = &mut self.behind[queue as usize];
            *behind = moment.max(*behind);
        }
    }

    /// Whether a queue's further work could overtake this moment of the other's.
    pub(super) fn could_overtake(&self, queue: Queue, moment: Moment) -> bool {
        moment > self.behind[queue as usize]
    }

    /// The queue was made to wait for all of the other's work so far.
    pub(super) fn joined(&mut self, queue: Queue) {
        self.behind[queue as usize] = self.latest[other(queue) as usize];
    }

    /// Both queues have done everything.
    pub(super) fn idle(&mut self) {
        Queue::OF_DEVICE.into_iter().for_each(|queue| self.joined(queue));
    }
}

/// The other of the card's two queues.
pub(super) fn other(queue: Queue) -> Queue {
    match queue {
        Queue::Compute => Queue::Copy,
        Queue::Copy => Queue::Compute,
        Queue::Host => unreachable!("the host's queue works on none of the card's memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: Event = Event(7);

    #[test]
    fn only_what_no_event_covers_needs_one() {
        let mut order = Order::default();
        let born = order.happens(Queue::Compute);
        assert!(order.could_overtake(Queue::Copy, born));
        order.record(Queue::Compute, EVENT);
        let later = order.happens(Queue::Compute);
        order.wait(Queue::Copy, EVENT);
        assert!(!order.could_overtake(Queue::Copy, born));
        assert!(order.could_overtake(Queue::Copy, later), "it came after the event");
        order.joined(Queue::Copy);
        assert!(!order.could_overtake(Queue::Copy, later));
        assert!(!order.could_overtake(Queue::Compute, 0), "the copy queue has done nothing");
    }

    #[test]
    fn an_event_recorded_again_stands_for_what_came_last() {
        let mut order = Order::default();
        order.record(Queue::Copy, EVENT);
        let used = order.happens(Queue::Copy);
        order.wait(Queue::Compute, EVENT);
        assert!(order.could_overtake(Queue::Compute, used));
        order.record(Queue::Copy, EVENT);
        order.wait(Queue::Copy, EVENT);
        assert!(
            order.could_overtake(Queue::Compute, used),
            "a queue is not behind the other for waiting for itself"
        );
        order.wait(Queue::Compute, EVENT);
        assert!(!order.could_overtake(Queue::Compute, used));
        let again = order.happens(Queue::Copy);
        order.idle();
        assert!(!order.could_overtake(Queue::Compute, again));
    }
}
