//! PyTorch's memory snapshots (`torch.cuda.memory._dump_snapshot`), beside a predicted sequence of requests.

mod pickle;

use std::collections::HashMap;

use crate::sequence::{Event, Phase, Purpose, Sequence};
use pickle::{Pickle, ValueRef};

/// The requests by which a history is aligned with a prediction.
const ALIGNED: usize = 64;

/// The allocator's history on one device.
#[derive(Debug)]
pub struct Snapshot {
    pickle: Pickle,
    device: usize,
    /// Each with the stack of the program that made it.
    calls: Vec<(Call, Option<ValueRef>)>,
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
    /// `None` if either of the two ends without one.
    pub difference: Option<SnapshotDifference>,
    /// Requested bytes at the recorded peak and at the predicted one, by purpose. Requests from the first difference on have
    /// no known purpose.
    pub at_peak: Vec<(Purpose, [u64; 2])>,
    pub unknown_at_peak: u64,
}

/// The first call that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotDifference {
    pub recorded: Call,
    /// The operation and the user's line that made the recorded call, as far as the snapshot holds stacks.
    pub places: Vec<String>,
    pub predicted: Call,
    /// Of the request that the predicted call makes or releases.
    pub purpose: Purpose,
    pub phase: Phase,
    pub step: usize,
}

impl Snapshot {
    /// Reads the file's bytes: the history of the first device that has one.
    ///
    /// # Errors
    /// The file is no pickle of data alone, no snapshot, or has no history.
    pub fn read(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
        let pickle = Pickle::read(bytes).map_err(SnapshotError)?;
        let error = |text: &str| SnapshotError(text.to_owned());
        let traces = pickle.get(pickle.root(), "device_traces").and_then(|traces| pickle.list(traces));
        let traces =
            traces.ok_or_else(|| error("it is not a memory snapshot: `device_traces` is missing"))?;
        let is_recorded = |trace: &ValueRef| pickle.list(*trace).is_some_and(|trace| !trace.is_empty());
        let device = traces.iter().position(is_recorded).ok_or_else(|| {
            error(
                "it has no history: call torch.cuda.memory._record_memory_history() before the model is made",
            )
        })?;
        let entries = pickle.list(traces[device]).unwrap_or_default();
        let calls =
            calls(&pickle, entries).ok_or_else(|| error("its history has an entry of another form"))?;
        if calls.is_empty() {
            return Err(error("its history has no requests"));
        }
        Ok(Snapshot { device, calls, pickle })
    }

    pub fn device(&self) -> usize {
        self.device
    }

    /// Compares the history with a prediction, from the predicted request on with which it begins.
    pub fn compare(&self, predicted: &Sequence) -> SnapshotComparison {
        let recorded: Vec<Call> = self.calls.iter().map(|(call, _)| *call).collect();
        let expected = PredictedCalls::of(predicted);
        let begins = begin(&requests(&recorded), &requests(&expected.calls));
        let (expected_calls, events) = expected.from(begins);
        let recorded = sorted_releases(&recorded);
        let expected_calls = sorted_releases(&expected_calls);
        let differs = recorded.iter().zip(&expected_calls).position(|((a, _), (b, _))| a != b);
        let before = differs.unwrap_or_else(|| recorded.len().min(expected_calls.len()));
        let equal = requests_in(recorded[..before].iter().map(|(call, _)| *call));
        let purpose = |request: usize| predicted.purpose(begins + request);
        let difference = differs.map(|at| {
            let ((recorded, own), (call, theirs)) = (recorded[at], expected_calls[at]);
            let event = events[theirs];
            SnapshotDifference {
                recorded,
                places: self.calls[own].1.map(|frames| places(&self.pickle, frames)).unwrap_or_default(),
                predicted: call,
                purpose: match call {
                    Call::Request(_) => {
                        purpose(requests_in(expected_calls[..at].iter().map(|(call, _)| *call)))
                    }
                    Call::Release(request) => purpose(request),
                },
                phase: predicted.phase_of(event),
                step: predicted.step_of(event),
            }
        });
        let mut at_peak: Vec<(Purpose, [u64; 2])> = Purpose::ALL.map(|purpose| (purpose, [0; 2])).to_vec();
        let mut unknown_at_peak = 0;
        for (request, bytes) in live_at_peak(self.calls.iter().map(|(call, _)| *call)) {
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
            requests: requests_in(self.calls.iter().map(|(call, _)| *call)),
            begins,
            begins_in: (predicted.phase_of(first), predicted.step_of(first)),
            equal,
            difference,
            at_peak,
            unknown_at_peak,
        }
    }
}

