//! PyTorch's memory snapshots (`torch.cuda.memory._dump_snapshot`), beside a predicted sequence of requests.

mod history;
mod pickle;
mod pickle_writer;
mod predicted;

use std::collections::BTreeMap;

use crate::sequence::{Event, Phase, Purpose, Sequence};
use history::{History, places};
use pickle::Pickle;

pub use predicted::predicted_snapshot;

/// The least equal requests in a row by which a history is aligned with a prediction.
const ALIGNED: usize = 16;

/// The allocator's history on one device.
#[derive(Debug)]
pub struct Snapshot {
    pickle: Pickle,
    device: usize,
    history: History,
}

/// A call of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// A request of this many bytes. Requests are numbered from 0.
    Request(u64),
    /// The release of the request with this number.
    Release(usize),
}

/// A snapshot that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SnapshotError(String);

/// A history beside a prediction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotComparison {
    /// The requests of the history.
    pub requests: usize,
    /// The number of the predicted request with which the history begins.
    pub begins: usize,
    /// The phase and step of that request.
    pub begins_in: (Phase, usize),
    /// Recorded requests before the first difference.
    pub equal: usize,
    /// `None` if all calls up to the end of the shorter one are equal.
    pub difference: Option<SnapshotDifference>,
    /// Requested bytes at the recorded peak and at the predicted one, by purpose. Requests from the first difference on have
    /// no known purpose.
    pub at_peak: Vec<(Purpose, [u64; 2])>,
    pub unknown_at_peak: u64,
    /// Bytes that were allocated before the history.
    pub before: u64,
    /// The last request that found no memory.
    pub refused: Option<u64>,
}

/// The first call that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotDifference {
    /// `None`: it does not release what was predicted to be released.
    pub recorded: Option<Call>,
    /// The operation and the user's line that made the recorded call, as far as the snapshot holds stacks.
    pub places: Vec<String>,
    /// `None`: no release.
    pub predicted: Option<Call>,
    /// Bytes of the released request, if one of the calls is a release. Never both are.
    pub released: u64,
    /// Of the request that is predicted or released.
    pub purpose: Purpose,
    pub phase: Phase,
    pub step: usize,
}

impl Snapshot {
    /// Reads the file's bytes: the history of the device with most requests.
    ///
    /// # Errors
    /// The file is not a pickle of plain data, not a snapshot, or has no history.
    pub fn read(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
        let pickle = Pickle::read(bytes).map_err(SnapshotError)?;
        let (device, history) = history::of_busiest_device(&pickle).map_err(SnapshotError)?;
        Ok(Snapshot { device, history, pickle })
    }

    pub fn device(&self) -> usize {
        self.device
    }

    /// Compares the history with a prediction, from the predicted request on with which it begins.
    pub fn compare(&self, predicted: &Sequence) -> SnapshotComparison {
        let History { calls, before, refused } = &self.history;
        let recorded: Vec<Call> = calls.iter().map(|(call, _)| *call).collect();
        let expected = PredictedCalls::of(predicted);
        let requests = requested(&recorded);
        let begins = if *before > 0 { begin(&requests, &requested(&expected.calls)) } else { 0 };
        let (expected_calls, events) = expected.from(begins);
        let (equal, differs) = first_difference(&runs(&recorded), &runs(&expected_calls));
        let purpose = |request: usize| predicted.purpose(begins + request);
        let difference = differs.map(|Differing { recorded, predicted: call }| {
            let release = |call: Option<(Call, usize)>| match call {
                Some((Call::Release(request), _)) => Some(request),
                _ => None,
            };
            // Either side has made all requests that the other releases.
            let released = release(recorded).or(release(call)).map_or(0, |request| requests[request]);
            let known = call.or(recorded).map_or(Call::Release(0), |(call, _)| call);
            // A call that only the history has follows the predicted calls before it.
            let event = call.and_then(|(_, theirs)| events.get(theirs)).or(events.last());
            let event = event.copied().unwrap_or_default();
            SnapshotDifference {
                recorded: recorded.map(|(call, _)| call),
                places: recorded
                    .and_then(|(_, own)| calls[own].1)
                    .map_or_else(Vec::new, |frames| places(&self.pickle, frames)),
                predicted: call.map(|(call, _)| call),
                released,
                purpose: match known {
                    Call::Request(_) => purpose(equal),
                    Call::Release(request) => purpose(request),
                },
                phase: predicted.phase_of(event),
                step: predicted.step_of(event),
            }
        });
        let mut at_peak: Vec<(Purpose, [u64; 2])> = Purpose::ALL.map(|purpose| (purpose, [0; 2])).to_vec();
        let mut unknown_at_peak = 0;
        for (request, bytes) in live_at_peak(recorded.iter().copied()) {
            match request < equal {
                true => at_peak[purpose(request) as usize].1[0] += bytes,
                false => unknown_at_peak = u64::saturating_add(unknown_at_peak, bytes),
            }
        }
        for (request, bytes) in live_at_peak(expected.calls.iter().copied()) {
            at_peak[predicted.purpose(request) as usize].1[1] += bytes;
        }
        let first = events.first().copied().unwrap_or_default();
        SnapshotComparison {
            requests: requests.len(),
            begins,
            begins_in: (predicted.phase_of(first), predicted.step_of(first)),
            equal,
            difference,
            at_peak,
            unknown_at_peak,
            before: *before,
            refused: *refused,
        }
    }
}

