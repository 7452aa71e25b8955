//! The replay of a program's allocator calls, for its peaks.

use crate::allocator::{Allocator, CardMemory, OutOfMemory, Usage};
use crate::sequence::{Event, Phase, Sequence};
use spec::AllocConf;

/// Peaks of a replayed sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Over the whole sequence.
    pub whole: Usage,
    /// By phase, in the order of [`Phase`]; of all steps.
    pub phases: Vec<(Phase, Usage)>,
    /// By step, from the first; what precedes it belongs to no step.
    pub steps: Vec<Usage>,
    /// Cached segments were returned to the driver to satisfy a request.
    pub retries: u32,
    /// The index of the event that first reaches the largest allocated bytes.
    pub at: usize,
}

impl Peaks {
    fn record(&mut self, phase: Phase, usage: Usage) {
        match self.phases.iter_mut().find(|(known, _)| *known == phase) {
            Some((_, known)) => known.raise(usage),
            None => self.phases.push((phase, usage)),
        }
    }
}

/// Replays a sequence on a card with this memory; without one, memory has no end.
///
/// # Errors
/// A request that does not fit, with the index of its event.
pub fn replay(
    sequence: &Sequence,
    card: Option<CardMemory>,
    conf: AllocConf,
) -> Result<Peaks, (usize, OutOfMemory)> {
    let mut allocator = Allocator::new(card, conf);
    let mut blocks = Vec::with_capacity(sequence.requests());
    let mut peaks = Peaks::default();
    let mut phase = Phase::Start;
    let mut of_phase = Usage::default();
    for (at, event) in sequence.events.iter().enumerate() {
        match *event {
            Event::Request(bytes) => {
                blocks.push(allocator.allocate(bytes).map_err(|error| (at, error))?);
                if allocator.usage.allocated > peaks.whole.allocated {
                    peaks.at = at;
                }
                peaks.whole.raise(allocator.usage);
                of_phase.raise(allocator.usage);
                if let Some(step) = peaks.steps.last_mut() {
                    step.raise(allocator.usage);
                }
            }
            Event::Release(request) => allocator.free(blocks[request as usize]),
            Event::EmptyCache => allocator.empty_cache(),
            Event::Step => peaks.steps.push(allocator.usage),
            Event::Phase(next) => {
                peaks.record(phase, of_phase);
                (phase, of_phase) = (next, allocator.usage);
            }
        }
    }
    peaks.record(phase, of_phase);
    peaks.retries = allocator.retries;
    Ok(peaks)
}
