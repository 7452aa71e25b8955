//! The requests that a PyTorch program makes of its caching allocator, in order.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

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
    /// fp32 copies of 16-bit parameters, which the optimizer updates.
    MasterWeight,
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
    /// Buckets, gathered parameters and flat copies that ranks exchange.
    Communication,
}

impl Purpose {
    pub const ALL: [Purpose; 9] = [
        Purpose::Parameter,
        Purpose::MasterWeight,
        Purpose::Gradient,
        Purpose::OptimizerState,
        Purpose::Cast,
        Purpose::Loss,
        Purpose::Activation,
        Purpose::Workspace,
        Purpose::Communication,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Purpose::Parameter => "parameters",
            Purpose::MasterWeight => "master weights",
            Purpose::Gradient => "gradients",
            Purpose::OptimizerState => "optimizer states",
            Purpose::Cast => "casts of parameters",
            Purpose::Loss => "logits and loss",
            Purpose::Activation => "activations",
            Purpose::Workspace => "workspaces",
            Purpose::Communication => "communication buffers",
        }
    }
}

/// A stream of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stream {
    #[default]
    Compute,
    /// That which fills the buffers of gathered parameters.
    AllGather,
    ReduceScatter,
}

impl Stream {
    pub const COUNT: usize = 3;
}

/// Nothing for the first stream, `@1` for the next.
impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stream::Compute => Ok(()),
            Stream::AllGather | Stream::ReduceScatter => write!(f, "@{}", *self as usize),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request of this many bytes by the current stream. Requests are numbered from 0.
    Request(u64),
    /// The current stream of later requests (`torch.cuda.stream`). It is the first one at the beginning.
    Stream(Stream),
    /// The release of the request with this number.
    Release(u32),
    /// The program enters a phase.
    Phase(Phase),
    /// The program begins a training step.
    Step,
    /// `torch.cuda.empty_cache()`
    EmptyCache,
}

/// Live requests of equal purpose, bytes and phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveGroup {
    pub purpose: Purpose,
    /// Requested bytes of each.
    pub bytes: u64,
    /// The phase that requested them.
    pub phase: Phase,
    pub count: usize,
}

impl LiveGroup {
    pub fn total(&self) -> u64 {
        self.bytes * self.count as u64
    }
}

/// The allocator calls of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Bytes of managed memory, which the caching allocator does not serve.
    pub(crate) managed: u64,
    pub events: Vec<Event>,
    /// By number of the request.
    purposes: Vec<Purpose>,
    /// Requests whose holders now hold the copies made last: requests, and the distance to their copies.
    moved: Vec<(Range<u32>, u32)>,
}

/// A part of a program: its events and its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    events: Range<usize>,
    requests: Range<u32>,
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
        let moved = self.moved.iter().rev().find(|(requests, _)| requests.contains(&request));
        let distance = moved.map_or(0, |(_, distance)| *distance);
        self.events.push(Event::Release(request + distance));
    }

    /// The part of the program that `run` adds.
    pub(crate) fn part_from(&self, events: usize, request: usize) -> Part {
        Part { events: events..self.events.len(), requests: request as u32..self.purposes.len() as u32 }
    }

    /// Whether two successive parts make the same calls, each releasing requests of its own or of the part before it.
    pub(crate) fn is_period(&self, first: &Part, second: &Part) -> bool {
        let period = second.requests.len() as u32;
        let [first_events, second_events] = [first, second].map(|part| &self.events[part.events.clone()]);
        first.requests.len() == second.requests.len()
            && first_events.len() == second_events.len()
            && first_events.iter().zip(second_events).all(|pair| match pair {
                (Event::Release(a), Event::Release(b)) => a + period == *b && first.requests.start <= *b,
                (a, b) => a == b,
            })
    }

    /// Whether a part releases requests of its own only.
    pub(crate) fn is_closed(&self, part: &Part) -> bool {
        self.events[part.events.clone()].iter().all(|event| match event {
            Event::Release(request) => part.requests.contains(request),
            _ => true,
        })
    }

    /// Appends a part again. Its releases of earlier requests become releases of requests made equally long before.
    /// Whoever holds a request of the part now holds its copy.
    pub(crate) fn append_copy(&mut self, part: &Part) {
        let distance = self.purposes.len() as u32 - part.requests.start;
        for index in part.events.clone() {
            self.events.push(match self.events[index] {
                Event::Release(request) => Event::Release(request + distance),
                event => event,
            });
        }
        self.purposes.extend_from_within(part.requests.start as usize..part.requests.end as usize);
        self.moved.push((part.requests.clone(), distance));
    }

    /// Appends a part again that releases its own requests only, without the requests that outlive it.
    pub(crate) fn append_without_survivors(&mut self, part: &Part) {
        let first = part.requests.start;
        let mut survives = vec![true; part.requests.len()];
        for event in &self.events[part.events.clone()] {
            if let Event::Release(request) = event {
                survives[(request - first) as usize] = false;
            }
        }
        let mut copies = Vec::with_capacity(part.requests.len());
        for index in part.events.clone() {
            match self.events[index] {
                Event::Request(bytes) => {
                    let request = copies.len();
                    copies.push(self.purposes.len() as u32);
                    if !survives[request] {
                        self.request(bytes, self.purposes[first as usize + request]);
                    }
                }
                Event::Release(request) => {
                    self.events.push(Event::Release(copies[(request - first) as usize]));
                }
                event => self.events.push(event),
            }
        }
    }

    pub(crate) fn mark(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The number of requests.
    pub fn requests(&self) -> usize {
        self.purposes.len()
    }

    /// Requested bytes of the requests that live after an event, by purpose.
    pub(crate) fn live_after(&self, event: usize) -> [(Purpose, u64); Purpose::ALL.len()] {
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
                Event::Phase(_) | Event::Step | Event::EmptyCache | Event::Stream(_) => {}
            }
        }
        live
    }

    /// The live requests of equal purpose, bytes and phase after an event, largest sum first.
    pub(crate) fn live_groups_after(&self, event: usize) -> Vec<LiveGroup> {
        let mut requests = Vec::new();
        let mut phase = Phase::Start;
        for event in &self.events[..=event] {
            match *event {
                Event::Request(bytes) => requests.push(Some((bytes, phase))),
                Event::Release(request) => requests[request as usize] = None,
                Event::Phase(next) => phase = next,
                Event::Step | Event::EmptyCache | Event::Stream(_) => {}
            }
        }
        let mut groups: BTreeMap<(Purpose, u64, Phase), usize> = BTreeMap::new();
        for (request, purpose) in requests.into_iter().zip(&self.purposes) {
            if let Some((bytes, phase)) = request {
                *groups.entry((*purpose, bytes, phase)).or_default() += 1;
            }
        }
        let group = |((purpose, bytes, phase), count)| LiveGroup { purpose, bytes, phase, count };
        let mut groups: Vec<LiveGroup> = groups.into_iter().map(group).collect();
        groups.sort_by_key(|group| Reverse(group.total()));
        groups
    }

    /// The number of the training step of an event, from 1; 0 before the first.
    pub(crate) fn step_of(&self, event: usize) -> usize {
        self.events[..=event].iter().filter(|event| **event == Event::Step).count()
    }

    /// The purpose of the request at an event.
    pub(crate) fn purpose_of(&self, event: usize) -> Purpose {
        let before = self.events[..event].iter().filter(|event| matches!(event, Event::Request(_)));
        self.purposes[before.count()]
    }

    /// The purpose of the request with this number.
    pub(crate) fn purpose(&self, request: usize) -> Purpose {
        self.purposes[request]
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
