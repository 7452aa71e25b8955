//! The keys of a run's configuration on one line, from which the differences between runs are told.

use std::collections::{BTreeMap, BTreeSet};

use spec::RunConfig;

const SEPARATOR: &str = "; ";
/// The table of a resolved run whose keys are written without a table in strategies.
const STRATEGY: &str = "strategy";
/// The value of a key that the text leaves out.
const DEFAULT: &str = "default";

/// The keys that a run's id covers, without those at their defaults:
/// `[train]; batch_size = 8; [train.optimizer.adamw]; lr = 0.001`.
pub(super) fn one_line(config: &RunConfig) -> String {
    let text = config.identity();
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    lines.join(SEPARATOR)
}

/// The parsed column `settings` of a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    tables: BTreeSet<String>,
    /// By complete key: `train.batch_size`; the keys of strategies by themselves: `accumulate`.
    keys: BTreeMap<String, String>,
}

impl Settings {
    /// `None` if the text declares no keys, as in tables of other programs.
    pub fn parse(text: &str) -> Option<Settings> {
        // Tables that are left out if all their keys are at their defaults.
        let mut settings =
            Settings { tables: ["", "measure"].map(str::to_owned).into(), ..Settings::default() };
        let mut table = String::new();
        let mut last: Option<String> = None;
        for piece in text.split(SEPARATOR) {
            let header = piece.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            if let Some(name) = header {
                name.clone_into(&mut table);
                if table == STRATEGY {
                    table.clear();
                }
                settings.tables.insert(table.clone());
                last = None;
            } else if let Some((key, value)) = piece.split_once(" = ") {
                let key = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
                settings.keys.insert(key.clone(), value.to_owned());
                last = Some(key);
            } else if let Some(value) = last.as_ref().and_then(|key| settings.keys.get_mut(key)) {
                // A value that contains the separator.
                value.push_str(SEPARATOR);
                value.push_str(piece);
            }
        }
        (!settings.keys.is_empty()).then_some(settings)
    }

    /// The value of a key, `default` if the text leaves it out. `None` if the run does not have the key's table, such
    /// as that of another optimizer.
    pub fn value(&self, key: &str) -> Option<&str> {
        let table = key.rsplit_once('.').map_or("", |(table, _)| table);
        let default = self.tables.contains(table).then_some(DEFAULT);
        self.keys.get(key).map(String::as_str).or(default)
    }

    /// The keys whose values are not equal in all of these.
    pub fn differing(all: &[&Settings]) -> Vec<String> {
        let keys: BTreeSet<&String> = all.iter().flat_map(|settings| settings.keys.keys()).collect();
        let differs = |key: &&String| {
            let mut values = all.iter().map(|settings| settings.keys.get(*key));
            let first = values.next();
            values.any(|value| Some(value) != first)
        };
        keys.into_iter().filter(differs).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_tables() {
        let text = "[model.transformer]; layers = 1; [train]; batch_size = 4; [train.optimizer.adamw]; lr = 0.001; \
                    [strategy]; keep = [\"a; b\"]; accumulate = 2";
        let settings = Settings::parse(text).unwrap();
        for (key, value) in [
            ("model.transformer.layers", Some("1")),
            ("train.optimizer.adamw.lr", Some("0.001")),
            ("train.optimizer.adamw.beta1", Some("default")),
            ("train.optimizer.lion.lr", None),
            ("keep", Some("[\"a; b\"]")),
            ("accumulate", Some("2")),
            ("recompute", Some("default")),
            ("measure.steps", Some("default")),
        ] {
            assert_eq!(settings.value(key), value, "{key}");
        }
        assert_eq!(Settings::parse(""), None);
        assert_eq!(Settings::parse("anything else"), None);
    }

    #[test]
    fn only_unequal_keys_differ() {
        let of = |text| Settings::parse(text).unwrap();
        let (one, other) = (of("[train]; batch_size = 4; seed = 1"), of("[train]; batch_size = 8; seed = 1"));
        assert_eq!(Settings::differing(&[&one, &other]), ["train.batch_size"]);
        assert_eq!(Settings::differing(&[&one, &one, &of("[train]; batch_size = 4")]), ["train.seed"]);
        assert_eq!(Settings::differing(&[&one, &one]), Vec::<String>::new());
    }
}
