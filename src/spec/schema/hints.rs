//! Hints for unknown keys: a typing error, a key of another table, or the name of another tool.

use super::ablation::Ablation;
use super::data::Data;
use super::key::{Key, is_experiment_key};
use super::model::Model;
use super::optimizer::Optimizer;
use super::other_names::{MEANINGS, Meaning, OTHER_NAMES, OTHER_VALUES, PARALLEL, PARALLEL_PREFIXES, Write};
use super::plan::PLAN_KEYS;
use super::resolved::{Evaluation, Measure, Train};
use super::schedule::Schedule;
use super::strategy::{Loader, Lora, Offload, STRATEGY_KEYS};
use super::version;
use crate::reader::declare::{ChoiceTable, KeyTable};
use crate::reader::hints::{nearest, other_keyword, plain, similar};
use crate::reader::keys::{FileKind, TableKeys, join};
use crate::reader::tree::{Table, TableEntry, Value};

/// Experiment files.
pub(crate) const EXPERIMENT: FileKind = FileKind {
    name: "experiment",
    user: "run",
    planned: for_later_key,
    hint: for_key,
    value_hint: for_value,
};

/// Target files.
pub(crate) const TARGET: FileKind = FileKind {
    name: "target",
    user: "target",
    planned: |_, _| None,
    hint: for_target_key,
    value_hint: |_, _| None,
};

/// The hint for an unknown key of a table.
fn for_key(searched: &TableKeys<'_>, entry: &TableEntry) -> String {
    let key = entry.key.as_str();
    meaning(searched, entry)
        .or_else(|| other_name_in_table(searched, entry))
        .or_else(|| run_key_in_strategy(searched, entry))
        .or_else(|| key_of_other_table(searched, entry))
        .or_else(|| is_parallel(key).then(|| SEVERAL_DEVICES.to_owned()))
        .or_else(|| nearest(key, searched.keys).map(|near| format!("did you mean `{near}`?")))
        .or_else(|| {
            let own = nearest(key, STRATEGY_KEYS).filter(|_| searched.path.is_empty());
            own.map(|near| format!("did you mean `{near}`?"))
        })
        .unwrap_or_else(|| similar(key, searched.keys))
}

/// The hint for an unknown key of a target file.
fn for_target_key(searched: &TableKeys<'_>, entry: &TableEntry) -> String {
    let key = entry.key.as_str();
    other_name_in_table(searched, entry)
        .or_else(|| nearest(key, searched.keys).map(|near| format!("did you mean `{near}`?")))
        .unwrap_or_else(|| similar(key, searched.keys))
}

/// The hint for a planned key.
fn for_later_key(searched: &TableKeys<'_>, key: &str) -> Option<String> {
    version::is_later_key(searched.path, key).then(|| similar(key, searched.keys))
}

const SEVERAL_DEVICES: &str = "for several devices, use `parallel = { data = 2, shard = \"parameters\" }`: \"parameters\" is ZeRO \
                               stage 3 (fully_shard), \"gradients\" stage 2, \"optimizer\" stage 1, \"none\" DDP; tensor and \
                               pipeline parallelism are not available";

/// The hint for a value that other tools accept for a key of this name.
fn for_value(key: &str, value: &Value) -> Option<&'static str> {
    let Value::Text(text) = value else { return None };
    let (_, _, advice) =
        OTHER_VALUES.iter().find(|(of, values, _)| *of == key && values.contains(&plain(text).as_str()))?;
    Some(advice)
}

