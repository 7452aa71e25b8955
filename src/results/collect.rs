//! Merges the results of several folders into one table.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use super::store::{Expected, RESULT_FILE, Store, StoreError, experiments};
use super::{ExpectedRun, Row};

/// The results of several folders.
#[derive(Debug, Default)]
pub struct Collected {
    /// By experiment, in the order of its runs in the first folder, with skipped runs.
    pub rows: Vec<Row>,
    /// Results that several folders have, and are in the table once.
    pub copies: usize,
    /// Repeats that were measured several times on equal targets. Each is a row.
    pub remeasured: usize,
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
/// first folder whose sweeps planned the run, as at its last sweep.
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
            self.remeasured += 1;
            known.push(new);
        }
        Ok(())
    }
}

/// Checks that two measurements of a repeat agree in all that is deterministic. Versions of the program may differ in memory.
fn check(one: &Found, other: &Found, stores: &[Store]) -> Result<(), CollectError> {
    let same_program =
        one.row.version == other.row.version && one.row.instruction_set == other.row.instruction_set;
    let have_digests = !one.row.digest.is_empty() && !other.row.digest.is_empty();
    let differing = if one.row.configuration != other.row.configuration {
        Some(("configuration", one.row.configuration.clone(), other.row.configuration.clone()))
    } else if same_program && one.row.status != other.row.status {
        Some(("status", one.row.status.to_string(), other.row.status.to_string()))
    } else if same_program && have_digests && one.row.digest != other.row.digest {
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

/// The rows of an experiment: those of expected runs with the labels and at the positions of the first list that holds the
/// run, then the others.
fn in_order(experiment: &str, found: Repeats, lists: &[Expected]) -> Vec<Row> {
    // By run id and by configuration.
    let mut first_list: HashMap<&str, usize> = HashMap::new();
    let mut labels: HashMap<&str, Vec<(usize, usize, &ExpectedRun)>> = HashMap::new();
    let mut rows = Vec::new();
    for (number, list) in lists.iter().enumerate() {
        for (at, run) in list.runs.iter().enumerate() {
            let mut is_first = |key| *first_list.entry(key).or_insert(number) == number;
            if let Some(row) = run.skipped.as_deref().filter(|_| is_first(&run.run_id)) {
                rows.push(((at, number, false), Row { experiment: experiment.to_owned(), ..row.clone() }));
            }
            if is_first(&run.configuration) {
                labels.entry(&run.configuration).or_default().push((at, number, run));
            }
        }
    }
    for Found { row, .. } in found.into_values().flatten() {
        match labels.get(row.configuration.as_str()) {
            None => rows.push(((usize::MAX, 0, false), Row { experiment: experiment.to_owned(), ..row })),
            Some(labels) => rows.extend(labels.iter().map(|&(at, number, run)| {
                let is_elsewhere = row.run_id != run.run_id;
                ((at, number, is_elsewhere), lists[number].labelled(experiment, run, row.clone()))
            })),
        }
    }
    // Stable: results of a repeat stay in the order of the folders.
    rows.sort_by_cached_key(|(at, row)| {
        (*at, row.strategy.clone(), row.axes.clone(), row.run_id.clone(), row.repeat)
    });
    rows.into_iter().map(|(_, row)| row).collect()
}
