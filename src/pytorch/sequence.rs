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

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Start => "start-up",
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Update => "update",
            Phase::Evaluation => "evaluation",
        }
    }
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Parameters and buffers.
    Parameter,
    /// Gradients of parameters.
    Gradient,
    OptimizerState,
    /// 16-bit copies of parameters under autocast.
    Cast,
    /// Logits, loss and their gradients.
    Loss,
    /// Other values of forward and backward.
    Activation,
    /// Workspaces and scratch of kernels.
    Workspace,
}

impl Purpose {
    pub const ALL: [Purpose; 7] = [
        Purpose::Parameter,
        Purpose::Gradient,
        Purpose::OptimizerState,
        Purpose::Cast,
        Purpose::Loss,
        Purpose::Activation,
        Purpose::Workspace,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Purpose::Parameter => "parameters",
            Purpose::Gradient => "gradients",
            Purpose::OptimizerState => "optimizer states",
            Purpose::Cast => "casts of parameters",
            Purpose::Loss => "logits and loss",
            Purpose::Activation => "activations",
            Purpose::Workspace => "workspaces",
        }
    }
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
    /// By number of the request.
    purposes: Vec<Purpose>,
}

impl Sequence {
    pub(crate) fn request(&mut self, bytes: u64, purpose: Purpose) -> u32 {
        self.events.push(Event::Request(bytes));
        self.purposes.push(purpose);
        self.purposes.len() as u32 - 1
    }

    /// A request turns out to be for something else.
    pub(crate) fn set_purpose(&mut self, request: u32, purpose: Purpose) {
        self.purposes[request as usize] = purpose;
    }

    pub(crate) fn release(&mut self, request: u32) {
        self.events.push(Event::Release(request));
    }

    pub(crate) fn mark(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The number of requests.
    pub fn requests(&self) -> usize {
        self.purposes.len()
    }

    /// Requested bytes of the requests that live after an event, by purpose.
    pub fn live_after(&self, event: usize) -> [(Purpose, u64); Purpose::ALL.len()] {
        let mut live = Purpose::ALL.map(|purpose| (purpose, 0));
        let mut bytes = Vec::new();
        for event in &self.events[..=event] {
            match *event {
                Event::Request(requested) => {
                    live[self.purposes[bytes.len()] as usize].1 += requested;
                    bytes.push(requested);
                }
                Event::Release(request) => {
                    live[self.purposes[request as usize] as usize].1 -= bytes[request as usize];
                }
                Event::Phase(_) | Event::Step | Event::EmptyCache => {}
            }
        }
        live
    }

    /// The phase of an event.
    pub fn phase_of(&self, event: usize) -> Phase {
        let phase = |event: &Event| match event {
            Event::Phase(phase) => Some(*phase),
            _ => None,
        };
        self.events[..=event].iter().rev().find_map(phase).unwrap_or(Phase::Start)
    }
}
