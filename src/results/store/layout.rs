//! The folders of runs and repeats.

use std::path::{Path, PathBuf};

use super::error::StoreError;
use super::{RESULT_FILE, Store, private};
use base::parallel;

/// The folder of a run in the folder of its experiment, below the first two digits of its id.
pub fn run_folder(experiment: &Path, run_id: &str) -> PathBuf {
    experiment.join(group_of(run_id)).join(run_id)
}

fn group_of(run_id: &str) -> &str {
    run_id.get(..2).unwrap_or(run_id)
}

fn is_group(name: &str) -> bool {
    name.len() == 2 && name.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// The names of the experiments with results in a folder of results, sorted.
///
/// # Errors
///
/// A folder is unreadable.
pub fn experiments(out: &Path) -> Result<Vec<String>, StoreError> {
    let mut names = Vec::new();
    for name in private::folders(out)? {
        let folder = out.join(&name);
        let has_runs = || Ok::<_, StoreError>(private::folders(&folder)?.iter().any(|name| is_group(name)));
        if !Store::at(out, &name).lists()?.is_empty() || has_runs()? {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The ids of all runs in an experiment's folder, sorted.
///
/// # Errors
///
/// A folder is unreadable, or a run is in the wrong one, where no sweep would find it.
pub(super) fn run_ids(folder: &Path) -> Result<Vec<String>, StoreError> {
    let of_group = |group: String| {
        let path = folder.join(&group);
        if !is_group(&group) && has_results(&path)? {
            return Err(StoreError::Misplaced { found: path, place: run_folder(folder, &group) });
        }
        let (ids, others): (Vec<_>, Vec<_>) =
            private::folders(&path)?.into_iter().partition(|id| group_of(id) == group);
        for id in others {
            let found = path.join(&id);
            if has_results(&found)? {
                return Err(StoreError::Misplaced { found, place: run_folder(folder, &id) });
            }
        }
        Ok(ids)
    };
    let groups = parallel::map(private::folders(folder)?, of_group);
    let mut ids = groups.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    ids.sort();
    Ok(ids)
}

/// Whether it is the folder of a run with results.
fn has_results(folder: &Path) -> Result<bool, StoreError> {
    let is_result = |repeat: &usize| folder.join(repeat.to_string()).join(RESULT_FILE).exists();
    Ok(repeats(folder)?.iter().any(is_result))
}

pub(super) fn repeats(run_folder: &Path) -> Result<Vec<usize>, StoreError> {
    let mut repeats: Vec<usize> =
        private::names(run_folder)?.iter().filter_map(|name| name.parse().ok()).collect();
    repeats.sort_unstable();
    Ok(repeats)
}
