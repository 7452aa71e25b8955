//! The keys of an experiment file that do not belong to single runs, its strategies and its sweep. Each file is read on
//! its own, to find errors also in overridden keys, and the merged tree once more.

use std::borrow::Borrow;
use std::collections::HashMap;

use glob::Pattern;

use super::ablation::WrittenAblation;
use crate::reader::declare::KeyTable;
use crate::reader::error::Problem;
use crate::reader::keys::{Keys, Reader};
use crate::reader::parsers::{BYTE_RATE, NonEmptyText, SizeWithUnit, keyword};
use crate::reader::source::Span;
use crate::reader::tree::{Node, Table, TableEntry, Value};
use crate::schema::hints::EXPERIMENT;
use crate::schema::key::{Key, is_experiment_key};
use crate::schema::plan::PlanKeys;
use crate::schema::repeats::Repeats;
use crate::schema::run_tables;
use crate::schema::settings::Setting;
use crate::schema::strategy::{STRATEGY_KEYS, Strategy};
use base::rates::BytesPerSecond;
use device::{DeviceKind, Limits};

/// The contents of an experiment file.
pub(crate) struct ExperimentFile {
    pub(crate) name: Option<(String, Span)>,
    pub(crate) baseline: Option<(String, Span)>,
    pub(crate) requires: Option<DeviceKind>,
    pub(crate) limits: Limits,
    pub(crate) plan: PlanKeys,
    pub(crate) link: Option<BytesPerSecond>,
    pub(crate) repeats: Repeats,
    pub(crate) strategies: Vec<WrittenStrategy>,
    pub(crate) sweep: Sweep,
}

/// A strategy of an experiment file.
#[derive(Clone, Debug)]
pub struct WrittenStrategy {
    pub name: String,
    pub(crate) span: Span,
    pub(crate) extends: Option<(String, Span)>,
    /// Its own keys and the keys of `set`.
    pub settings: Vec<Setting>,
    pub axes: Vec<Axis>,
    /// Whether it is a row of an ablation, with some keys of the strategy.
    pub(crate) is_partial: bool,
}

/// The values that one key takes in a sweep: at least one, all different.
#[derive(Clone, Debug)]
pub struct Axis {
    pub key: Key,
    pub(crate) key_span: Span,
    pub values: Vec<Setting>,
}

/// `[sweep]`.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    pub grid: Vec<Axis>,
    /// Groups of axes of equal length.
    pub zip: Vec<Vec<Axis>>,
    pub include: Vec<Case>,
    pub exclude: Vec<Case>,
    pub(crate) ablation: Option<WrittenAblation>,
}

/// A pattern for points of a sweep: strategies that match, and values of keys.
#[derive(Clone, Debug)]
pub struct Case {
    pub(crate) strategy: Option<Pattern>,
    pub span: Span,
    pub settings: Vec<Setting>,
}

pub(crate) fn read<'a>(reader: &'a Reader<'a>, file: &'a Table) -> Option<ExperimentFile> {
    let mut keys = reader.keys(file, "", "the experiment");
    let name = spanned_text(&mut keys, "name");
    let baseline = spanned_text(&mut keys, "baseline");
    // Its value was used by `load`.
    keys.optional("extends", NonEmptyText);
    let requires = keys.optional("requires", keyword());
    let tables = run_tables::read_tables(&mut keys);
    let (limits, link) = match keys.table("target", "target", "[target]") {
        Some(mut keys) => {
            let limits = [keys.optional("memory", SizeWithUnit), keys.optional("host_memory", SizeWithUnit)];
            let link = keys.optional("link", BYTE_RATE);
            keys.finish();
            (limits, link)
        }
        None => ([Some(None); 2], Some(None)),
    };
    let plan = PlanKeys::read(&mut keys);
    if let Some(mut keys) = keys.table("defaults", "", "[defaults]") {
        Strategy::read(&mut keys);
        keys.finish();
    }
    let strategies = match keys.entry("strategies") {
        Some(entry) => strategies(reader, entry),
        None => Vec::new(),
    };
    let sweep = match keys.table("sweep", "sweep", "[sweep]") {
        Some(keys) => sweep(reader, keys),
        None => Sweep::default(),
    };
    keys.finish();
    let [memory, host_memory] = limits;
    Some(ExperimentFile {
        name,
        baseline,
        requires: requires?,
        limits: Limits { memory: memory?, host_memory: host_memory? },
        plan: plan?,
        link: link?,
        repeats: tables.repeats?,
        strategies,
        sweep,
    })
}

