//! The requests that a PyTorch program makes of its caching allocator, in order.

/// A phase of a training step, for peaks by phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Model, first batch and whatever else exists before the first step.
    Start,
    Forward,
    Backward,
    /// Unscaling, clipping and the optimizer step.
    Update,
    Evaluation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request of this many bytes. Requests are numbered from 0.
    Request(u64),
    /// The release of the request with this number.
    Release(u32),
    /// The program enters a phase.
    Phase(Phase),
    /// The program begins a training step.
    Step,
    /// `torch.cuda.empty_cache()`
    EmptyCache,
}

/// The allocator calls of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    pub events: Vec<Event>,
    requests: u32,
}

impl Sequence {
    pub(crate) fn request(&mut self, bytes: u64) -> u32 {
        self.events.push(Event::Request(bytes));
        self.requests += 1;
        self.requests - 1
    }

    pub(crate) fn release(&mut self, request: u32) {
        self.events.push(Event::Release(request));
    }

    pub(crate) fn mark(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The number of requests.
    pub fn requests(&self) -> usize {
        self.requests as usize
    }
}