/// The requests and releases of a history. Releases of requests from before it are left out. `None` if an entry has another
/// form.
fn calls(pickle: &Pickle, entries: &[ValueRef]) -> Option<Vec<(Call, Option<ValueRef>)>> {
    let mut calls = Vec::new();
    // The live request at each address.
    let mut live: HashMap<i64, usize> = HashMap::new();
    let mut count = 0;
    for &entry in entries {
        let field = |name| pickle.get(entry, name);
        let frames = field("frames");
        let address = field("addr").and_then(|address| pickle.integer(address));
        match pickle.text(field("action")?)? {
            "alloc" => {
                let bytes = u64::try_from(pickle.integer(field("size")?)?).ok()?;
                live.insert(address?, count);
                count += 1;
                calls.push((Call::Request(bytes), frames));
            }
            "free_completed" => {
                let released = live.remove(&address?);
                calls.extend(released.map(|request| (Call::Release(request), frames)));
            }
            // Segments, out of memory, other marks, and requested frees, which precede completed ones.
            _ => {}
        }
    }
    Some(calls)
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
            Event::Phase(_) | Event::Step | Event::EmptyCache => None,
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

/// The number of the predicted request with which a history begins: that of most equal requests in a row.
fn begin(recorded: &[u64], predicted: &[u64]) -> usize {
    let equal = |first: usize| {
        let pairs = predicted[first..].iter().zip(recorded).take(ALIGNED);
        pairs.take_while(|(a, b)| a == b).count()
    };
    // The first of several: steps repeat.
    (0..predicted.len()).rev().max_by_key(|&first| equal(first)).unwrap_or(0)
}

fn requests(calls: &[Call]) -> Vec<u64> {
    let bytes = |call: &Call| match call {
        Call::Request(bytes) => Some(*bytes),
        Call::Release(_) => None,
    };
    calls.iter().filter_map(bytes).collect()
}

fn requests_in(calls: impl Iterator<Item = Call>) -> usize {
    calls.filter(|call| matches!(call, Call::Request(_))).count()
}

/// Calls with their indices; successive releases in order of their numbers, since the allocator's state does not depend on
/// their order.
fn sorted_releases(calls: &[Call]) -> Vec<(Call, usize)> {
    let mut sorted: Vec<(Call, usize)> = calls.iter().copied().zip(0..).collect();
    let is_release = |(call, _): &(Call, usize)| matches!(call, Call::Release(_));
    sorted.chunk_by_mut(|a, b| is_release(a) && is_release(b)).for_each(<[_]>::sort_unstable);
    sorted
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

/// The innermost Python frame of a stack, and the innermost one outside of PyTorch.
fn places(pickle: &Pickle, frames: ValueRef) -> Vec<String> {
    let frame = |frame: &ValueRef| {
        let field = |name| pickle.get(*frame, name);
        let file = pickle.text(field("filename")?)?;
        let line = pickle.integer(field("line")?)?;
        let name = pickle.text(field("name")?)?;
        Some((file.to_owned(), line, name.to_owned())).filter(|(file, ..)| file.ends_with(".py"))
    };
    let frames: Vec<_> = pickle.list(frames).unwrap_or_default().iter().filter_map(frame).collect();
    let own = frames.iter().position(|(file, ..)| !file.contains("/torch/"));
    let mut places: Vec<usize> = (!frames.is_empty()).then_some(0).into_iter().chain(own).collect();
    places.dedup();
    let text = |place: usize| {
        let (file, line, name) = &frames[place];
        let file = file.rsplitn(4, '/').take(3).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>();
        format!("{name} ({}:{line})", file.join("/"))
    };
    places.into_iter().map(text).collect()
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

    fn compared(calls: &[Call]) -> SnapshotComparison {
        let pickle = Pickle::read(b"\x80\x02N.").unwrap();
        let calls = calls.iter().map(|call| (*call, None)).collect();
        Snapshot { pickle, device: 0, calls }.compare(&predicted())
    }

    use Call::{Release, Request};

    #[test]
    fn order_of_successive_releases_is_no_difference() {
        let calls = [Request(100), Request(20), Request(7), Release(2), Release(1), Request(30)];
        let found = compared(&calls);
        assert_eq!((found.begins, found.equal, &found.difference), (0, 4, &None));
        assert_eq!(found.unknown_at_peak, 0);
        // The second step is not in the history up to its peak.
        assert_eq!(found.at_peak[Purpose::Parameter as usize].1, [100, 100]);
        assert_eq!(found.at_peak[Purpose::Activation as usize].1, [30, 30]);
        assert_eq!(found.at_peak[Purpose::Workspace as usize].1, [0, 7]);
    }

    #[test]
    fn history_may_begin_in_a_later_step() {
        let found = compared(&[Request(30), Request(7), Release(0), Release(1)]);
        assert_eq!((found.begins, found.begins_in, found.equal), (3, (Phase::Forward, 2), 2));
        assert_eq!(found.difference, None);
    }

    #[test]
    fn first_difference_is_found_with_its_purpose_and_step() {
        let calls = [Request(100), Request(20), Request(7), Release(1), Release(2), Request(31), Request(7)];
        let found = compared(&calls);
        let difference = found.difference.unwrap();
        assert_eq!((difference.recorded, difference.predicted), (Request(31), Request(30)));
        assert_eq!((difference.purpose, difference.step), (Purpose::Activation, 2));
        assert_eq!((found.equal, found.unknown_at_peak), (3, 38));
    }
}