/// What a key of another tool means, and what to write here.
fn meaning(searched: &TableKeys<'_>, entry: &TableEntry) -> Option<String> {
    let (key, value) = (plain(&entry.key), plain(&entry.node.value.to_string()));
    let applies = |meaning: &&Meaning| {
        meaning.names.contains(&key.as_str())
            && (meaning.within.is_empty() || meaning.within == searched.path)
            && value.contains(meaning.value)
    };
    let found = MEANINGS.iter().find(applies)?;
    let is_switched_off = found.value.is_empty() && entry.node.value == Value::Boolean(false);
    Some(match found.write {
        Write::Strategy(_) if is_switched_off => SWITCHED_OFF.to_owned(),
        Write::Strategy(write) => {
            format!(
                "{}: use `{}`{}",
                found.meaning,
                filled_in(write, &entry.node.value),
                in_strategy(searched)
            )
        }
        Write::Table(table, write) => {
            let place = match table {
                _ if table == searched.path => String::new(),
                "" => " at the top of the file".to_owned(),
                _ => format!(" in [{table}]"),
            };
            format!("{}: use `{}`{place}", found.meaning, filled_in(write, &entry.node.value))
        }
        Write::Nothing => format!("{}; remove it", found.meaning),
    })
}

const SWITCHED_OFF: &str = "it is off unless a strategy switches it on: remove it";

/// Where to write a key of a strategy; nothing in a strategy itself.
fn in_strategy(searched: &TableKeys<'_>) -> String {
    match searched.path {
        _ if is_strategy(searched) => String::new(),
        inline if strategy_tables().any(|(table, _)| table == inline) => format!(" beside `{inline}`"),
        _ => " in [defaults] or in a strategy, [strategies.NAME]".to_owned(),
    }
}

/// Whether the keys are those of a strategy, or of `[defaults]`.
fn is_strategy(searched: &TableKeys<'_>) -> bool {
    searched.path.is_empty() && STRATEGY_KEYS.iter().all(|key| searched.keys.contains(key))
}

/// Whether the key is about several devices in other tools.
fn is_parallel(key: &str) -> bool {
    let key = plain(key);
    let begins = || PARALLEL_PREFIXES.iter().any(|beginning| key.starts_with(beginning));
    PARALLEL.contains(&key.as_str()) || begins()
}

/// A notation with the number or dtype that was written. See `OTHER_NAMES`.
fn filled_in(notation: &str, value: &Value) -> String {
    let Some((before, rest)) = notation.split_once('{').filter(|(_, rest)| !rest.starts_with(' ')) else {
        // The braces of an inline table: its values may have placeholders.
        return match notation.split_once("{ ") {
            Some((before, rest)) => format!("{before}{{ {}", filled_in(rest, value)),
            None => notation.to_owned(),
        };
    };
    let (usual, after) = rest.split_once('}').unwrap_or((rest, ""));
    let written = match (usual, value) {
        ("dtype", Value::Text(text)) => {
            other_keyword(text, &DTYPES).or_else(|| DTYPES.into_iter().find(|own| own == text))
        }
        ("dtype", _) => None,
        (_, Value::Integer(number)) if *number > 0 => return format!("{before}{number}{after}"),
        _ => Some(usual),
    };
    format!("{before}{}{after}", written.unwrap_or("bf16"))
}

const DTYPES: [&str; 3] = ["fp32", "bf16", "fp16"];

/// A key of this table, given its name in another tool.
fn other_name_in_table(searched: &TableKeys<'_>, entry: &TableEntry) -> Option<String> {
    let (meant, name) = other_name(&entry.key)?;
    // In [model.hf], `dropout` is a boolean.
    let is_switch = (searched.path, name) == ("model.hf", "dropout");
    (searched.keys.contains(&name) && !is_switch).then(|| did_you_mean(meant, entry, ""))
}

/// "did you mean `accumulate = 4`?", or that there is nothing to switch off.
fn did_you_mean(meant: &str, entry: &TableEntry, place: &str) -> String {
    if meant.contains(" = ") && entry.node.value == Value::Boolean(false) {
        return SWITCHED_OFF.to_owned();
    }
    format!("did you mean `{}`{place}?", filled_in(meant, &entry.node.value))
}

