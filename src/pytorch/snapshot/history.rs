//! The allocator's history of a device, from a snapshot.

use std::collections::HashMap;

use super::Call;
use super::pickle::{Pickle, ValueRef};

#[derive(Debug, Default)]
pub(super) struct History {
    /// Each with the stack of the program that made it.
    pub(super) calls: Vec<(Call, Option<ValueRef>)>,
    /// Bytes that were allocated before the history.
    pub(super) before: u64,
    /// The last request that found no memory.
    pub(super) refused: Option<u64>,
}

/// The device with most requests, and its history.
///
/// # Errors
/// The pickle is not a snapshot, or has no valid history.
pub(super) fn of_busiest_device(pickle: &Pickle) -> Result<(usize, History), String> {
    let traces = pickle.get(pickle.root(), "device_traces").and_then(|traces| pickle.list(traces));
    let traces = traces.ok_or("it is not a memory snapshot: `device_traces` is missing")?;
    let requests = |trace: &ValueRef| {
        let is_request = |entry: &&ValueRef| {
            pickle.get(**entry, "action").and_then(|action| pickle.text(action)) == Some("alloc")
        };
        pickle.list(*trace).unwrap_or_default().iter().filter(is_request).count()
    };
    // The device with most requests, the first of several.
    let device = (0..traces.len()).rev().max_by_key(|&device| requests(&traces[device]));
    let device = device.filter(|&device| requests(&traces[device]) > 0).ok_or(
        "it has no requests: call torch.cuda.memory._record_memory_history() before the model is made",
    )?;
    let history = history(pickle, device, pickle.list(traces[device]).unwrap_or_default())?;
    Ok((device, history))
}

/// The calls of a device's history.
///
/// # Errors
/// An entry has another form, or the history has gaps.
fn history(pickle: &Pickle, device: usize, entries: &[ValueRef]) -> Result<History, String> {
    let mut history = History::default();
    // The live request at each address.
    let mut live: HashMap<i64, usize> = HashMap::new();
    let mut count = 0;
    for (number, &entry) in entries.iter().enumerate() {
        let field = |name| pickle.get(entry, name);
        let missing = |name: &str| format!("entry {number} of its history has no valid `{name}`");
        let integer = |name| field(name).and_then(|value| pickle.integer(value)).ok_or_else(|| missing(name));
        let bytes = || u64::try_from(integer("size")?).map_err(|_| missing("size"));
        let action =
            field("action").and_then(|action| pickle.text(action)).ok_or_else(|| missing("action"))?;
        match action {
            "alloc" => {
                if live.insert(integer("addr")?, count).is_some() {
                    return Err(format!(
                        "entry {number} of its history requests memory in use: record without pauses and skip_actions"
                    ));
                }
                count += 1;
                history.calls.push((Call::Request(bytes()?), field("frames")));
            }
            "free_completed" => match live.remove(&integer("addr")?) {
                Some(request) => history.calls.push((Call::Release(request), field("frames"))),
                None => history.before = history.before.saturating_add(bytes()?),
            },
            "oom" => history.refused = Some(bytes()?),
            // Segments and other marks; requested frees, which precede completed ones.
            _ => {}
        }
    }
    history.before = history.before.saturating_add(live_before(pickle, device, &live));
    Ok(history)
}

/// Bytes of the device's allocated blocks that no request of the history made.
fn live_before(pickle: &Pickle, device: usize, live: &HashMap<i64, usize>) -> u64 {
    let list = |of, name| pickle.get(of, name).and_then(|list| pickle.list(list)).unwrap_or_default();
    let integer = |of, name| pickle.get(of, name).and_then(|value| pickle.integer(value));
    let segments = list(pickle.root(), "segments").iter();
    let own = segments.filter(|segment| integer(**segment, "device") == i64::try_from(device).ok());
    let blocks = own.flat_map(|segment| list(*segment, "blocks"));
    let is_before = |block: &&ValueRef| {
        let state = pickle.get(**block, "state").and_then(|state| pickle.text(state));
        state == Some("active_allocated")
            && integer(**block, "address").is_some_and(|address| !live.contains_key(&address))
    };
    let bytes = blocks.filter(is_before).filter_map(|block| integer(*block, "requested_size"));
    bytes.filter_map(|bytes| u64::try_from(bytes).ok()).fold(0, u64::saturating_add)
}

/// The innermost Python frame of a stack, and the innermost one outside of PyTorch.
pub(super) fn places(pickle: &Pickle, frames: ValueRef) -> Vec<String> {
    let frame = |frame: &ValueRef| {
        let text = |name| pickle.get(*frame, name).and_then(|value| pickle.text(value));
        let line = pickle.integer(pickle.get(*frame, "line")?)?;
        Some((text("filename")?, line, text("name")?)).filter(|(file, ..)| file.ends_with(".py"))
    };
    let is_own =
        |file: &str| !["site-packages/torch/", "dist-packages/torch/"].iter().any(|part| file.contains(part));
    let frames = pickle.list(frames).unwrap_or_default();
    let innermost = frames.iter().find_map(frame);
    let own =
        frames.iter().filter_map(frame).find(|(file, ..)| is_own(file)).filter(|own| Some(*own) != innermost);
    let text = |(file, line, name): (&str, i64, &str)| {
        let mut parts: Vec<&str> = file.rsplitn(4, '/').take(3).collect();
        parts.reverse();
        format!("{name:.100} ({:.200}:{line})", parts.join("/"))
    };
    innermost.into_iter().chain(own).map(text).collect()
}
