//! The smallest number of ranks with which each strategy fits.

use std::collections::BTreeMap;

use super::Comparison;
use super::entry::TableEntry;
use super::numbers::list;
use results::Status;

/// `Fewest ranks that fit: 2 for a and b, 8 for c; none for d.`, if a strategy was predicted with several numbers of them.
pub(super) fn sentence(comparison: &Comparison) -> Option<String> {
    let mut by_label: BTreeMap<&str, Vec<&TableEntry>> = BTreeMap::new();
    let mut labels = Vec::new();
    let entries = comparison.groups.iter().flat_map(|group| &group.entries);
    for entry in entries.filter(|entry| matches!(entry.status, Status::Ok | Status::Oom)) {
        let label = entry.label.as_str();
        let known = by_label.entry(label).or_insert_with(|| {
            labels.push(label);
            Vec::new()
        });
        known.push(entry);
    }
    let mut fitting: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut none: Vec<String> = Vec::new();
    for label in labels {
        let entries = &by_label[label];
        let numbers = || entries.iter().map(|entry| ranks(entry));
        if numbers().min() == numbers().max() {
            continue;
        }
        match entries.iter().filter(|entry| entry.status == Status::Ok).map(|entry| ranks(entry)).min() {
            Some(ranks) => fitting.entry(ranks).or_default().push(label.to_owned()),
            None => none.push(label.to_owned()),
        }
    }
    let fitting: Vec<String> =
        fitting.into_iter().map(|(ranks, labels)| format!("{ranks} for {}", list(&labels))).collect();
    let none = (!none.is_empty()).then(|| format!("none for {}", list(&none)));
    let parts: Vec<String> =
        [fitting.join(", ")].into_iter().filter(|text| !text.is_empty()).chain(none).collect();
    (!parts.is_empty()).then(|| format!("Fewest ranks that fit: {}.", parts.join("; ")))
}

fn ranks(entry: &TableEntry) -> usize {
    entry.row.ranks.unwrap_or(1)
}