fn spanned_text<'a>(keys: &mut Keys<'a>, key: &'a str) -> Option<(String, Span)> {
    let span = keys.entry(key)?.node.span;
    Some((keys.optional(key, NonEmptyText)??, span))
}

fn strategies(reader: &Reader<'_>, entry: &TableEntry) -> Vec<WrittenStrategy> {
    let Some(table) = entry.node.table() else {
        reader.problem(
            Problem::new(format!("`strategies` must be a table, not {}", entry.node.value))
                .at(entry.node.span)
                .help("write [strategies.NAME] for each strategy"),
        );
        return Vec::new();
    };
    table.entries.iter().filter_map(|entry| strategy(reader, entry)).collect()
}

fn strategy(reader: &Reader<'_>, entry: &TableEntry) -> Option<WrittenStrategy> {
    let TableEntry { key: name, key_span: span, node } = entry;
    let place = format!("[strategies.{name}]");
    let Some(table) = node.table() else {
        reader.problem(
            Problem::new(format!("`strategies.{name}` must be a table, not {}", node.value))
                .at(node.span)
                .help(format!("write {place} on a line of its own, and its keys below it")),
        );
        return None;
    };
    if name.is_empty() || name.chars().any(char::is_control) {
        reader.problem(
            Problem::new("the name of a strategy must not be empty or contain control characters").at(*span),
        );
    }
    let mut keys = reader.keys(table, "", &place);
    Strategy::read(&mut keys);
    let extends = spanned_text(&mut keys, "extends");
    // One setting per key of nested tables, so that each key is replaced or swept on its own.
    let own = |entry: &&TableEntry| STRATEGY_KEYS.contains(&entry.key.as_str());
    let own = Table { entries: table.entries.iter().filter(own).cloned().collect() };
    let mut settings = own.settings();
    if let Some(set) = sub_table(reader, keys.entry("set"), "set") {
        settings.extend(checked_settings(reader, set));
    }
    let axes = match sub_table(reader, keys.entry("sweep"), "sweep") {
        Some(table) => grid_axes(reader, table),
        None => Vec::new(),
    };
    keys.finish();
    Some(WrittenStrategy { name: name.clone(), span: *span, extends, settings, axes, is_partial: false })
}

fn sub_table<'a>(reader: &Reader<'_>, entry: Option<&'a TableEntry>, name: &str) -> Option<&'a Table> {
    let node = &entry?.node;
    if node.table().is_none() {
        reader.problem(
            Problem::new(format!("`{name}` must be a table, not {}", node.value))
                .at(node.span)
                .help(format!("write {name}.KEY = ...")),
        );
    }
    node.table()
}

/// The settings of a table that may contain any key of a run.
fn checked_settings(reader: &Reader<'_>, table: &Table) -> Vec<Setting> {
    let settings = table.settings();
    for setting in &settings {
        check_setting(reader, setting);
    }
    settings
}

/// Whether the key of a setting exists in runs and accepts the value; problems are reported to the reader.
pub(crate) fn check_setting(reader: &Reader<'_>, setting: &Setting) -> bool {
    if is_experiment_key(&setting.key) {
        reader.problem(
            Problem::new(format!("`{}` applies to the whole experiment, not to single runs", setting.key))
                .at(setting.key_span)
                .help("set it once, at the top of the file or with --set"),
        );
        return false;
    }
    let tree = setting.to_table();
    let own = Reader::partial(&EXPERIMENT, reader.sources, reader.environment);
    run_tables::read_run(&own, &tree);
    let checked = own.check();
    let valid = checked.is_ok();
    checked.unwrap_or_else(|problems| problems.into_iter().for_each(|problem| reader.problem(problem)));
    valid
}