/// The calls of a prediction, each with the index of its event.
struct PredictedCalls {
    calls: Vec<Call>,
    events: Vec<usize>,
}

impl PredictedCalls {
    fn of(sequence: &Sequence) -> PredictedCalls {
        let calls = sequence.events.iter().enumerate().filter_map(|(index, event)| match *event {
            Event::Request(bytes) => Some((Call::Request(bytes), index)),
            Event::Release(request) => Some((Call::Release(request as usize), index)),
            Event::Phase(_) | Event::Step | Event::EmptyCache | Event::Stream(_) => None,
        });
        let (calls, events) = calls.unzip();
        PredictedCalls { calls, events }
    }

    /// The calls from a request on, which becomes number 0, and their events. Releases of earlier requests are left out.
    fn from(&self, first: usize) -> (Vec<Call>, Vec<usize>) {
        let mut count = 0;
        let mut from = Vec::new();
        for (&call, &event) in self.calls.iter().zip(&self.events) {
            match call {
                Call::Request(_) => {
                    count += 1;
                    from.extend((count > first).then_some((call, event)));
                }
                Call::Release(request) if count > first && request >= first => {
                    from.push((Call::Release(request - first), event));
                }
                Call::Release(_) => {}
            }
        }
        from.into_iter().unzip()
    }
}

/// The number of the predicted request with which a history begins: that of most equal requests in a row; 0 if they are
/// few.
fn begin(recorded: &[u64], predicted: &[u64]) -> usize {
    let equal = |first: usize| predicted[first..].iter().zip(recorded).take_while(|(a, b)| a == b).count();
    // The first of several: steps repeat.
    let best = (0..predicted.len()).rev().map(|first| (equal(first), first)).max_by_key(|(equal, _)| *equal);
    best.filter(|(equal, _)| *equal >= ALIGNED.min(recorded.len())).map_or(0, |(_, first)| first)
}

/// The bytes of each request.
fn requested(calls: &[Call]) -> Vec<u64> {
    let bytes = |call: &Call| match call {
        Call::Request(bytes) => Some(*bytes),
        Call::Release(_) => None,
    };
    calls.iter().filter_map(bytes).collect()
}

/// A request, or successive releases, whose order does not matter. Each with the index of its call.
enum Run {
    Request(u64, usize),
    Releases(BTreeMap<usize, usize>),
}

fn runs(calls: &[Call]) -> Vec<Run> {
    let mut runs = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        match (*call, runs.last_mut()) {
            (Call::Request(bytes), _) => runs.push(Run::Request(bytes, index)),
            (Call::Release(request), Some(Run::Releases(releases))) => drop(releases.insert(request, index)),
            (Call::Release(request), _) => runs.push(Run::Releases(BTreeMap::from([(request, index)]))),
        }
    }
    runs
}

/// The first call that differs, on either side, with its index; `None`: the other side has no such release.
struct Differing {
    recorded: Option<(Call, usize)>,
    predicted: Option<(Call, usize)>,
}

/// The number of equal requests, and the first difference before either side ends.
fn first_difference(recorded: &[Run], predicted: &[Run]) -> (usize, Option<Differing>) {
    let mut equal = 0;
    let first = |run: &Run| match run {
        Run::Request(bytes, index) => Some((Call::Request(*bytes), *index)),
        Run::Releases(releases) => {
            releases.first_key_value().map(|(request, index)| (Call::Release(*request), *index))
        }
    };
    for (number, pair) in recorded.iter().zip(predicted).enumerate() {
        let differing = match pair {
            (Run::Request(a, _), Run::Request(b, _)) if a == b => {
                equal += 1;
                continue;
            }
            (Run::Releases(own), Run::Releases(theirs)) => {
                let lacks = |of: &BTreeMap<usize, usize>, other: &BTreeMap<usize, usize>| {
                    let lacking = other.iter().find(|(request, _)| !of.contains_key(request));
                    lacking.map(|(request, index)| (Call::Release(*request), *index))
                };
                // The side that ends may have more releases to come.
                let [own_ends, theirs_end] =
                    [recorded.len(), predicted.len()].map(|length| number + 1 == length);
                let missing = lacks(own, theirs).filter(|_| !own_ends);
                let early = lacks(theirs, own).filter(|_| !theirs_end);
                match (missing, early) {
                    (None, None) => continue,
                    (None, early) => Differing { recorded: early, predicted: None },
                    (missing, _) => Differing { recorded: None, predicted: missing },
                }
            }
            (own, theirs) => Differing { recorded: first(own), predicted: first(theirs) },
        };
        return (equal, Some(differing));
    }
    (equal, None)
}

