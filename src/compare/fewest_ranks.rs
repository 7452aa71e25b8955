//! The smallest number of ranks with which each strategy fits.

use std::collections::{BTreeMap, BTreeSet};

use super::Comparison;
use super::entry::TableEntry;
use super::numbers::list;
use results::Status;

/// `Fewest ranks that fit: 2 for a and b, 8 for c; none for d.`, of the strategies that were predicted with several numbers of
/// ranks. `None` if further keys are swept, since each of their values has its own answer.
pub(super) fn sentence(comparison: &Comparison) -> Option<String> {
    let entries = || comparison.groups.iter().flat_map(|group| &group.entries);
    if entries().all(|entry| entry.row.ranks.is_none()) {
        return None;
    }
    let mut labels: Vec<&str> = entries().map(|entry| entry.label.as_str()).collect();
    let mut seen = BTreeSet::new();
    labels.retain(|label| seen.insert(*label));
    let mut fitting: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut none = Vec::new();
    for label in labels {
        let points: Vec<&TableEntry> = entries().filter(|entry| entry.label == label).collect();
        let numbers: BTreeSet<usize> = points.iter().map(|entry| entry.row.ranks.unwrap_or(1)).collect();
        let is_predicted = |entry: &&TableEntry| matches!(entry.status, Status::Ok | Status::Oom);
        if numbers.len() == 1 || !points.iter().all(is_predicted) {
            continue;
        }
        if numbers.len() < points.len() {
            return None;
        }
        let fits = points.iter().filter(|entry| entry.status == Status::Ok);
        match fits.map(|entry| entry.row.ranks.unwrap_or(1)).min() {
            Some(ranks) => fitting.entry(ranks).or_default().push(label.to_owned()),
            None => none.push(label.to_owned()),
        }
    }
    let fitting: Vec<String> =
        fitting.into_iter().map(|(ranks, labels)| format!("{ranks} for {}", list(&labels))).collect();
    let none = (!none.is_empty()).then(|| format!("none for {}", list(&none)));
    let fitting = (!fitting.is_empty()).then(|| fitting.join(", "));
    let parts: Vec<String> = fitting.into_iter().chain(none).collect();
    (!parts.is_empty()).then(|| format!("Fewest ranks that fit: {}.", parts.join("; ")))
}
