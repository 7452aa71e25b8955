//! The heading of a table.

use super::entry::TableEntry;
use super::text::{one_line, pack};
use super::{Basis, Comparison, group};
use results::Row;

/// Experiment, machine, repeats and baseline, wrapped between these parts.
pub(super) fn lines(comparison: &Comparison, width: usize) -> Vec<String> {
    pack(&parts(comparison), " | ", width)
}

/// The heading of a table of several machines.
pub(super) fn of_machines(comparison: &Comparison, machines: usize, width: usize) -> Vec<String> {
    let of_first = machine(&comparison.entries().collect::<Vec<_>>());
    let parts = parts(comparison).into_iter().map(|part| match part == one_line(&of_first) {
        true => format!("{machines} targets"),
        false => part,
    });
    pack(&parts.filter(|part| !part.starts_with("base ")).collect::<Vec<_>>(), " | ", width)
}

/// The heading on one line.
pub(super) fn title(comparison: &Comparison) -> String {
    parts(comparison).join(" | ")
}

pub(super) fn parts(comparison: &Comparison) -> Vec<String> {
    let entries: Vec<&TableEntry> = comparison.entries().collect();
    let mut first = vec![comparison.experiment.clone()];
    // Skipped rows may have no model and no batch size.
    let models: Vec<_> =
        entries.iter().map(|entry| &entry.row.model).filter(|model| !model.is_empty()).collect();
    first.extend(common(&models).cloned());
    let batches: Vec<_> = entries.iter().filter_map(|entry| entry.row.batch_size).collect();
    let swept = entries.iter().any(|entry| entry.row.axes.iter().any(|(key, _)| key.ends_with("batch_size")));
    if let (false, Some(batch)) = (swept, common(&batches)) {
        first.push(format!("batch {batch}"));
    }
    let machine = machine(&entries);
    let words: Vec<String> =
        first.iter().map(|word| one_line(word)).filter(|word| !word.is_empty()).collect();
    let mut parts = vec![words.join("  "), one_line(&machine)];
    let threads: Vec<_> = entries.iter().filter_map(|entry| entry.row.threads).collect();
    if let Some(threads) = common(&threads).filter(|threads| *threads > 1) {
        parts.push(format!("{threads} threads"));
    }
    parts.push(match comparison.basis {
        Basis::Measured => {
            repeats(&entries.iter().map(|entry| entry.repeats).filter(|n| *n > 0).collect::<Vec<_>>())
        }
        Basis::Predicted => match &comparison.pytorch {
            Some(program) => format!("{program}, predicted"),
            None => "predicted".into(),
        },
    });
    parts.extend(comparison.caution.clone());
    parts.push(match &comparison.by {
        Some(_) => "base: the first of each group".into(),
        None => format!("base {}", one_line(&comparison.baseline)),
    });
    parts.retain(|part| !part.trim().is_empty());
    parts
}

fn machine(entries: &[&TableEntry]) -> String {
    let machines = group::machines(entries.iter().copied());
    match machines.as_slice() {
        [one] if entries.iter().any(is_limited) => format!("{one} (speed is the whole machine's)"),
        [one] => one.clone(),
        [] => String::new(),
        several => format!("{} machines", several.len()),
    }
}

fn is_limited(entry: &&TableEntry) -> bool {
    let Row { limited, limit_bytes, .. } = &entry.row;
    *limited && limit_bytes.is_some()
}

fn repeats(counts: &[usize]) -> String {
    match (counts.iter().min(), counts.iter().max()) {
        (Some(1), Some(1)) => "1 repeat".into(),
        (Some(least), Some(most)) if least == most => format!("{most} repeats"),
        (Some(least), Some(most)) => format!("{least} to {most} repeats"),
        _ => "no run finished".into(),
    }
}

/// The value, if all are equal.
fn common<T: PartialEq + Clone>(values: &[T]) -> Option<T> {
    let first = values.first()?;
    values.iter().all(|value| value == first).then(|| first.clone())
}
