//! The mark before a row's name, and the effects after its numbers.

use std::collections::BTreeSet;

use crate::entry::TableEntry;
use crate::group::TableGroup;
use crate::numbers::{percent, size};
use device::Pool;
use results::{Row, Status};

/// `*` on the Pareto front, `!` a key without effect, `~` noisy or disturbed, `r` fits by retrying, `x` no usable result,
/// `-` skipped or not predicted.
pub(crate) fn mark(entry: &TableEntry) -> String {
    match entry.status {
        Status::Ok => {}
        Status::Skipped => return "-".into(),
        _ => return "x".into(),
    }
    let marks = [
        (entry.relative.pareto, '*'),
        (!entry.row.no_effect.is_empty(), '!'),
        (entry.is_doubtful(), '~'),
        (entry.retries, 'r'),
    ];
    marks.into_iter().filter(|(set, _)| *set).map(|(_, mark)| mark).collect()
}

/// The status of a run without a result, with its reason; the first failed request of one out of memory.
pub(crate) fn status(entry: &TableEntry) -> Option<String> {
    let row = &entry.row;
    let with_message =
        |what: &str| if row.message.is_empty() { what.into() } else { format!("{what}: {}", row.message) };
    match entry.status {
        Status::Ok => None,
        Status::Oom => Some(out_of_memory(row)),
        Status::Skipped if entry.is_not_predicted() => Some(with_message("NOT PREDICTED")),
        Status::Skipped => Some(with_message("SKIPPED")),
        Status::Timeout => Some(with_message("TIMEOUT")),
        Status::Failed => Some(with_message("FAILED")),
        Status::Interrupted => Some(with_message("INTERRUPTED")),
        Status::Diverged => Some(with_message("DIVERGED")),
    }
}

/// Status, warnings and effects of a run, most important first.
pub(super) fn note(entry: &TableEntry, group: &TableGroup, dtypes: &BTreeSet<Dtypes>) -> String {
    let row = &entry.row;
    let mut parts: Vec<String> = status(entry).into_iter().collect();
    if let Some(owner) = &entry.relative.same_as {
        parts.push(format!("same as {owner}"));
    }
    if !row.no_effect.is_empty() {
        parts.push(format!("NO EFFECT: {}", entry.no_effect().join(", ")));
    }
    if let Some(share) = entry.lost_updates() {
        parts.push(format!("UPDATES LOST: {}% of weights unchanged", percent(share)));
    }
    if row.emulated && entry.relative.same_as.is_none() {
        parts.push("emulated".into());
    }
    if entry.is_noisy() {
        parts.push("NOISY".into());
    }
    parts.extend(entry.crowded().map(|share| format!("BUSY {}%", percent(share))));
    parts.extend(entry.clock_changed().map(|change| format!("CLOCK {}%", percent(change))));
    if entry.relative.outliers > 0 {
        parts.push(format!("{} OUTLYING", entry.relative.outliers));
    }
    if entry.lost > 0 {
        parts.push(format!("{} of {} repeats lost", entry.lost, entry.lost + entry.repeats));
    }
    if let Some(steps) = row.steps_until_oom.filter(|_| entry.status != Status::Oom) {
        parts.push(format!("room for {}", self::steps(steps)));
    }
    parts.extend(differing_dtypes(entry, group, dtypes));
    if !row.effects.is_empty() && entry.relative.same_as.is_none() {
        parts.push(row.effects.clone());
    }
    parts.join("; ")
}

/// The dtypes of the residual stream and of embedding tables; empty if unknown.
type Dtypes<'a> = [&'a str; 2];

fn dtypes(entry: &TableEntry) -> Dtypes<'_> {
    [&entry.row.stream_dtype, &entry.row.table_dtype]
}

/// The distinct dtypes of a group's entries, as far as both are known.
pub(super) fn group_dtypes(group: &TableGroup) -> BTreeSet<Dtypes<'_>> {
    group.entries.iter().map(dtypes).filter(|dtypes| !dtypes.contains(&"")).collect()
}

/// The dtypes of residual stream and embedding tables, as far as strategies of the group differ in them:
/// `bf16 stream, fp32 tables`. Shown for the baseline, rows that differ from it, and rows that train a part, whose
/// frozen base may be stored otherwise.
fn differing_dtypes(entry: &TableEntry, group: &TableGroup, all: &BTreeSet<Dtypes>) -> Option<String> {
    let own = dtypes(entry);
    let as_baseline = group.base().is_some_and(|base| dtypes(base) == own);
    let trains_all = entry.row.trainable_parameters == entry.row.parameters;
    if own[0].is_empty() || (as_baseline && trains_all && !entry.relative.is_baseline) {
        return None;
    }
    let differs = [0, 1].map(|at| all.iter().any(|other| other[at] != own[at]));
    let [stream, tables] = own;
    match differs {
        [true, true] if stream == tables => Some(format!("{stream} stream and tables")),
        [true, true] => Some(format!("{stream} stream, {tables} tables")),
        [true, false] => Some(format!("{stream} stream")),
        [false, true] => Some(format!("{tables} tables")),
        [false, false] => None,
    }
}

/// Bytes missing at the failed allocation: `2.1 GiB short`, or `2.1 GiB of host memory short`.
pub(crate) fn short(row: &Row) -> Option<String> {
    let on_device = row.oom_pool.as_ref().is_none_or(|pool| pool == Pool::Device.name());
    let of = if on_device { "" } else { " of host memory" };
    row.oom_short_bytes.map(|bytes| format!("{}{of} short", size(bytes)))
}

/// `1 step`, `40 steps`
pub(crate) fn steps(count: u64) -> String {
    format!("{count} {}", if count == 1 { "step" } else { "steps" })
}

/// `step 1: 2.1 GiB short: logits, forward`; if steps leak memory, `after 40 steps 2.1 GiB short: logits, forward`
fn out_of_memory(row: &Row) -> String {
    let when = match (row.steps_until_oom, row.oom_step) {
        (Some(count), _) => format!("after {} ", steps(count)),
        (None, Some(step)) => format!("step {step}: "),
        (None, None) => String::new(),
    };
    when + &failed_allocation(row)
}

fn failed_allocation(row: &Row) -> String {
    let short = short(row);
    let what = row.oom_value.as_ref().or(row.oom_operation.as_ref());
    let value_and_phase: Vec<&str> = what.into_iter().chain(&row.oom_phase).map(String::as_str).collect();
    match (short, value_and_phase.join(", ")) {
        (Some(short), detail) if detail.is_empty() => short,
        (Some(short), detail) => format!("{short}: {detail}"),
        (None, detail) if !detail.is_empty() => format!("out of memory: {detail}"),
        _ if !row.message.is_empty() => row.message.clone(),
        _ => "out of memory".into(),
    }
}
