//! The card's queues as streams, and events between them and the host queue, which runs inline.

use std::collections::{HashMap, HashSet};

use super::calls::driver::{
    self as sys, CUevent_flags_enum as EventFlags, CUstream_flags_enum as StreamFlags,
};
use super::driver::check;
use super::errors::CallError;
use super::exchanges::{Exchanges, is_idle, is_reached};
use super::queue_order::{QueueOrder, SequenceNumber};
use crate::{DeviceError, Event, Queue};

/// Streams and events of a context. Dropped before it.
pub(super) struct Queues {
    streams: Vec<sys::CUstream>,
    events: HashMap<Event, sys::CUevent>,
    /// Events recorded on the host queue: their work is already done.
    host_events: HashSet<Event>,
    /// The event for the device's own waits. A wait uses the event's recording at the time of the call, so
    /// one event suffices.
    internal_event: sys::CUevent,
    pub(super) order: QueueOrder,
    /// The communication queue, if there are other ranks.
    pub(super) exchanges: Option<Exchanges>,
}

impl Queues {
    /// In the current context.
    pub(super) fn new() -> Result<Queues, CallError> {
        let mut queues = Queues {
            streams: Vec::with_capacity(Queue::OF_DEVICE.len()),
            events: HashMap::new(),
            host_events: HashSet::new(),
            internal_event: std::ptr::null_mut(),
            order: QueueOrder::default(),
            exchanges: None,
        };
        for _ in Queue::OF_DEVICE {
            let mut stream = std::ptr::null_mut();
            // Non-blocking: no implicit ordering with the default stream.
            let flags = StreamFlags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: a context is current.
            check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
            queues.streams.push(stream);
        }
        queues.internal_event = new_event()?;
        Ok(queues)
    }

    /// The stream of one of the card's queues.
    pub(super) fn stream(&self, queue: Queue) -> sys::CUstream {
        match queue {
            Queue::Communication => {
                self.exchanges.as_ref().expect("programs exchange nothing without ranks").stream
            }
            queue => self.streams[queue as usize],
        }
    }

    pub(super) fn record(&mut self, queue: Queue, event: Event) -> Result<(), CallError> {
        if queue == Queue::Host {
            self.host_events.insert(event);
            return Ok(());
        }
        self.host_events.remove(&event);
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

    /// Waiting for an event that was never recorded returns at once.
    pub(super) fn wait(&mut self, queue: Queue, event: Event) -> Result<(), DeviceError> {
        let Some(&handle) = self.events.get(&event).filter(|_| !self.host_events.contains(&event)) else {
            return Ok(());
        };
        if queue == Queue::Host {
            if let Some(exchanges) = &mut self.exchanges {
                exchanges.wait_until(|| is_reached(handle))?;
            }
            // SAFETY: the event is live.
            return Ok(check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(handle) })?);
        }
        wait(handle, self.stream(queue))?;
        self.order.wait(queue, event);
        Ok(())
    }

    /// Makes a queue wait for a position of another queue, unless it already does.
    pub(super) fn follow(
        &mut self,
        queue: Queue,
        other: Queue,
        position: SequenceNumber,
    ) -> Result<(), CallError> {
        if self.order.could_overtake(queue, other, position) {
            record(self.internal_event, self.stream(other))?;
            wait(self.internal_event, self.stream(queue))?;
            self.order.mark_joined(queue, other);
        }
        Ok(())
    }

    /// Waits for all work on all streams.
    ///
    /// # Errors
    /// `Lost` if another rank does not arrive; the driver fails.
    pub(super) fn synchronize(&mut self) -> Result<(), DeviceError> {
        let exchanging = self.exchanges.as_ref().map(|exchanges| exchanges.stream);
        for stream in self.streams.iter().copied().chain(exchanging) {
            if let Some(exchanges) = &mut self.exchanges {
                exchanges.wait_until(|| is_idle(stream))?;
            }
            // SAFETY: the stream is live.
            check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream) })?;
        }
        if let Some(exchanges) = &mut self.exchanges {
            exchanges.watch()?;
        }
        self.order.mark_idle();
        Ok(())
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.exchanges = None;
        let events =
            self.events.values().copied().chain([self.internal_event]).filter(|event| !event.is_null());
        for event in events {
            // A lost context has already destroyed it; errors are ignored.
            // SAFETY: created once, destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(event) };
        }
        for stream in &self.streams {
            // SAFETY: created once, destroyed once.
            let _ = unsafe { sys::cuStreamDestroy_v2(*stream) };
        }
    }
}

fn new_event() -> Result<sys::CUevent, CallError> {
    let mut event = std::ptr::null_mut();
    let flags = EventFlags::CU_EVENT_DISABLE_TIMING as u32;
    // SAFETY: a context is current.
    check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
    Ok(event)
}

fn record(event: sys::CUevent, stream: sys::CUstream) -> Result<(), CallError> {
    // SAFETY: both are live.
    check("cuEventRecord", unsafe { sys::cuEventRecord(event, stream) })
}

fn wait(event: sys::CUevent, stream: sys::CUstream) -> Result<(), CallError> {
    // SAFETY: both are live.
    check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream, event, 0) })
}
