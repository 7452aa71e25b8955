//! Swept keys: the experiment's keys define groups, those inside a strategy are part of its label.

use super::CompareError;
use super::entry::TableEntry;
use plan::{Axis, Label};
use results::Row;

fn label(row: &Row) -> Label<'_> {
    Label::of(&row.strategy, &row.axes)
}

/// The strategy's label without the keys that `left_out` selects: `bf16/accumulate=2` becomes `bf16`.
pub(super) fn label_without(row: &Row, left_out: impl Fn(&str) -> bool) -> String {
    let Label { name, parts, .. } = label(row);
    let others: Vec<&str> =
        parts.into_iter().filter(|(_, (key, _))| !left_out(key)).map(|(part, _)| part).collect();
    if others.is_empty() { name.to_string() } else { format!("{name}/{}", others.join(",")) }
}

/// The keys swept inside strategies, which are part of their labels.
pub(super) fn inner(entries: &[&TableEntry]) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for (_, (key, _)) in entries.iter().flat_map(|entry| label(&entry.row).parts) {
        if !keys.contains(key) {
            keys.push(key.clone());
        }
    }
    keys
}

/// The value of a key swept inside the row's strategy.
pub(super) fn inner_value(row: &Row, key: &str) -> Option<String> {
    let parts = label(row).parts;
    let (_, (_, value)) = parts.into_iter().find(|(_, (of, _))| of == key)?;
    Some(value.trim_matches('"').to_owned())
}

/// The row's swept keys outside its strategy: its axis point.
pub(super) fn outer(row: &Row) -> Vec<&Axis> {
    label(row).shared
}

/// The shortest end of a key that no other key shares: `lr`, or `adamw.lr` beside `lion.lr`.
pub(super) fn distinct_end<'a>(key: &'a str, all: &[String]) -> &'a str {
    let shares = |other: &str, end: &str| {
        other != key && other.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let ends = key.rmatch_indices('.').map(|(at, _)| &key[at + 1..]);
    ends.into_iter().find(|end| !all.iter().any(|other| shares(other, end))).unwrap_or(key)
}

/// The same for headings, which say `batch` for `batch_size`.
pub(super) fn short<'a>(key: &'a str, all: &[String]) -> &'a str {
    match distinct_end(key, all) {
        "batch_size" => "batch",
        end => end,
    }
}

/// `batch 16`
pub(super) fn point(key: &str, value: &str, all: &[String]) -> String {
    format!("{} {}", short(key, all), value.trim_matches('"'))
}

/// All swept keys, in order of appearance.
pub(super) fn all(entries: &[TableEntry]) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for (key, _) in entries.iter().flat_map(|entry| &entry.row.axes) {
        if !keys.contains(key) {
            keys.push(key.clone());
        }
    }
    keys
}

/// Resolves a user's key or short name to a swept key.
pub(super) fn resolve(experiment: &str, entries: &[TableEntry], name: &str) -> Result<String, CompareError> {
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

    fn swept(strategy: &str, axes: &[(&str, &str)]) -> Row {
        let axes = axes.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Row { strategy: strategy.into(), axes, ..Row::default() }
    }

    #[test]
    fn label_splits_inner_and_outer_keys() {
        let row = swept(
            "bf16/accumulate=2,seed=1",
            &[("train.batch_size", "2"), ("accumulate", "2"), ("train.seed", "1")],
        );
        let keys = |row: &Row| label(row).parts.iter().map(|(_, (key, _))| key.clone()).collect::<Vec<_>>();
        assert_eq!(keys(&row), ["accumulate", "train.seed"]);
        assert_eq!(outer(&row), [&("train.batch_size".to_string(), "2".to_string())]);
        assert_eq!(label_without(&row, |key| key == "accumulate"), "bf16/seed=1");
        assert_eq!(label_without(&row, |_| true), "bf16");
        assert_eq!(inner_value(&row, "train.seed").as_deref(), Some("1"));
        assert_eq!(inner_value(&row, "train.batch_size"), None);
        assert_eq!(keys(&swept("bf16", &[("accumulate", "2")])), Vec::<String>::new());
    }

    #[test]
    fn values_may_contain_separators() {
        let row = swept(
            "a/b/recompute=[\"mlp\", \"norm\"],init=lazy",
            &[("init", "\"lazy\""), ("recompute", "[\"mlp\", \"norm\"]")],
        );
        assert_eq!(label_without(&row, |_| true), "a/b");
        assert_eq!(label_without(&row, |key| key == "init"), "a/b/recompute=[\"mlp\", \"norm\"]");
        assert_eq!(inner_value(&row, "init").as_deref(), Some("lazy"));
    }

    #[test]
    fn short_names_are_unambiguous() {
        let keys = ["train.batch_size", "a.seed", "b.seed", "c.b.lr", "c.d.lr"].map(str::to_owned);
        assert_eq!(point("train.batch_size", "16", &keys), "batch 16");
        assert_eq!(point("a.seed", "\"x\"", &keys), "a.seed x");
        assert_eq!(point("c.d.lr", "1", &keys), "d.lr 1");
    }
}