/// A key of a run, or a table of such keys, that was written in a strategy.
fn run_key_in_strategy(searched: &TableKeys<'_>, entry: &TableEntry) -> Option<String> {
    let translated = other_name(&entry.key).map(|(_, name)| name);
    // Another tool's key of a strategy, such as `target_modules`, whose name here is that of a key of data as well.
    let is_of_strategy = |name: &str| strategy_tables().any(|(_, keys)| keys.contains(&name));
    if !is_strategy(searched) || translated.is_some_and(is_of_strategy) {
        return None;
    }
    let name = translated.unwrap_or(&entry.key);
    let table = entry.node.table().filter(|_| tables_with_keys().any(|(table, _)| head(&table) == name));
    let paths: Vec<String> = match table.and_then(|table: &Table| table.settings().into_iter().next()) {
        Some(setting) => vec![format!("{}.{}", entry.key, setting.key)],
        None => tables_with(name).map(|table| format!("{table}.{name}")).collect(),
    };
    let paths: Vec<String> = paths.into_iter().filter(|path| !is_experiment_key(&Key::new(path))).collect();
    let written: Vec<String> = paths.iter().map(|path| format!("`set.\"{path}\" = ...`")).collect();
    (!written.is_empty()).then(|| format!("in a strategy, use {}", join(&written, "or")))
}

/// A key of another table, given its name here or in another tool.
fn key_of_other_table(searched: &TableKeys<'_>, entry: &TableEntry) -> Option<String> {
    let key = entry.key.as_str();
    let (meant, name) = other_name(key).unwrap_or((key, key));
    let it = if name == key { "it".to_owned() } else { format!("`{}`", filled_in(meant, &entry.node.value)) };
    if STRATEGY_KEYS.contains(&name) {
        let place = in_strategy(searched);
        return Some(match it.as_str() {
            "it" => format!("it belongs{place}"),
            _ => did_you_mean(meant, entry, &place),
        });
    }
    let inline = strategy_tables().filter(|(table, keys)| *table != searched.path && keys.contains(&name));
    let inline: Vec<String> =
        inline.map(|(table, _)| format!("`{table}.{}`", filled_in(meant, &entry.node.value))).collect();
    let is_translated = name != key;
    if !inline.is_empty() && (is_translated || is_strategy(searched) || tables_with(name).next().is_none()) {
        return Some(format!("did you mean {}{}?", join(&inline, "or"), in_strategy(searched)));
    }
    let tables: Vec<String> = tables_with(name).filter(|table| *table != searched.path).collect();
    if tables.is_empty() {
        return None;
    }
    let is_experiment = searched.path.is_empty() && searched.keys.contains(&"measure");
    if is_experiment {
        let quoted = |table: &String| match entry.node.table() {
            Some(_) => format!("[{table}.{name}]"),
            None => format!("`{table}.{name}`"),
        };
        let keys: Vec<String> = tables.iter().map(quoted).collect();
        return Some(format!("did you mean {}?", join(&keys, "or")));
    }
    let headers: Vec<String> = tables.iter().map(|table| format!("[{table}]")).collect();
    Some(format!("{it} belongs in {}", join(&headers, "or")))
}

/// The notation for a key of another tool, and the name of its key.
fn other_name(key: &str) -> Option<(&'static str, &'static str)> {
    let key = plain(key);
    let (meant, _) = OTHER_NAMES.iter().find(|(_, others)| others.contains(&key.as_str()))?;
    Some((meant, meant.split_once(" = ").map_or(*meant, |(name, _)| name)))
}

/// The tables within strategies, with their keys.
fn strategy_tables() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    [("lora", Lora::KEYS), ("offload", Offload::KEYS), ("loader", Loader::KEYS)].into_iter()
}

/// The tables that have a key of this name.
fn tables_with(name: &str) -> impl Iterator<Item = String> {
    tables_with_keys().filter(move |(_, keys)| keys.contains(&name)).map(|(table, _)| table)
}

