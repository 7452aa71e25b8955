//! Rows of several versions of an experiment file, which have one label for different configurations.

use std::collections::HashMap;

use super::{axes, group};
use plan::{Axis, Label};
use results::{Row, Settings, Status};

/// With more differing keys, labels would be too long to read.
const MOST_KEYS: usize = 4;

/// Makes labels of different configurations distinct: by the keys that differ, so that `plain` becomes `plain/lr=0.002`
/// and `--by lr` selects them, else by `sources`, the names of the rows' tables: `plain (before)`.
pub fn tell_apart(rows: &mut [Row], sources: &[String]) {
    let swept: Vec<String> = rows.iter().flat_map(|row| &row.axes).map(|(key, _)| key.clone()).collect();
    let same = same_labels(rows, |row| &row.configuration).into_iter();
    let by_keys: Vec<Vec<Configuration>> = same.filter_map(|same| by_keys(rows, same)).collect();
    let names: Vec<String> =
        by_keys.iter().flatten().flat_map(|one| &one.keys).map(|(key, _)| key.clone()).collect();
    let names = [swept, names].concat();
    for Configuration { rows: of, keys } in by_keys.into_iter().flatten() {
        of.into_iter().for_each(|at| keys.iter().for_each(|axis| add_key(&mut rows[at], axis, &names)));
    }
    // Runs may also differ in their data or in the number of threads.
    for same in same_labels(rows, |row| &row.run_id) {
        let mut names: Vec<&String> = same.iter().map(|one| &sources[one[0]]).collect();
        names.sort();
        names.dedup();
        if names.len() > 1 {
            same.iter()
                .for_each(|one| one.iter().for_each(|at| add_source(&mut rows[*at], &sources[one[0]])));
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
        let mut axes = row.axes.clone();
        axes.sort();
        let key = (&row.experiment, &row.strategy, axes, group::machine_of(row));
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

/// The configurations with the keys that differ. `None` if these are unknown, too many or none.
fn by_keys(rows: &[Row], same: Vec<Vec<usize>>) -> Option<Vec<Configuration>> {
    let settings: Vec<Settings> =
        same.iter().map(|one| Settings::parse(&rows[one[0]].settings)).collect::<Option<_>>()?;
    let differing = Settings::differing(&settings.iter().collect::<Vec<_>>());
    if differing.is_empty() || differing.len() > MOST_KEYS {
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
    let name = axes::last_word(key, names);
    row.strategy.push_str(&format!("{separator}{name}={}", value.trim_matches('"')));
    row.axes.push((key.clone(), value.clone()));
}

/// Adds a table's name to a row's label, before the keys swept inside its strategy.
fn add_source(row: &mut Row, source: &str) {
    let named = Label::of(&row.strategy, &row.axes).name.len();
    row.strategy.insert_str(named, &format!(" ({source})"));
}