fn sweep<'a>(reader: &'a Reader<'a>, mut keys: Keys<'a>) -> Sweep {
    let grid = match sub_table(reader, keys.entry("grid"), "sweep.grid") {
        Some(table) => grid_axes(reader, table),
        None => Vec::new(),
    };
    let zip =
        tables(reader, keys.entry("zip"), "zip").into_iter().map(|(at, t)| zip(reader, at, t)).collect();
    let include = cases(reader, keys.entry("include"), "include");
    let exclude = cases(reader, keys.entry("exclude"), "exclude");
    let span = keys.entry("ablate").map(|entry| entry.key_span);
    let ablation =
        keys.table("ablate", "sweep.ablate", "[sweep.ablate]").zip(span).map(|(mut keys, span)| {
            let ablation = WrittenAblation::read(&mut keys, span);
            keys.finish();
            ablation
        });
    keys.finish();
    Sweep { grid, zip, include, exclude, ablation }
}

/// The tables of `[[sweep.NAME]]`.
fn tables<'a>(reader: &Reader<'_>, entry: Option<&'a TableEntry>, name: &str) -> Vec<(Span, &'a Table)> {
    let Some(TableEntry { node, .. }) = entry else { return Vec::new() };
    let mismatch = |node: &Node| {
        reader.problem(
            Problem::new(format!("`sweep.{name}` must be tables, not {}", node.value))
                .at(node.span)
                .help(format!("write [[sweep.{name}]] on a line of its own, and its keys below it")),
        );
    };
    let Value::List(nodes) = &node.value else {
        mismatch(node);
        return Vec::new();
    };
    let table = |node: &'a Node| match node.table() {
        Some(table) => Some((node.span, table)),
        None => {
            mismatch(node);
            None
        }
    };
    nodes.iter().filter_map(table).collect()
}

fn axes(reader: &Reader<'_>, table: &Table) -> Vec<Axis> {
    let on = |setting: &Setting| !matches!(&setting.node.value, Value::Text(text) if text == "off");
    let settings = table.settings().into_iter().filter(on);
    settings.filter_map(|setting| axis(reader, setting)).collect()
}

fn axis(reader: &Reader<'_>, written: Setting) -> Option<Axis> {
    let Setting { key, key_span, node } = written;
    let Value::List(nodes) = node.value else {
        reader.problem(
            Problem::new(format!("the axis `{key}` must be a list of values, not {}", node.value))
                .at(node.span)
                .help(format!("write [{}]", node.value)),
        );
        return None;
    };
    if nodes.is_empty() {
        reader.problem(
            Problem::new(format!("the axis `{key}` has no values"))
                .at(node.span)
                .help("add at least one, or remove the axis"),
        );
        return None;
    }
    let mut values = Vec::new();
    let mut valid = true;
    for node in nodes {
        let span = node.span;
        let value = Setting { key: key.clone(), key_span, node };
        valid &= check_setting(reader, &value);
        // Later errors mark the value, not the key of the axis.
        values.push(Setting { key_span: span, ..value });
    }
    valid.then_some(Axis { key, key_span, values })
}

/// Axes whose values are combined with each other. Duplicate values are reported.
fn grid_axes(reader: &Reader<'_>, table: &Table) -> Vec<Axis> {
    let axes = axes(reader, table);
    for axis in &axes {
        for (first, second) in repeated_rows(&[axis]) {
            let (first, second) = (&axis.values[first].node, &axis.values[second].node);
            let message = format!("the axis `{}` has the value {} twice", axis.key, second.value);
            reader.problem(duplicate(message, second.span, first.span));
        }
    }
    axes
}

