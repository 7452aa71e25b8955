//! What the columns of a comparison are, and what stands in them.

use super::entry::{Entry, WAITS};
use super::numbers::{self, Unit, change, percent, rate, ratio};
use super::table::{Column, Line, Table};
use super::text::one_line;
use super::{Basis, Comparison};
use crate::device::{Pool, Role};
use crate::results::{Row, Status};
use crate::units::Count;

/// Nothing to say.
const NONE: &str = "-";

/// Less than this in the host's memory is no choice of a strategy.
const MUCH: u64 = 1 << 20;

pub(super) fn table(comparison: &Comparison) -> Table {
    let entries: Vec<&Entry> = comparison.entries().collect();
    let unit = unit(&entries);
    let columns = Columns { entries: &entries, unit };
    let columns = match comparison.basis {
        Basis::Measured => columns.measured(comparison.speed_unit),
        Basis::Predicted => columns.predicted(),
    };
    let mut headings = Vec::new();
    let mut before = 0;
    for group in &comparison.groups {
        if !group.heading.is_empty() {
            headings.push((before, one_line(&group.heading)));
        }
        before += group.entries.len();
    }
    let line = |entry: &&Entry| Line {
        mark: mark(entry),
        name: one_line(&entry.label),
        note: one_line(&note(entry, comparison.basis)),
    };
    Table {
        name: if comparison.by.is_some() { "point" } else { "strategy" }.into(),
        note: "did".into(),
        lines: entries.iter().map(line).collect(),
        columns,
        headings,
    }
}

/// The unit of the whole table.
fn unit(entries: &[&Entry]) -> Unit {
    Unit::of(entries.iter().filter_map(|entry| entry.memory))
}

struct Columns<'a> {
    entries: &'a [&'a Entry],
    unit: Unit,
}

impl Columns<'_> {
    fn column(&self, title: &str, rank: u8, cell: impl Fn(&Entry) -> Option<String>) -> Column {
        let cells = self.entries.iter().map(|entry| cell(entry).unwrap_or_else(|| NONE.into())).collect();
        Column { title: title.into(), cells, rank }
    }

    fn bytes(&self, title: &str, rank: u8, bytes: impl Fn(&Entry) -> Option<u64>) -> Column {
        self.column(title, rank, |entry| bytes(entry).map(|bytes| self.unit.show(bytes)))
    }

    fn any(&self, abnormal: impl Fn(&Entry) -> bool) -> bool {
        self.entries.iter().any(|entry| abnormal(entry))
    }

    fn memory(&self) -> Column {
        self.bytes(self.unit.name, 0, |entry| entry.memory)
    }

    fn memory_ratio(&self) -> Column {
        self.column("xbase", 2, |entry| entry.relative.memory.map(ratio))
    }

    fn fits(&self) -> Column {
        self.column("fits", 6, |entry| Some(entry.row.fits_micro_batch?.to_string()))
    }

    fn measured(&self, speed_unit: &str) -> Vec<Column> {
        let speed = |entry: &Entry| match entry.status {
            Status::Oom => Some("OOM".into()),
            _ => entry.speed.map(|speed| rate(speed.median)),
        };
        let spread =
            |entry: &Entry| entry.speed.filter(|_| entry.spread_known).map(|speed| percent(speed.relative()));
        let speed_ratio = |entry: &Entry| match entry.relative.speed {
            Some(_) if entry.relative.same_speed && !entry.relative.is_baseline => Some("=".into()),
            speed => speed.map(ratio),
        };
        let loss = |entry: &Entry| entry.relative.loss.filter(|_| !entry.relative.is_baseline).map(change);
        let witness = |entry: &Entry| entry.row.witness_peak_bytes.filter(|_| entry.repeats > 0);
        let mut columns = vec![
            self.memory(),
            self.bytes("card", 7, witness),
            self.memory_ratio(),
            self.column(speed_unit, 1, speed),
            self.column("+-%", 5, spread),
            self.column("xbase", 3, speed_ratio),
            self.column("dloss", 4, loss),
            self.fits(),
        ];
        columns.retain(|column| column.rank <= 3 || column.cells.iter().any(|cell| cell != NONE));
        columns.extend(self.host());
        columns.extend(self.trained());
        columns.extend(self.abnormal());
        columns
    }

    /// What the host's memory holds, where that is more than batches and what a step tells.
    fn host(&self) -> Option<Column> {
        let host = |entry: &Entry| entry.row.host_reserved_peak_bytes;
        let much = |entry: &Entry| host(entry) > Some(MUCH).max(entry.memory.map(|bytes| bytes / 10));
        self.any(much).then(|| self.bytes("host", 8, host))
    }

    /// How many parameters are trained, where somewhere it is not all of them.
    fn trained(&self) -> Option<Column> {
        let frozen =
            |entry: &Entry| entry.row.trainable_parameters.is_some_and(|n| Some(n) != entry.row.parameters);
        let shown = |entry: &Entry| entry.row.trainable_parameters.map(|n| Count(n).to_string());
        self.any(frozen).then(|| self.column("trained", 13, shown))
    }

    /// Columns that are there only when something is as it should not be.
    fn abnormal(&self) -> Vec<Column> {
        let mut columns = Vec::new();
        if self.any(|entry| entry.wait.is_some_and(|share| share > WAITS)) {
            columns.push(self.column("wait%", 8, |entry| entry.wait.map(percent)));
        }
        if self.any(|entry| entry.start_above_training() || entry.starts_without_parameters()) {
            columns.push(self.bytes("start", 9, |entry| entry.row.start_peak_bytes));
        }
        if self.any(|entry| entry.relative.other_start_time) {
            let first = |entry: &Entry| entry.row.first_step_ms.map(|ms| format!("{ms:.0}"));
            columns.push(self.column("first ms", 14, first));
        }
        if self.any(Entry::evaluation_above_training) {
            columns.push(self.bytes("eval", 10, |entry| entry.row.evaluation_peak_bytes));
        }
        if self.any(Entry::prediction_missed) {
            columns.push(self.bytes("pred", 11, |entry| entry.row.predicted_peak_bytes));
        }
        if self.any(|entry| entry.witness_off().is_some()) {
            let off = |entry: &Entry| entry.witness_off().map(|off| self.unit.show_change(off));
            columns.push(self.column("off", 12, off));
        }
        columns
    }

    fn predicted(&self) -> Vec<Column> {
        // Where nothing is cast there is no such column.
        let cast = |entry: &Entry| entry.row.live[Role::Cast].filter(|bytes| *bytes > 0);
        let shown = [Role::Parameter, Role::Cast, Role::Gradient, Role::Optimizer, Role::Activation];
        let other = |entry: &Entry| {
            let parts = entry.row.live.iter().filter(|(role, _)| !shown.contains(role));
            parts.filter_map(|(_, bytes)| bytes).reduce(u64::saturating_add)
        };
        let of = |role: Role| move |entry: &Entry| entry.row.live[role];
        let mut columns = vec![
            self.memory(),
            self.memory_ratio(),
            self.bytes("param", 7, of(Role::Parameter)),
            self.bytes("cast", 8, cast),
            self.bytes("grad", 9, of(Role::Gradient)),
            self.bytes("opt", 10, of(Role::Optimizer)),
            self.bytes("act", 5, of(Role::Activation)),
            self.bytes("other", 11, other),
            self.bytes("start", 12, |entry| entry.row.start_peak_bytes),
            self.fits(),
        ];
        columns.retain(|column| column.rank <= 2 || column.cells.iter().any(|cell| cell != NONE));
        columns.extend(self.host());
        columns.extend(self.trained());
        columns
    }
}

