//! Results that an experiment's table does not hold: of other versions of its file, of other files of its name, and of overrides.
//! They stay in a table of their own.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::ErrorKind;

use plan::{Axis, Label, Plan};
use results::csv::{self, CsvError};
use results::{Row, Settings, Status, Store, StoreError};

/// Keys and values to list at most, and the longest value.
const MOST_KEYS: usize = 6;
const LONGEST_VALUE: usize = 40;

/// The rows of both tables whose results are gone, other than those of this plan. No later table can be made of folders with
/// them.
///
/// # Errors
///
/// The table of other results is unreadable or invalid, or a result's folder is unreadable.
pub(super) fn without_result(store: &Store, plan: &Plan) -> Result<Vec<Row>, String> {
    let kept = store.other_csv();
    let mut rows = match csv::read(&kept) {
        Err(error) if !is_missing(&error) => {
            return Err(format!("{error}\n = help: move {} away to start a new one", kept.display()));
        }
        kept => kept.unwrap_or_default(),
    };
    // Any other file is replaced by the table.
    rows.extend(csv::read(&store.csv()).unwrap_or_default());
    let own: HashSet<&str> = plan.runs.iter().map(|run| run.configuration.as_str()).collect();
    let (mut seen, mut without_result) = (HashSet::new(), Vec::new());
    for row in rows {
        let is_own = !row.configuration.is_empty() && own.contains(row.configuration.as_str());
        let is_measured = row.status.is_final() && row.status != Status::Skipped;
        if is_measured
            && !is_own
            && !store.has_result(&row.run_id, row.repeat).map_err(|error| error.to_string())?
            && seen.insert((row.run_id.clone(), row.strategy.clone(), row.repeat, row.axes.clone()))
        {
            without_result.push(row);
        }
    }
    Ok(without_result)
}

/// Writes the table of other results, or removes it if there are none.
pub(super) fn write(store: &Store, rows: &[Row]) -> Result<(), CsvError> {
    let file = store.other_csv();
    if !rows.is_empty() {
        return csv::write_file(&file, rows, &[]);
    }
    match fs::remove_file(&file) {
        Err(source) if source.kind() != ErrorKind::NotFound => Err(CsvError::Write { file, source }),
        _ => Ok(()),
    }
}

fn is_missing(error: &CsvError) -> bool {
    matches!(error, CsvError::Read { source, .. } if source.kind() == ErrorKind::NotFound)
}

/// ` Changed: train.batch_size = 4, now 8.`, or nothing if the keys of these rows are unknown.
pub(super) fn changes(plan: &Plan, rows: &[Row]) -> String {
    let planned: Vec<Row> = plan.runs.iter().map(|run| results::planned_row(plan, run, 1)).collect();
    let name = |row: &Row| Label::of(&row.strategy, &row.axes).name.to_owned();
    let mut by_name: HashMap<String, &Row> = HashMap::new();
    let mut by_label: HashMap<(&str, &[Axis]), &Row> = HashMap::new();
    for row in &planned {
        by_name.entry(name(row)).or_insert(row);
        by_label.insert((&row.strategy, &row.axes), row);
    }
    let mut changed: BTreeMap<String, [BTreeSet<String>; 2]> = BTreeMap::new();
    let (mut gone, mut all_known, mut seen) = (BTreeSet::new(), true, HashSet::new());
    for row in rows.iter().filter(|row| seen.insert((&row.strategy, &row.axes, &row.settings))) {
        let label = (row.strategy.as_str(), row.axes.as_slice());
        let Some(now) = by_label.get(&label).or_else(|| by_name.get(&name(row))) else {
            gone.insert(name(row));
            continue;
        };
        let (Some(old), Some(now)) = (Settings::parse(&row.settings), Settings::parse(&now.settings)) else {
            all_known = false;
            continue;
        };
        for key in Settings::differing(&[&old, &now]) {
            let values = [old.value(&key), now.value(&key)].map(|value| value.unwrap_or("none").to_owned());
            let both = changed.entry(key).or_default();
            both.iter_mut().zip(values).for_each(|(values, value)| values.extend([value]));
        }
    }
    let mut parts: Vec<String> =
        changed.iter().take(MOST_KEYS).map(|(key, values)| change(key, values)).collect();
    if changed.len() > MOST_KEYS {
        parts.push(format!("{} more keys", changed.len() - MOST_KEYS));
    }
    if !gone.is_empty() {
        let names: Vec<&str> = gone.iter().map(String::as_str).take(MOST_KEYS).collect();
        let more = if gone.len() > MOST_KEYS { " and others" } else { "" };
        let (strategies, are) = if gone.len() == 1 { ("strategy", "is") } else { ("strategies", "are") };
        parts.push(format!("{strategies} {}{more} {are} not in this file", names.join(", ")));
    }
    match parts.is_empty() {
        false => format!(" Changed: {}.", parts.join("; ")),
        true if all_known => " Changed: the data.".to_owned(),
        true => String::new(),
    }
}

/// `train.batch_size = 4, now 8`; without the values if there are several or if they are long.
fn change(key: &str, [old, now]: &[BTreeSet<String>; 2]) -> String {
    let one = |values: &BTreeSet<String>| {
        values.first().filter(|value| values.len() == 1 && value.len() <= LONGEST_VALUE).cloned()
    };
    match one(old).zip(one(now)) {
        Some((old, now)) => format!("{key} = {old}, now {now}"),
        None => key.to_owned(),
    }
}

/// The results that the table `all` does not hold, and the rows `without_result`, in the order of the file's strategies.
///
/// # Errors
///
/// A result is unreadable or invalid.
pub(super) fn find(
    store: &mut Store,
    plan: &Plan,
    all: &[Row],
    without_result: &[Row],
) -> Result<Vec<Row>, StoreError> {
    let mut rows = [store.others(all)?.as_slice(), without_result].concat();
    let mut order: HashMap<&str, usize> = HashMap::new();
    for run in &plan.runs {
        let next = order.len();
        order.entry(&run.strategy).or_insert(next);
    }
    rows.sort_by_cached_key(|row| {
        (order.get(row.strategy.as_str()).copied().unwrap_or(usize::MAX), row.run_id.clone(), row.repeat)
    });
    Ok(rows)
}

/// `8 results of tiny are of other versions of tiny.toml or of other files`
pub(super) fn counted(plan: &Plan, others: &[Row]) -> String {
    let (name, file) = (&plan.experiment, plan.file.file_name().unwrap_or_default().display());
    let (results, are) = if others.len() == 1 { ("result", "is") } else { ("results", "are") };
    format!("{} {results} of {name} {are} of other versions of {file} or of other files", others.len())
}
