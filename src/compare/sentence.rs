//! Parts of sentences about the entries of a table.

use super::Comparison;
use super::entry::TableEntry;
use super::group::TableGroup;

/// Prefixes the group's heading or else capitalises the sentence, unless it begins with the name of a strategy.
pub(super) fn subject(group: &TableGroup, sentence: &str) -> String {
    if !group.heading.is_empty() {
        return format!("{}: {sentence}", group.heading);
    }
    if group.entries.iter().any(|entry| sentence.starts_with(&entry.label)) {
        return sentence.to_string();
    }
    let mut letters = sentence.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// The names of all candidates for which `detail` is `Some`, with that detail in parentheses.
pub(super) fn names(comparison: &Comparison, detail: impl Fn(&TableEntry) -> Option<String>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for group in &comparison.groups {
        let at = if comparison.groups.len() > 1 { group.at_heading() } else { String::new() };
        for entry in group.entries.iter().filter(|entry| entry.is_candidate()) {
            match detail(entry) {
                Some(detail) if detail.is_empty() => names.push(format!("{}{at}", entry.label)),
                Some(detail) => names.push(format!("{}{at} ({detail})", entry.label)),
                None => {}
            }
        }
    }
    names
}
