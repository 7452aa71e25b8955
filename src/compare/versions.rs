//! Rows of several versions of an experiment file, which have one label for different configurations.

use std::collections::{BTreeSet, HashMap};

use super::axes;
use plan::{Axis, Label};
use results::{Row, Settings, Status};

/// With more differing keys, labels would be too long to read.
const MOST_KEYS: usize = 4;

/// Makes labels of different configurations distinct: by the keys that differ, so that `plain` becomes `plain/lr=0.002`
/// and `--by lr` selects them; if these are many, by `sources`, the names of the rows' tables: `plain (before)`.
pub fn tell_apart(rows: &mut [Row], sources: &[String]) {
    label_by_keys(rows, MOST_KEYS);
    label_by_source(rows, sources);
    // Several versions in one table.
    label_by_keys(rows, usize::MAX);
}

fn label_by_keys(rows: &mut [Row], most: usize) {
    let same = same_labels(rows, |row| &row.configuration).into_iter();
    let labelled: Vec<Configuration> = same.filter_map(|same| by_keys(rows, same, most)).flatten().collect();
    let swept = rows.iter().flat_map(|row| &row.axes).chain(labelled.iter().flat_map(|one| &one.keys));
    let names: BTreeSet<String> = swept.map(|(key, _)| key.clone()).collect();
    let names: Vec<String> = names.into_iter().collect();
    for Configuration { rows: of, keys } in labelled {
        of.into_iter().for_each(|at| keys.iter().for_each(|axis| add_key(&mut rows[at], axis, &names)));
    }
}

/// Runs may also differ in their data or in the number of threads.
fn label_by_source(rows: &mut [Row], sources: &[String]) {
    for same in same_labels(rows, |row| &row.run_id) {
        let names: BTreeSet<&String> = same.iter().map(|one| &sources[one[0]]).collect();
        if names.len() > 1 {
            let all = same.iter().flat_map(|one| one.iter().map(|at| (*at, one[0])));
            all.for_each(|(at, first)| add_source(&mut rows[at], &sources[first]));
        }
    }
}

/// The rows of a configuration, and the keys to label them by.
struct Configuration {
    rows: Vec<usize>,
    keys: Vec<Axis>,
}

/// The rows that share a label on a machine, by their identity in the order of the rows, where there are several.
fn same_labels(rows: &[Row], identity: fn(&Row) -> &str) -> Vec<Vec<Vec<usize>>> {
    let mut labels: Vec<Vec<Vec<usize>>> = Vec::new();
    let mut indices = HashMap::new();
    for (at, row) in rows.iter().enumerate() {
        // Invalid combinations and rows of other programs have no identity.
        if identity(row).is_empty() || row.status == Status::Skipped {
            continue;
        }
        let mut axes: Vec<&Axis> = row.axes.iter().collect();
        axes.sort();
        let machine = (&row.device, row.limit_bytes.filter(|_| row.limited), row.host_limit_bytes);
        let key = (&row.experiment, &row.strategy, axes, machine);
        let index = *indices.entry(key).or_insert(labels.len());
        if index == labels.len() {
            labels.push(Vec::new());
        }
        let is_of = |one: &&mut Vec<usize>| identity(&rows[one[0]]) == identity(row);
        match labels[index].iter_mut().find(is_of) {
            Some(one) => one.push(at),
            None => labels[index].push(vec![at]),
        }
    }
    labels.retain(|identities| identities.len() > 1);
    labels
}

/// The configurations with the keys that differ. `None` if these are unknown, none, or more than `most`.
fn by_keys(rows: &[Row], same: Vec<Vec<usize>>, most: usize) -> Option<Vec<Configuration>> {
    let settings: Vec<Settings> =
        same.iter().map(|one| Settings::parse(&rows[one[0]].settings)).collect::<Option<_>>()?;
    let differing = Settings::differing(&settings.iter().collect::<Vec<_>>());
    if differing.is_empty() || differing.len() > most {
        return None;
    }
    let with_keys = same.into_iter().zip(&settings).map(|(rows, settings)| {
        let keys = differing.iter().filter_map(|key| Some((key.clone(), settings.value(key)?.to_owned())));
        Configuration { rows, keys: keys.collect() }
    });
    Some(with_keys.collect())
}

/// Adds a key to a row's label and axes. `names`: all keys of the table.
fn add_key(row: &mut Row, (key, value): &Axis, names: &[String]) {
    let separator = if Label::of(&row.strategy, &row.axes).parts.is_empty() { '/' } else { ',' };
    let name = axes::distinct_end(key, names);
    row.strategy.push_str(&format!("{separator}{name}={}", value.trim_matches('"')));
    row.axes.push((key.clone(), value.clone()));
}

/// Adds a table's name to a row's label, before the keys swept inside its strategy.
fn add_source(row: &mut Row, source: &str) {
    let named = Label::of(&row.strategy, &row.axes).name.len();
    row.strategy.insert_str(named, &format!(" ({source})"));
}
