//! The legend of the marks and columns that occur in a table.

use super::columns::mark;
use super::numbers::{list, percent};
use super::text::one_line;
use super::{Basis, Comparison, columns, entry};
use results::Status;

/// One explanation per part. `dropped`: titles of columns that did not fit; `joined`: of those that joined `other`.
pub(super) fn parts(comparison: &Comparison, dropped: &[String], joined: &[String]) -> Vec<String> {
    let mut parts = marks(comparison);
    parts.extend(titles(comparison, &[dropped, joined].concat()));
    if !joined.is_empty() {
        parts.push(format!("other: with {}", list(joined)));
    }
    if !dropped.is_empty() {
        parts.push(format!("not shown: {} (see --format csv)", dropped.join(", ")));
    }
    if comparison.left_out > 0 {
        let by = one_line(comparison.by.as_deref().unwrap_or_default());
        parts.push(format!("{} without {by} left out", super::numbers::count(comparison.left_out, "row")));
    }
    parts
}

fn marks(comparison: &Comparison) -> Vec<String> {
    let occurs = |wanted: char| comparison.entries().any(|entry| mark(entry).contains(wanted));
    let mut parts = Vec::new();
    if occurs('*') {
        let memory =
            if columns::view(comparison).shows_reserved() { "memory (live and reserved)" } else { "memory" };
        parts.push(format!("* Pareto front: nothing needs less {memory} without being slower"));
    }
    if occurs('!') {
        parts.push("! a key has no effect".to_string());
    }
    if occurs('~') {
        parts.push(format!("~ speed uncertain by more than {}%, or disturbed", percent(entry::NOISY)));
    }
    if occurs('r') {
        parts.push("r fits only because PyTorch returns cached memory and tries again".to_string());
    }
    if occurs('x') {
        let name = |status| match status {
            Status::Oom => "out of memory",
            Status::Diverged => "diverged",
            Status::Timeout => "timed out",
            Status::Failed => "failed",
            Status::Interrupted => "interrupted",
            Status::Ok | Status::Skipped => "",
        };
        let mut why: Vec<&str> = comparison.entries().map(|entry| name(entry.status)).collect();
        why.sort_unstable();
        why.dedup();
        why.retain(|why| !why.is_empty());
        parts.push(format!("x {}", why.join(", ")));
    }
    if occurs('-') {
        let skipped = comparison.entries().filter(|entry| entry.status == Status::Skipped);
        let (not_predicted, skipped): (Vec<_>, Vec<_>) = skipped.partition(|entry| entry.is_not_predicted());
        let why = [(!skipped.is_empty(), "skipped"), (!not_predicted.is_empty(), "not predicted")];
        let why: Vec<&str> = why.into_iter().filter(|(occurs, _)| *occurs).map(|(_, why)| why).collect();
        parts.push(format!("- {}", why.join(", ")));
    }
    parts
}

fn titles(comparison: &Comparison, dropped: &[String]) -> Vec<String> {
    let oom = comparison.entries().any(|entry| entry.status == Status::Oom && entry.memory.is_some());
    let same = comparison.entries().any(|entry| entry.same_speed() || entry.same_loss());
    let measured = comparison.basis == Basis::Measured;
    let mut parts = Vec::new();
    if same && measured {
        parts.push("= no measurable difference".to_string());
    }
    if oom && measured {
        parts.push("memory of rows marked OOM is predicted".to_string());
    }
    let view = columns::view(comparison);
    let shown = columns::shown(comparison, &view).into_iter();
    let shown = shown.filter(|column| !dropped.contains(&column.title(&view)));
    parts.extend(shown.filter_map(|column| column.explained(&view)));
    parts
}
