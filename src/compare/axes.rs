//! Swept keys: those of the experiment make groups, those inside a strategy are part of its name.

use super::CompareError;
use super::entry::Entry;
use crate::results::Row;

/// Whether the key is swept inside the row's strategy: its label then ends in `/key=value`.
pub(super) fn is_inner(strategy: &str, key: &str) -> bool {
    inner_parts(strategy).any(|part| part_is(part, key))
}

/// The strategy's label without what it says of one key: `bf16/accumulate=2` becomes `bf16`.
pub(super) fn label_without(strategy: &str, key: &str) -> String {
    let Some((name, _)) = strategy.split_once('/') else { return strategy.to_string() };
    let others: Vec<&str> = inner_parts(strategy).filter(|part| !part_is(part, key)).collect();
    if others.is_empty() { name.to_string() } else { format!("{name}/{}", others.join(",")) }
}

fn inner_parts(strategy: &str) -> impl Iterator<Item = &str> {
    strategy.split_once('/').map_or("", |(_, inner)| inner).split(['/', ',', ' '])
}

fn part_is(part: &str, key: &str) -> bool {
    part.split_once('=').is_some_and(|(name, _)| key == name || key.ends_with(&format!(".{name}")))
}

/// The swept keys that group a row.
pub(super) fn outer(row: &Row) -> impl Iterator<Item = &(String, String)> {
    row.axes.iter().filter(|(key, _)| !is_inner(&row.strategy, key))
}

/// The last word of a key; the whole key where another one ends in the same word.
pub(super) fn short<'a>(key: &'a str, all: &[String]) -> &'a str {
    let last = |key: &'a str| key.rsplit('.').next().unwrap_or(key);
    let word = last(key);
    if all.iter().any(|other| other != key && other.rsplit('.').next() == Some(word)) {
        return key;
    }
    if word == "batch_size" { "batch" } else { word }
}

/// `batch 16`
pub(super) fn point(key: &str, value: &str, all: &[String]) -> String {
    format!("{} {}", short(key, all), value.trim_matches('"'))
}

/// All swept keys, in the order in which rows have them.
pub(super) fn all(entries: &[Entry]) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for (key, _) in entries.iter().flat_map(|entry| &entry.row.axes) {
        if !keys.contains(key) {
            keys.push(key.clone());
        }
    }
    keys
}

/// The swept key that a user means: the key, or its short name.
pub(super) fn resolve(experiment: &str, entries: &[Entry], name: &str) -> Result<String, CompareError> {
    let known = all(entries);
    let means =
        |key: &&String| *key == name || short(key, &known) == name || key.rsplit('.').next() == Some(name);
    match known.iter().find(|key| *key == name).or_else(|| known.iter().find(means)) {
        Some(key) => Ok(key.clone()),
        None => Err(CompareError::UnknownAxis {
            experiment: experiment.to_string(),
            name: name.to_string(),
            known,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_tells_which_keys_are_its_own() {
        assert!(is_inner("bf16/accumulate=2", "accumulate"));
        assert!(is_inner("bf16/accumulate=2,seed=1", "train.seed"));
        assert!(!is_inner("bf16/accumulate=2", "train.batch_size"));
        assert!(!is_inner("bf16", "accumulate"));
        assert_eq!(label_without("bf16/accumulate=2,seed=1", "accumulate"), "bf16/seed=1");
        assert_eq!(label_without("bf16/accumulate=2", "accumulate"), "bf16");
    }

    #[test]
    fn short_names_stay_clear() {
        let keys = ["train.batch_size".to_string(), "a.seed".to_string(), "b.seed".to_string()];
        assert_eq!(point("train.batch_size", "16", &keys), "batch 16");
        assert_eq!(point("a.seed", "\"x\"", &keys), "a.seed x");
    }
}