/// Zipped axes: each duplicate row of values, as (first row, duplicate row).
fn repeated_rows(axes: &[impl Borrow<Axis>]) -> Vec<(usize, usize)> {
    let values = |row: usize| axes.iter().map(move |axis| &axis.borrow().values[row].node.value);
    let mut known: HashMap<Vec<u64>, Vec<usize>> = HashMap::new();
    let mut repeated = Vec::new();
    for row in 0..axes.first().map_or(0, |axis| axis.borrow().values.len()) {
        let alike = known.entry(values(row).map(Value::fingerprint).collect()).or_default();
        match alike.iter().find(|earlier| values(**earlier).eq(values(row))) {
            Some(first) => repeated.push((*first, row)),
            None => alike.push(row),
        }
    }
    repeated
}

fn duplicate(message: String, second: Span, first: Span) -> Problem {
    Problem::new(message)
        .at(second)
        .at(first)
        .help("remove one of them; `repeats` in [measure] measures a run several times")
}

/// Zipped axes, which take their values together. Duplicate rows are reported.
fn zip(reader: &Reader<'_>, span: Span, table: &Table) -> Vec<Axis> {
    if table.entries.is_empty() {
        reader.problem(
            Problem::new("this table has no axes")
                .at(span)
                .help("add keys with lists of equal length, or remove the table"),
        );
    }
    let axes = axes(reader, table);
    let Some(first) = axes.first() else { return axes };
    if let Some(other) = axes.iter().find(|axis| axis.values.len() != first.values.len()) {
        reader.problem(
            Problem::new(format!(
                "zipped axes must have equal numbers of values: `{}` has {}, `{}` has {}",
                first.key,
                first.values.len(),
                other.key,
                other.values.len()
            ))
            .at(other.key_span)
            .at(first.key_span)
            .help("for all combinations instead, write them under [sweep.grid]"),
        );
        return axes;
    }
    for (earlier, second) in repeated_rows(&axes) {
        let message = "duplicate row of values in zipped axes".to_string();
        reader.problem(duplicate(message, first.values[second].node.span, first.values[earlier].node.span));
    }
    axes
}

fn cases(reader: &Reader<'_>, entry: Option<&TableEntry>, name: &str) -> Vec<Case> {
    tables(reader, entry, name).into_iter().filter_map(|(span, table)| case(reader, span, table)).collect()
}

fn case(reader: &Reader<'_>, span: Span, table: &Table) -> Option<Case> {
    let mut table = table.clone();
    let strategy = match table.remove("strategy") {
        None => None,
        // `strategy.accumulate`, written nested.
        Some(entry) if entry.node.table().is_some() => {
            table.entries.push(entry);
            None
        }
        Some(entry) => match glob(&entry.node) {
            Ok(pattern) => Some(pattern),
            Err(problem) => {
                reader.problem(problem);
                return None;
            }
        },
    };
    if strategy.is_none() && table.entries.is_empty() {
        reader.problem(
            Problem::new("this table selects no points")
                .at(span)
                .help("add values of axes, a strategy, or both"),
        );
    }
    Some(Case { strategy, span, settings: checked_settings(reader, &table) })
}

fn glob(node: &Node) -> Result<Pattern, Problem> {
    let problem = || {
        Problem::new(format!("`strategy` must be the name of a strategy or a pattern, not {}", node.value))
            .at(node.span)
            .help("`fp32*` matches all names that begin with fp32")
    };
    match &node.value {
        Value::Text(text) => Pattern::new(text).map_err(|_| problem()),
        _ => Err(problem()),
    }
}

impl Sweep {
    /// All axes, in the order of the file.
    pub fn axes(&self) -> impl Iterator<Item = &Axis> {
        self.grid.iter().chain(self.zip.iter().flatten())
    }
}

impl WrittenStrategy {
    /// Whether it is a row of an ablation, with some keys of a strategy of the file.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }
}

impl Case {
    /// Whether it selects this strategy or this variant of it.
    pub fn selects(&self, name: &str, label: &str) -> bool {
        self.strategy.as_ref().is_none_or(|pattern| pattern.matches(name) || pattern.matches(label))
    }
}