/// `*` on the front, `!` a key without effect, `~` noisy, `x` no result to use, `-` skipped.
pub(super) fn mark(entry: &Entry) -> String {
    match entry.status {
        Status::Ok => {}
        Status::Skipped => return "-".into(),
        _ => return "x".into(),
    }
    let marks =
        [(entry.relative.pareto, '*'), (!entry.row.no_effect.is_empty(), '!'), (entry.is_noisy(), '~')];
    marks.into_iter().filter(|(set, _)| *set).map(|(_, mark)| mark).collect()
}

/// What a run did, most important first.
fn note(entry: &Entry, basis: Basis) -> String {
    let row = &entry.row;
    let mut parts: Vec<String> = Vec::new();
    let named =
        |what: &str| if row.message.is_empty() { what.into() } else { format!("{what}: {}", row.message) };
    match entry.status {
        Status::Ok => {}
        Status::Oom => parts.push(out_of_memory(row)),
        Status::Skipped => parts.push(named("SKIPPED")),
        Status::Timeout => parts.push(named("TIMEOUT")),
        Status::Failed => parts.push(named("FAILED")),
        Status::Interrupted => parts.push(named("INTERRUPTED")),
        Status::Diverged => parts.push(named("DIVERGED")),
    }
    if let Some(owner) = &entry.relative.same_as {
        parts.push(format!("same as {owner}"));
    }
    if !row.no_effect.is_empty() {
        parts.push(format!("NO EFFECT: {}", entry.no_effect().join(", ")));
    }
    if let Some(share) = entry.lost_updates() {
        parts.push(format!("UPDATES LOST: {}% of weights stayed as they were", percent(share)));
    }
    if row.emulated && entry.relative.same_as.is_none() {
        parts.push("emulated".into());
    }
    if entry.is_noisy() && basis == Basis::Measured {
        parts.push("NOISY".into());
    }
    if entry.lost > 0 {
        parts.push(format!("{} of {} repeats lost", entry.lost, entry.lost + entry.repeats));
    }
    if let Some(steps) = row.steps_until_oom.filter(|_| entry.status != Status::Oom) {
        parts.push(format!("room for {}", self::steps(steps)));
    }
    if !row.receipt.is_empty() && entry.relative.same_as.is_none() {
        parts.push(row.receipt.clone());
    }
    parts.join("; ")
}

/// `2.1 GiB short`, or `2.1 GiB of host memory short`: what the limit lacks that was passed.
pub(super) fn short(row: &Row) -> Option<String> {
    let is_of_device = row.oom_pool.as_ref().is_none_or(|pool| pool == Pool::Device.name());
    let of = if is_of_device { "" } else { " of host memory" };
    row.oom_short_bytes.map(|bytes| format!("{}{of} short", numbers::size(bytes)))
}

/// `1 step`, `40 steps`
pub(super) fn steps(count: u64) -> String {
    format!("{count} {}", if count == 1 { "step" } else { "steps" })
}

/// `2.1 GiB short: logits, forward`, or `after 40 steps 2.1 GiB short: logits, forward`
fn out_of_memory(row: &Row) -> String {
    let after = row.steps_until_oom.map(|count| format!("after {} ", steps(count)));
    after.unwrap_or_default() + &what_is_short(row)
}

fn what_is_short(row: &Row) -> String {
    let short = short(row);
    let what = row.oom_value.as_ref().or(row.oom_operation.as_ref());
    let place: Vec<&str> = what.into_iter().chain(&row.oom_phase).map(String::as_str).collect();
    match (short, place.join(", ")) {
        (Some(short), place) if place.is_empty() => short,
        (Some(short), place) => format!("{short}: {place}"),
        (None, place) if !place.is_empty() => format!("out of memory: {place}"),
        _ if !row.message.is_empty() => row.message.clone(),
        _ => "out of memory".into(),
    }
}
