//! The replay of a program's allocator calls, for its peaks.
//!
//! Steps repeat: if the allocator's blocks lie as they did before an earlier step, and the next events are those of that
//! step, then they have the same peaks and are skipped.

use crate::allocator::{Allocator, CardMemory, Layout, OutOfMemory, Usage};
use crate::sequence::{Event, Phase, Sequence, Stream};
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
    /// The index of the event that first reaches the largest allocated bytes of all steps.
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
    let events = &sequence.events;
    let mut allocator = Allocator::new(card, conf);
    let mut blocks = Vec::with_capacity(sequence.requests());
    let mut peaks = Peaks::default();
    let (mut phase, mut stream) = (Phase::Start, Stream::default());
    let mut of_phase = Usage::default();
    let mut steps = Vec::new();
    let (mut at, mut highest) = (0, 0);
    while let Some(event) = events.get(at) {
        if *event == Event::Step {
            let skipped = skip(&mut steps, events, at, &allocator, &mut blocks);
            if skipped > 0 {
                let count = events[at..at + skipped].iter().filter(|event| **event == Event::Step).count();
                peaks.steps.extend_from_within(peaks.steps.len() - count..);
                at += skipped;
                continue;
            }
        }
        let mut next = at + 1;
        match *event {
            Event::Request(bytes) => {
                let is_scratch = events.get(next) == Some(&Event::Release(blocks.len() as u32));
                let (index, usage) = match is_scratch.then(|| allocator.lend(bytes, stream)).flatten() {
                    Some(lent) => {
                        next += 1;
                        lent
                    }
                    None => {
                        let index = allocator.allocate(bytes, stream).map_err(|error| (at, error))?;
                        (index, allocator.usage)
                    }
                };
                blocks.push(index);
                if usage.allocated > highest {
                    (highest, peaks.at) = (usage.allocated, at);
                }
                peaks.whole.raise(usage);
                of_phase.raise(usage);
                if let Some(step) = peaks.steps.last_mut() {
                    step.raise(usage);
                }
            }
            Event::Release(request) => allocator.free(blocks[request as usize]),
            Event::Stream(entered) => stream = entered,
            Event::EmptyCache => allocator.empty_cache(),
            Event::Step => {
                // Start-up may need more than any step: the whole model, before it is sharded.
                if peaks.steps.is_empty() {
                    highest = 0;
                }
                peaks.steps.push(allocator.usage);
            }
            Event::Phase(entered) => {
                peaks.record(phase, of_phase);
                (phase, of_phase) = (entered, allocator.usage);
            }
        }
        at = next;
    }
    peaks.record(phase, of_phase);
    peaks.retries = allocator.retries;
    Ok(peaks)
}

/// The beginning of a step.
struct Beginning {
    /// The index of its first event.
    at: usize,
    /// The number of its first request.
    request: usize,
    layout: Layout,
}

/// Skips the steps that begin at an event, if the steps since an earlier beginning with the same layout made the same
/// calls. Returns the number of skipped events.
fn skip(
    steps: &mut Vec<Beginning>,
    events: &[Event],
    at: usize,
    allocator: &Allocator,
    blocks: &mut Vec<u32>,
) -> usize {
    let (layout, request) = (allocator.layout(), blocks.len());
    let mut skipped = 0;
    if let Some(last) = steps.iter().rev().find(|step| step.layout == layout) {
        let period = &events[last.at..at];
        if repeats(period, &events[at..], last.request, request - last.request) {
            // Nothing releases the blocks of skipped requests.
            blocks.extend_from_within(last.request..);
            skipped = period.len();
        }
    }
    steps.push(Beginning { at, request, layout });
    skipped
}

/// Whether the next events make the calls of a period again, which makes these requests and releases no others.
fn repeats(period: &[Event], next: &[Event], first: usize, requests: usize) -> bool {
    period.len() <= next.len()
        && period.iter().zip(next).all(|pair| match pair {
            (&Event::Release(one), &Event::Release(two)) => {
                one as usize >= first && one as usize + requests == two as usize
            }
            (one, two) => one == two,
        })
}