/// The live requests with their bytes at the largest sum.
fn live_at_peak(calls: impl Iterator<Item = Call> + Clone) -> Vec<(usize, u64)> {
    let mut bytes = Vec::new();
    let (mut live, mut peak, mut at) = (0, 0, 0);
    for (index, call) in calls.clone().enumerate() {
        match call {
            Call::Request(requested) => {
                bytes.push(requested);
                live = u64::saturating_add(live, requested);
            }
            Call::Release(request) => live = live.saturating_sub(bytes[request]),
        }
        if live > peak {
            (peak, at) = (live, index + 1);
        }
    }
    let mut alive = vec![false; bytes.len()];
    let mut count = 0;
    for call in calls.take(at) {
        match call {
            Call::Request(_) => {
                alive[count] = true;
                count += 1;
            }
            Call::Release(request) => alive[request] = false,
        }
    }
    (0..bytes.len()).filter(|&request| alive[request]).map(|request| (request, bytes[request])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of two requests and their releases, twice, after a parameter.
    fn predicted() -> Sequence {
        let mut sequence = Sequence::default();
        sequence.request(100, Purpose::Parameter);
        for bytes in [20, 30] {
            sequence.mark(Event::Step);
            sequence.mark(Event::Phase(Phase::Forward));
            let one = sequence.request(bytes, Purpose::Activation);
            let two = sequence.request(7, Purpose::Workspace);
            sequence.release(one);
            sequence.release(two);
        }
        sequence
    }

    fn compared(before: u64, calls: &[Call]) -> SnapshotComparison {
        let pickle = Pickle::read(b"\x80\x02N.").unwrap();
        let calls = calls.iter().map(|call| (*call, None)).collect();
        let history = History { calls, before, refused: None };
        Snapshot { pickle, device: 0, history }.compare(&predicted())
    }

    use Call::{Release, Request};

    #[test]
    fn order_of_successive_releases_is_no_difference() {
        let calls = [Request(100), Request(20), Request(7), Release(2), Release(1), Request(30)];
        let found = compared(0, &calls);
        assert_eq!((found.begins, found.equal, &found.difference), (0, 4, &None));
        assert_eq!(found.unknown_at_peak, 0);
        // The second step is not in the history up to its peak.
        assert_eq!(found.at_peak[Purpose::Parameter as usize].1, [100, 100]);
        assert_eq!(found.at_peak[Purpose::Activation as usize].1, [30, 30]);
        assert_eq!(found.at_peak[Purpose::Workspace as usize].1, [0, 7]);
    }

    #[test]
    fn history_may_begin_in_a_later_step() {
        let found = compared(100, &[Request(30), Request(7), Release(0), Release(1)]);
        assert_eq!((found.begins, found.begins_in, found.equal), (3, (Phase::Forward, 2), 2));
        assert_eq!(found.difference, None);
    }

    #[test]
    fn first_difference_is_found_with_its_purpose_and_step() {
        let calls = [Request(100), Request(20), Request(7), Release(1), Release(2), Request(31), Request(7)];
        let found = compared(0, &calls);
        let difference = found.difference.unwrap();
        assert_eq!((difference.recorded, difference.predicted), (Some(Request(31)), Some(Request(30))));
        assert_eq!((difference.purpose, difference.step), (Purpose::Activation, 2));
        assert_eq!((found.equal, found.unknown_at_peak), (3, 38));
    }

    /// Request 2 outlives its predicted release; a history may end within releases.
    #[test]
    fn missing_release_is_named() {
        let all = [Request(100), Request(20), Request(7), Release(1), Request(30)];
        let difference = compared(0, &all).difference.unwrap();
        assert_eq!((difference.recorded, difference.predicted), (None, Some(Release(2))));
        assert_eq!((difference.released, difference.purpose), (7, Purpose::Workspace));
        assert_eq!(compared(0, &all[..4]).difference, None);
    }

    #[test]
    fn release_in_place_of_a_request_has_its_own_bytes() {
        let difference = compared(0, &[Request(100), Release(0), Request(20)]).difference.unwrap();
        assert_eq!((difference.recorded, difference.predicted), (Some(Release(0)), Some(Request(20))));
        assert_eq!((difference.released, difference.purpose), (100, Purpose::Activation));
    }

    /// Without memory from before, the history begins with the program.
    #[test]
    fn other_first_request_is_a_difference() {
        let found = compared(0, &[Request(30), Request(7)]);
        assert_eq!((found.begins, found.equal), (0, 0));
        assert_eq!(found.difference.unwrap().predicted, Some(Request(100)));
    }
}
