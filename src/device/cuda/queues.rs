//! The card's queues as streams, and events between them and the host's, whose work is done as soon as it is enqueued.

use std::collections::{HashMap, HashSet};

use super::calls::driver::{
    self as sys, CUevent_flags_enum as EventFlags, CUstream_flags_enum as StreamFlags,
};
use super::driver::check;
use super::errors::Failed;
use super::order::{Moment, Order, other};
use crate::{Event, Queue};

/// Streams and events of a context. Dropped before it.
pub(super) struct Queues {
    streams: Vec<sys::CUstream>,
    events: HashMap<Event, sys::CUevent>,
    /// Events that stand for work of the host: it was done when they were recorded.
    of_host: HashSet<Event>,
    /// For the device's own needs. A wait takes what an event stands for when it is called, so that one will do.
    own: sys::CUevent,
    pub(super) order: Order,
}

impl Queues {
    /// In the current context.
    pub(super) fn new() -> Result<Queues, Failed> {
        let mut queues = Queues {
            streams: Vec::with_capacity(Queue::OF_DEVICE.len()),
            events: HashMap::new(),
            of_host: HashSet::new(),
            own: std::ptr::null_mut(),
            order: Order::default(),
        };
        for _ in Queue::OF_DEVICE {
            let mut stream = std::ptr::null_mut();
            // Work of others on the default stream orders nothing here.
            let flags = StreamFlags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: a context is current.
            check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
            queues.streams.push(stream);
        }
        queues.own = new_event()?;
        Ok(queues)
    }

    /// Of one of the card's queues.
    pub(super) fn stream(&self, queue: Queue) -> sys::CUstream {
        self.streams[queue as usize]
    }

    pub(super) fn record(&mut self, queue: Queue, event: Event) -> Result<(), Failed> {
        if queue == Queue::Host {
            self.of_host.insert(event);
            return Ok(());
        }
        self.of_host.remove(&event);
        let handle = match self.events.get(&event) {
            Some(handle) => *handle,
            None => {
                let handle = new_event()?;
                self.events.insert(event, handle);
                handle
            }
        };
        record(handle, self.stream(queue))?;
        self.order.record(queue, event);
        Ok(())
    }

    /// Waiting for an event that was never recorded waits for nothing.
    pub(super) fn wait(&mut self, queue: Queue, event: Event) -> Result<(), Failed> {
        let Some(&handle) = self.events.get(&event).filter(|_| !self.of_host.contains(&event)) else {
            return Ok(());
        };
        if queue == Queue::Host {
            // SAFETY: it lives.
            return check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(handle) });
        }
        wait(handle, self.stream(queue))?;
        self.order.wait(queue, event);
        Ok(())
    }

    /// Makes a queue wait for a moment of the other's, if nothing did so yet.
    pub(super) fn follow(&mut self, queue: Queue, moment: Moment) -> Result<(), Failed> {
        if self.order.could_overtake(queue, moment) {
            record(self.own, self.stream(other(queue)))?;
            wait(self.own, self.stream(queue))?;
            self.order.joined(queue);
        }
        Ok(())
    }

    /// Returns once all have done everything.
    pub(super) fn synchronize(&mut self) -> Result<(), Failed> {
        for stream in &self.streams {
            // SAFETY: the stream lives.
            check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(*stream) })?;
        }
        self.order.idle();
        Ok(())
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        let events = self.events.values().copied().chain([self.own]).filter(|event| !event.is_null());
        for event in events {
            // What a lost context no longer has cannot be destroyed, and need not be.
            // SAFETY: created once, destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(event) };
        }
        for stream in &self.streams {
            // SAFETY: created once, destroyed once.
            let _ = unsafe { sys::cuStreamDestroy_v2(*stream) };
        }
    }
}

fn new_event() -> Result<sys::CUevent, Failed> {
    let mut event = std::ptr::null_mut();
    let flags = EventFlags::CU_EVENT_DISABLE_TIMING as u32;
    // SAFETY: a context is current.
    check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
    Ok(event)
}

fn record(event: sys::CUevent, stream: sys::CUstream) -> Result<(), Failed> {
    // SAFETY: both live.
    check("cuEventRecord", unsafe { sys::cuEventRecord(event, stream) })
}

fn wait(event: sys::CUevent, stream: sys::CUstream) -> Result<(), Failed> {
    // SAFETY: both live.
    check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream, event, 0) })
}