/// The tables of an experiment file outside strategies, with their keys.
fn tables_with_keys() -> impl Iterator<Item = (String, Vec<&'static str>)> {
    fn variants<T: ChoiceTable>() -> impl Iterator<Item = (String, Vec<&'static str>)> {
        T::VARIANTS.iter().map(|variant| (variant.path.to_owned(), variant.keys.to_vec()))
    }
    let tables = [
        ("train", Train::KEYS),
        ("evaluation", Evaluation::KEYS),
        ("measure", Measure::KEYS),
        ("measure", &["repeats"]),
        ("target", &["memory", "host_memory", "link"]),
        ("plan", PLAN_KEYS),
        ("sweep", &["grid", "zip", "include", "exclude", "ablate"]),
        ("sweep.ablate", Ablation::KEYS),
    ];
    let tables = tables.into_iter().map(|(table, keys)| (table.to_owned(), keys.to_vec()));
    let choices = variants::<Model>().chain(variants::<Data>());
    tables.chain(choices).chain(variants::<Optimizer>()).chain(variants::<Schedule>())
}

fn head(path: &str) -> &str {
    path.split('.').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::parse::parse;

    fn is_key(name: &str) -> bool {
        let top = ["model", "data", "train", "evaluation"];
        let mut inline = strategy_tables().flat_map(|(_, keys)| keys);
        STRATEGY_KEYS.contains(&name)
            || top.contains(&name)
            || tables_with(name).next().is_some()
            || inline.any(|key| *key == name)
    }

    #[test]
    fn other_names_map_to_keys_and_are_no_keys() {
        let mut seen = Vec::new();
        for (meant, others) in OTHER_NAMES {
            let name = meant.split(" = ").next().unwrap_or_default();
            assert!(is_key(name), "`{name}` is not a key");
            for other in *others {
                // Keys of [measure] and of [data.tensors]; elsewhere the warm-up of the learning rate, and `paths`.
                let elsewhere = ["warmup_steps", "files"];
                assert!(!is_key(other) || elsewhere.contains(other), "`{other}` is a key itself");
                assert!(!seen.contains(other), "`{other}` is a duplicate");
                assert_eq!(other_name(other), Some((*meant, name)));
                assert!(!is_parallel(other) || *other == "zero_grad", "`{other}` is about several devices");
                seen.push(*other);
            }
        }
    }

    /// Each meaning is the first for some value of its names, so that none is hidden by another, and its advice names
    /// keys only.
    #[test]
    fn every_meaning_is_found_and_names_keys() {
        for Meaning { names, within, value, write, .. } in MEANINGS {
            let (Write::Strategy(text) | Write::Table(_, text)) = write else { continue };
            let written = filled_in(text, &Value::Boolean(true));
            let table = parse(&written.replace("` and `", "\n").replace("` times `accumulate", ""), 0, 0);
            let table = table.unwrap_or_else(|problem| panic!("{written}: {problem:?}"));
            // Keys of tables within values.
            let nested = ["name", "config", "optimizer", "schedule", "label_smoothing"];
            for entry in &table.entries {
                assert!(is_key(&entry.key) || nested.contains(&&*entry.key), "{written}");
            }
            for name in *names {
                let is_hidden = MEANINGS
                    .iter()
                    .take_while(|other| !std::ptr::eq(other.names, *names) || other.value != *value);
                let is_hidden =
                    is_hidden.filter(|other| other.names.contains(name) && other.within.is_empty());
                for other in is_hidden {
                    assert!(!value.contains(other.value), "`{name}` {value} {within} is hidden");
                }
            }
        }
    }

    #[test]
    fn placeholders_take_the_written_value() {
        assert_eq!(filled_in("accumulate = {4}", &Value::Integer(8)), "accumulate = 8");
        assert_eq!(filled_in("accumulate = {4}", &Value::Boolean(true)), "accumulate = 4");
        assert_eq!(filled_in("a = { b = 1 }", &Value::Integer(8)), "a = { b = 1 }");
        assert_eq!(filled_in("recompute = { every = {2} }", &Value::Integer(3)), "recompute = { every = 3 }");
        let dtype = |text: &str| filled_in("params = \"{dtype}\", x = 1", &Value::Text(text.to_owned()));
        assert_eq!(dtype("torch.float16"), "params = \"fp16\", x = 1");
        assert_eq!(dtype("auto"), "params = \"bf16\", x = 1");
    }
}
