//! Merges the results of several folders into one table.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use super::store::{Expected, RESULT_FILE, Store, StoreError, experiments};
use super::{ExpectedRun, Row};

/// The results of several folders.
#[derive(Debug, Default)]
pub struct Collected {
    /// By experiment, in the order of its runs in the first folder.
    pub rows: Vec<Row>,
    /// Results that several folders have, and are in the table once.
    pub copies: usize,
    /// Repeats that were measured several times on equal targets. Each is a row.
    pub again: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{} holds no results\n = help: write the folders that `runner sweep` wrote with --out", .0.display())]
    NoResults(PathBuf),
    #[error(
        "two results of the same run contradict each other in `{column}`: {one} and {other}\n --> {}\n --> {}\n = help: \
         remove the wrong one, and sweep again",
        files[0].display(), files[1].display()
    )]
    Contradiction { column: &'static str, one: String, other: String, files: [PathBuf; 2] },
}

/// A result and the experiment's folder that holds it.
struct Found {
    row: Row,
    folder: usize,
}

/// The results of a repeat of a run.
type Repeats = BTreeMap<(String, usize), Vec<Found>>;

/// Merges all results of these folders, on any target. Runs on different targets have different ids. Labels are those of the
/// first folder's experiment, as at its last sweep.
///
/// # Errors
///
/// A folder is unreadable or has no results, or two results of a run contradict each other.
pub fn collect(folders: &[PathBuf]) -> Result<Collected, CollectError> {
    let mut stores: BTreeMap<String, Vec<Store>> = BTreeMap::new();
    for folder in folders {
        let names = experiments(folder)?;
        if names.is_empty() {
            return Err(CollectError::NoResults(folder.clone()));
        }
        for name in names {
            let store = Store::at(folder, &name);
            stores.entry(name).or_default().push(store);
        }
    }
    let mut collected = Collected::default();
    for (experiment, mut stores) in stores {
        let mut found = Repeats::new();
        for folder in 0..stores.len() {
            for row in stores[folder].all()? {
                let of_repeat = found.entry((row.run_id.clone(), row.repeat)).or_default();
                collected.add(of_repeat, Found { row, folder }, &stores)?;
            }
        }
        let mut expected = Vec::new();
        for store in &stores {
            expected.extend(store.expected()?);
        }
        collected.rows.extend(in_order(&experiment, found, &expected));
    }
    Ok(collected)
}

impl Collected {
    /// Adds a result to those of its repeat.
    fn add(&mut self, known: &mut Vec<Found>, new: Found, stores: &[Store]) -> Result<(), CollectError> {
        let is_final = |found: &Found| found.row.status.is_final();
        if known.iter().any(|found| found.row == new.row) {
            self.copies += 1;
        } else if known.first().is_none_or(|first| !is_final(first) && is_final(&new)) {
            *known = vec![new];
        } else if is_final(&new) {
            for found in known.iter() {
                check(found, &new, stores)?;
            }
            self.again += 1;
            known.push(new);
        }
        Ok(())
    }
}

/// Checks that two measurements of a repeat agree in all that is deterministic.
fn check(one: &Found, other: &Found, stores: &[Store]) -> Result<(), CollectError> {
    let same_program = one.row.version == other.row.version
        && one.row.instruction_set == other.row.instruction_set
        && !one.row.digest.is_empty()
        && !other.row.digest.is_empty();
    let status = |found: &Found| format!("{:?}", found.row.status).to_lowercase();
    let differing = if one.row.configuration != other.row.configuration {
        Some(("configuration", one.row.configuration.clone(), other.row.configuration.clone()))
    } else if one.row.status != other.row.status {
        Some(("status", status(one), status(other)))
    } else if same_program && one.row.digest != other.row.digest {
        Some(("digest", one.row.digest.clone(), other.row.digest.clone()))
    } else {
        None
    };
    let file = |found: &Found| {
        stores[found.folder].repeat_folder(&found.row.run_id, found.row.repeat).join(RESULT_FILE)
    };
    match differing {
        Some((column, first, second)) => {
            let files = [file(one), file(other)];
            Err(CollectError::Contradiction { column, one: first, other: second, files })
        }
        None => Ok(()),
    }
}

/// The rows of an experiment: those of expected runs with the labels and in the order of the lists, then the others.
fn in_order(experiment: &str, found: Repeats, expected: &[Expected]) -> Vec<Row> {
    let mut labels: HashMap<&str, Vec<(usize, &ExpectedRun)>> = HashMap::new();
    for list in expected {
        for (at, run) in list.runs.iter().enumerate() {
            let labels = labels.entry(&run.run_id).or_default();
            if !labels.iter().any(|(_, known)| *known == run) {
                labels.push((at, run));
            }
        }
    }
    let mut rows = Vec::new();
    for Found { row, .. } in found.into_values().flatten() {
        let row = Row { experiment: experiment.to_owned(), ..row };
        match labels.get(row.run_id.as_str()) {
            None => rows.push((usize::MAX, row)),
            Some(labels) => rows.extend(labels.iter().map(|(at, run)| {
                (*at, Row { strategy: run.strategy.clone(), axes: run.axes.clone(), ..row.clone() })
            })),
        }
    }
    // Stable: results of a repeat stay in the order of the folders.
    rows.sort_by_cached_key(|(at, row)| {
        (*at, row.strategy.clone(), row.axes.clone(), row.run_id.clone(), row.repeat)
    });
    rows.into_iter().map(|(_, row)| row).collect()
}
