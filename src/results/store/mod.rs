//! The store of results: `<out>/<experiment>/<first two digits of the run id>/<run id>/<repeat>/`. With 256 folders
//! between, a folder has few entries also with a million runs.
//!
//! A repeat is committed completely or not at all: written in a private folder, synced, renamed into place. The first
//! commit wins, so that processes on a shared file system never write the same file.

mod claims;
mod dumps;
mod error;
mod expected;
mod layout;
mod private;
mod probe;
mod result_file;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use claims::Claim;
pub use dumps::Dumps;
pub use error::StoreError;
pub use expected::{Expected, ExpectedRun};
pub use layout::{experiments, run_folder};
pub use private::PrivateFolder;

use super::{Row, Status};
use base::temporary::AbandonedFile;
use base::units::Bytes;
use base::{parallel, regular};
use claims::{CLAIM_FILE, Claimant};
use layout::{repeats, run_ids};
use plan::Plan;
use result_file::{is_final, read_result};

/// The file with the row of a result.
pub(crate) const RESULT_FILE: &str = "result.json";

/// Maximum size of files that are read at once.
const LARGEST: Bytes = Bytes(16 << 20);

/// An experiment's results.
#[derive(Debug)]
pub struct Store {
    out: PathBuf,
    folder: PathBuf,
    /// Cache of final results, which never change.
    cache: HashMap<(String, usize), Row>,
    in_doubt: Vec<AbandonedFile>,
}

/// The outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// This process's result was committed.
    Ours,
    /// Another process committed a final result first, which is kept.
    Theirs,
}

impl Store {
    /// Opens the results of an experiment for reading, if there are any.
    pub fn at(out: &Path, experiment: &str) -> Store {
        let folder = out.join(experiment);
        Store { out: out.to_path_buf(), folder, cache: HashMap::new(), in_doubt: Vec::new() }
    }

    /// Creates the folders and checks that they are writable.
    ///
    /// # Errors
    ///
    /// A path cannot be created or written to, or the disk is full.
    pub fn open(out: &Path, experiment: &str) -> Result<Store, StoreError> {
        let mut store = Store::at(out, experiment);
        store.clean();
        probe::check_writable(&store.out, &store.folder)?;
        private::sync_folder(out)?;
        Ok(store)
    }

    /// Removes leftovers of killed sweeps. Their children own their folders until they end.
    pub fn clean(&mut self) {
        self.in_doubt = private::clean(&self.out);
        self.in_doubt.extend(private::clean_runs(&self.folder));
    }

    /// Possible leftovers of killed sweeps that could not be removed.
    pub fn in_doubt(&self) -> &[AbandonedFile] {
        &self.in_doubt
    }

    /// The path of the table of all results.
    pub fn csv(&self) -> PathBuf {
        let mut name = self.folder.clone().into_os_string();
        name.push(".csv");
        PathBuf::from(name)
    }

    /// The path of the table of the results that the table of the experiment does not hold.
    pub fn other_csv(&self) -> PathBuf {
        self.folder.join("other.csv")
    }

    /// The folder of a committed repeat.
    pub fn repeat_folder(&self, run_id: &str, repeat: usize) -> PathBuf {
        self.run_folder(run_id).join(repeat.to_string())
    }

    fn run_folder(&self, run_id: &str) -> PathBuf {
        run_folder(&self.folder, run_id)
    }

