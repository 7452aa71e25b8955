//! The folders of runs and repeats.

use std::path::{Path, PathBuf};

use super::error::StoreError;
use super::{Store, private};
use base::parallel;

/// The folder of a run in the folder of its experiment, below the first two digits of its id.
pub fn run_folder(experiment: &Path, run_id: &str) -> PathBuf {
    experiment.join(group_of(run_id)).join(run_id)
}

fn group_of(run_id: &str) -> &str {
    run_id.get(..2).unwrap_or(run_id)
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
        let has_runs =
            || Ok::<_, StoreError>(private::folders(&folder)?.iter().any(|group| group.len() == 2));
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
        let ids = private::folders(&folder.join(&group))?;
        match ids.iter().find(|id| group_of(id) != group) {
            Some(id) if !repeats(&folder.join(&group).join(id))?.is_empty() => {
                let (found, place) = (folder.join(&group).join(id), run_folder(folder, id));
                Err(StoreError::Misplaced { found, place })
            }
            _ => Ok(ids),
        }
    };
    let groups = parallel::map(private::folders(folder)?, of_group);
    let mut ids = groups.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    ids.sort();
    Ok(ids)
}

pub(super) fn repeats(run_folder: &Path) -> Result<Vec<usize>, StoreError> {
    let mut repeats: Vec<usize> =
        private::names(run_folder)?.iter().filter_map(|name| name.parse().ok()).collect();
    repeats.sort_unstable();
    Ok(repeats)
}
