//! Explains the marks and columns that occur in a table, and no others.

use super::columns::mark;
use super::numbers::percent;
use super::text::one_line;
use super::{Basis, Comparison, columns, entry};
use crate::results::Status;

/// One explanation each. `dropped` are the columns that found no room.
pub(super) fn parts(comparison: &Comparison, dropped: &[String]) -> Vec<String> {
    let mut parts = marks(comparison);
    parts.extend(titles(comparison, dropped));
    if !dropped.is_empty() {
        parts.push(format!("no room for {} (see --format csv)", dropped.join(", ")));
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
        parts.push("* Pareto front: nothing needs less memory without being slower".to_string());
    }
    if occurs('!') {
        parts.push("! a key changes nothing".to_string());
    }
    if occurs('~') {
        parts.push(format!("~ noisy, speed known to no better than {}%", percent(entry::NOISY)));
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
        parts.push("- skipped".to_string());
    }
    parts
}

fn titles(comparison: &Comparison, dropped: &[String]) -> Vec<String> {
    let table = columns::table(comparison);
    let shown = |title: &str| {
        table.columns.iter().any(|column| column.title == title) && !dropped.iter().any(|name| name == title)
    };
    let oom = comparison.entries().any(|entry| entry.status == Status::Oom && entry.memory.is_some());
    let same = comparison.entries().any(|entry| entry.relative.same_speed && !entry.relative.is_baseline);
    let measured = comparison.basis == Basis::Measured;
    let above = comparison.entries().any(entry::Entry::start_above_training);
    let training = |entry: &entry::Entry| entry.loss.is_some_and(|loss| loss.of == entry::LossOf::Training);
    let trained = comparison.entries().any(|entry| training(entry) && entry.relative.loss.is_some());
    let explained = [
        (same && measured, "= no measurable difference in speed"),
        (oom && measured, "memory of rows marked OOM is predicted"),
        (shown("card"), "card: what driver or system say was used"),
        (shown("cast"), "cast: 16-bit copies of parameters"),
        (shown("dloss") && trained, "dloss: of the last training step, where nothing is evaluated"),
        (shown("fits"), "fits: the largest micro-batch within the limit"),
        (shown("wait%"), "wait%: of the step, for data"),
        (shown("start") && measured && above, "start: peak before the first step, above training's"),
        (shown("start") && measured && !above, "start: peak before the first step"),
        (shown("first ms"), "first ms: from asking for memory to the end of the first step"),
        (shown("eval"), "eval: peak of the evaluation, above training's"),
        (shown("pred"), "pred: predicted peak, not what was measured"),
        (shown("off"), "off: card less counted bytes, beyond 1 MiB + 0.5%"),
    ];
    explained.into_iter().filter(|(applies, _)| *applies).map(|(_, text)| text.to_string()).collect()
}