    /// The claims of processes on repeats.
    ///
    /// # Errors
    ///
    /// A folder is unreadable.
    pub fn claims(&self) -> Result<Vec<Claim>, StoreError> {
        let of_run = |run_id: String| claims::in_run(&run_id, &self.run_folder(&run_id));
        let claims = parallel::map(run_ids(&self.folder)?, of_run).into_iter();
        Ok(claims.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// The result of a repeat, if it is final; others are retried.
    ///
    /// # Errors
    ///
    /// A result is unreadable or invalid.
    pub fn finished(&mut self, run_id: &str, repeat: usize) -> Result<Option<Row>, StoreError> {
        Ok(self.result(run_id, repeat)?.filter(|row| row.status.is_final()))
    }

    /// All final results of a run, in the order of its repeats.
    ///
    /// # Errors
    ///
    /// A result is unreadable or invalid.
    pub fn finished_repeats(&mut self, run_id: &str) -> Result<Vec<Row>, StoreError> {
        let repeats = repeats(&self.run_folder(run_id))?;
        let rows = repeats.into_iter().map(|repeat| self.finished(run_id, repeat));
        rows.filter_map(Result::transpose).collect()
    }

    /// The contents of a file of a run's first final result, if the file exists.
    ///
    /// # Errors
    ///
    /// A result is unreadable or invalid, or the file is unreadable.
    pub fn file_of_first(&mut self, run_id: &str, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(first) = self.finished_repeats(run_id)?.into_iter().next() else { return Ok(None) };
        let file = self.repeat_folder(run_id, first.repeat).join(name);
        match regular::read(&file, LARGEST) {
            Ok(contents) => Ok(Some(contents)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::read(&file)(error)),
        }
    }

    /// Creates a private folder for a repeat, with this process's claim.
    pub fn begin(&self, run_id: &str, repeat: usize) -> Result<PrivateFolder, StoreError> {
        let private = PrivateFolder::create(&self.run_folder(run_id), repeat, error::OUT)?;
        let claim = serde_json::to_vec(&Claimant::this())
            .map_err(|error| StoreError::write(private.path())(error.into()))?;
        private.write(CLAIM_FILE, &claim)?;
        Ok(private)
    }

    /// Writes the row into the private folder and commits it as the result of its repeat. An older result that is not
    /// final is replaced.
    ///
    /// # Errors
    ///
    /// The disk is full or fails. No partial result is left in place.
    pub fn commit(&mut self, private: PrivateFolder, row: &Row) -> Result<Committed, StoreError> {
        let text = serde_json::to_vec_pretty(row)
            .map_err(|error| StoreError::write(&private.path().join(RESULT_FILE))(error.into()))?;
        private.write(RESULT_FILE, &text)?;
        private.remove(CLAIM_FILE)?;
        private.sync()?;
        let place = self.repeat_folder(&row.run_id, row.repeat);
        loop {
            match fs::rename(private.path(), &place) {
                Ok(()) => break,
                Err(error) if is_taken(&error) => {}
                Err(error) => return Err(StoreError::write(&place)(error)),
            }
            if !move_aside(&place)? {
                return Ok(Committed::Theirs);
            }
        }
        private.committed();
        // The run's folder may be new, and the one above.
        let run_folder = self.run_folder(&row.run_id);
        run_folder.ancestors().take(3).try_for_each(private::sync_folder)?;
        Ok(Committed::Ours)
    }

    /// Removes all results of a run, except repeats that a process is writing now.
    pub fn forget(&mut self, run_id: &str) -> Result<(), StoreError> {
        for repeat in repeats(&self.run_folder(run_id))? {
            // Removed on drop.
            PrivateFolder::take_away(&self.repeat_folder(run_id, repeat), || Ok(true))?;
        }
        self.cache.retain(|(id, _), _| id != run_id);
        Ok(())
    }

    /// All results, on any target, that belong to the current plan, in the plan's order. Labels are not part of a run's
    /// identity: names, axes and keys without effect come from the plan, and so do the `skipped` rows of invalid
    /// combinations.
    ///
    /// # Errors
    ///
    /// A result is unreadable or invalid.
    pub fn rows(&mut self, plan: &Plan) -> Result<Vec<Row>, StoreError> {
        let expected = Expected::of(plan);
        let planned: HashMap<&str, &str> =
            expected.runs.iter().map(|run| (run.run_id.as_str(), run.configuration.as_str())).collect();
        let mut found: HashMap<String, Vec<Row>> = HashMap::new();
        for row in self.all()? {
            if planned
                .get(row.run_id.as_str())
                .is_some_and(|configuration| *configuration != row.configuration)
            {
                let result = format!("another configuration, {}", row.configuration);
                return Err(self.of_another(&row.run_id, row.repeat, result));
            }
            found.entry(row.configuration.clone()).or_default().push(row);
        }
        let mut rows = Vec::new();
        for run in &expected.runs {
            if let Some(row) = &run.skipped {
                rows.push(Row::clone(row));
                continue;
            }
            let mut of_run = found.get(&run.configuration).cloned().unwrap_or_default();
            // Results on this target come first.
            of_run.sort_by_key(|row| (row.run_id != run.run_id, row.run_id.clone(), row.repeat));
            rows.extend(of_run.into_iter().map(|row| expected.labelled(&plan.experiment, run, row)));
        }
        Ok(rows)
    }

    /// Merges a sweep with overrides (`--set`) into an existing table: the table's rows with their labels, then the
    /// sweep's rows that are missing. If the table has other rows, the sweep's rows get the overrides as additional
    /// axes. Rows of the table without a result are dropped.
    ///
    /// # Errors
    ///
    /// A result is unreadable or invalid.
    pub fn beside(
        &mut self,
        table: Vec<Row>,
        of_sweep: &[Row],
        overrides: &[(String, String)],
    ) -> Result<Vec<Row>, StoreError> {
        let mut rows = Vec::new();
        for old in table {
            if old.status == Status::Skipped {
                rows.push(old);
            } else if let Some(now) = self.result(&old.run_id, old.repeat)? {
                let Row { experiment, strategy, axes, no_effect, .. } = old;
                rows.push(Row { experiment, strategy, axes, no_effect, ..now });
            }
        }
        let overridden = |row: &Row| Row { axes: [&row.axes, overrides].concat(), ..row.clone() };
        let own: HashSet<_> =
            of_sweep.iter().flat_map(|row| [table_key(row), table_key(&overridden(row))]).collect();
        if rows.iter().all(|row| own.contains(&table_key(row))) {
            return Ok(of_sweep.to_vec());
        }
        let known: HashSet<_> = rows.iter().map(table_key).collect();
        let new = of_sweep.iter().filter(|row| !known.contains(&table_key(row))).map(overridden);
        rows.extend(new.filter(|row| !known.contains(&table_key(row))));
        Ok(rows)
    }

    /// The final results that a table does not hold, with the labels under which they were measured: of other versions of
    /// the file, of other files of the same name, and of overrides.
    ///
    /// # Errors
    ///
    /// A result is unreadable or invalid.
    pub fn others(&mut self, table: &[Row]) -> Result<Vec<Row>, StoreError> {
        let held: HashSet<(&str, usize)> =
            table.iter().map(|row| (row.run_id.as_str(), row.repeat)).collect();
        let mut others = self.all()?;
        others.retain(|row| row.status.is_final() && !held.contains(&(row.run_id.as_str(), row.repeat)));
        Ok(others)
    }

    /// Whether a repeat has a result, valid or not.
    ///
    /// # Errors
    ///
    /// The repeat's folder cannot be read.
    pub fn has_result(&self, run_id: &str, repeat: usize) -> Result<bool, StoreError> {
        let file = self.repeat_folder(run_id, repeat).join(RESULT_FILE);
        use io::ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound};
        match file.symlink_metadata() {
            Ok(_) => Ok(true),
            // The last two: the id is no file name. It comes from a table.
            Err(error)
                if matches!(error.kind(), NotFound | NotADirectory | InvalidFilename | InvalidInput) =>
            {
                Ok(false)
            }
            Err(error) => Err(StoreError::read(&file)(error)),
        }
    }

    /// Every result, sorted by run and repeat.
    ///
    /// # Errors
    ///
    /// A result is unreadable, invalid or in a wrong folder.
    pub fn all(&mut self) -> Result<Vec<Row>, StoreError> {
        let of_run = |run_id: String| {
            let repeats = repeats(&self.run_folder(&run_id))?.into_iter();
            let rows = repeats.filter_map(|repeat| match self.cache.get(&(run_id.clone(), repeat)) {
                Some(row) => Some(Ok(row.clone())),
                None => self.read(&run_id, repeat).transpose(),
            });
            rows.collect::<Result<Vec<Row>, StoreError>>()
        };
        let rows: Vec<Vec<Row>> =
            parallel::map(run_ids(&self.folder)?, of_run).into_iter().collect::<Result<_, _>>()?;
        let rows: Vec<Row> = rows.into_iter().flatten().collect();
        rows.iter().for_each(|row| self.keep(row));
        Ok(rows)
    }

    fn result(&mut self, run_id: &str, repeat: usize) -> Result<Option<Row>, StoreError> {
        if let Some(row) = self.cache.get(&(run_id.to_string(), repeat)) {
            return Ok(Some(row.clone()));
        }
        let row = self.read(run_id, repeat)?;
        row.iter().for_each(|row| self.keep(row));
        Ok(row)
    }

    /// Caches a final result.
    fn keep(&mut self, row: &Row) {
        if row.status.is_final() {
            self.cache.entry((row.run_id.clone(), row.repeat)).or_insert_with(|| row.clone());
        }
    }

    fn read(&self, run_id: &str, repeat: usize) -> Result<Option<Row>, StoreError> {
        let folder = self.repeat_folder(run_id, repeat);
        let row = read_result(&folder)?;
        if let Some(other) = row.as_ref().filter(|row| (row.run_id.as_str(), row.repeat) != (run_id, repeat))
        {
            return Err(self.of_another(
                run_id,
                repeat,
                format!("{}, repeat {}", other.run_id, other.repeat),
            ));
        }
        Ok(row)
    }

    fn of_another(&self, run_id: &str, repeat: usize, result: String) -> StoreError {
        let folder = self.repeat_folder(run_id, repeat);
        StoreError::OfAnother { file: folder.join(RESULT_FILE), folder, result }
    }
}

/// The identity of a row in a table. Axes are sorted, since tables order them differently.
fn table_key(row: &Row) -> (String, String, usize, Vec<(String, String)>) {
    let mut axes = row.axes.clone();
    axes.sort();
    (row.run_id.clone(), row.strategy.clone(), row.repeat, axes)
}

/// Moves an existing result aside unless it is final. Returns whether the path may be free now.
fn move_aside(place: &Path) -> Result<bool, StoreError> {
    let unwanted = || is_final(place).map(|is_final| !is_final);
    let Some(aside) = PrivateFolder::take_away(place, unwanted)? else { return unwanted() };
    if !is_final(aside.path())? {
        return Ok(true);
    }
    // On file systems without locks, another process may have replaced it by a final result before the move: move that
    // back. If yet another process has committed in the meantime, that result is now the first.
    match fs::rename(aside.path(), place) {
        Err(error) if !is_taken(&error) => Err(StoreError::write(place)(error)),
        _ => Ok(false),
    }
}

/// Whether renaming failed because the destination folder exists and is not empty.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists)
}

#[cfg(test)]
mod tests;
