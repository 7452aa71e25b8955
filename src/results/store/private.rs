//! Private folders: written by one process, not read by others.

use std::fmt::Display;
use std::fs::{self, DirEntry, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::StoreError;
use super::error::OUT;
use base::regular;
use base::temporary::{self, AbandonedFile};
use execute::LOG_FILE;

/// The folders between an experiment's and a repeat's.
const OF_STORE: usize = 2;

/// A folder with a unique temporary name beside its final path. The holder of the lock on its log owns it: the process
/// that created it and its child, whose standard error is the log. Removed on drop unless committed.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    log: File,
    /// The option for its location, for error messages.
    option: &'static str,
    /// The number of folders above that are removed as well if they are empty.
    parents: usize,
    committed: bool,
}

impl PrivateFolder {
    pub(super) fn create(
        parent: &Path,
        name: impl Display,
        option: &'static str,
    ) -> Result<PrivateFolder, StoreError> {
        let make = |name: &str| {
            let path = parent.join(name);
            // May fail if another process removes the empty parent at the same time.
            fs::create_dir_all(&path)?;
            let log = temporary::create_locked(&path.join(LOG_FILE)).inspect_err(|_| {
                let _ = fs::remove_dir(&path);
            });
            Ok(log?.map(|log| (path, log)))
        };
        let (path, log) = temporary::with_name(&name, make)
            .map_err(|error| StoreError::make(&parent.join(name.to_string()))(error).of_option(option))?;
        Ok(PrivateFolder { path, log, option, parents: OF_STORE, committed: false })
    }

    /// Moves a committed folder to a private name, if it exists and is `unwanted`; that is evaluated under the lock.
    pub(super) fn take_away(
        place: &Path,
        unwanted: impl FnOnce() -> Result<bool, StoreError>,
    ) -> Result<Option<PrivateFolder>, StoreError> {
        let at_log = place.join(LOG_FILE);
        let Some(log) = temporary::lock(&at_log).map_err(StoreError::write(&at_log))? else {
            return Ok(None);
        };
        if !unwanted()? {
            return Ok(None);
        }
        let name = place.file_name().unwrap_or_default();
        let path = place.with_file_name(temporary::name(Path::new(name).display()));
        match fs::rename(place, &path) {
            Ok(()) => Ok(Some(PrivateFolder { path, log, option: OUT, parents: OF_STORE, committed: false })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::write(place)(error)),
        }
    }

    /// Keeps the parent folder, which belongs to the user.
    pub(super) fn without_parent(self) -> PrivateFolder {
        let mut private = self;
        private.parents = 0;
        private
    }

    /// The log: the child's standard error.
    pub fn log(&self) -> &File {
        &self.log
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write(&self, name: &str, contents: &[u8]) -> Result<(), StoreError> {
        let path = self.path.join(name);
        let write = || File::create(&path)?.write_all(contents);
        write().map_err(|error| StoreError::write(&path)(error).of_option(self.option))
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), StoreError> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::write(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Syncs all files and the folder to disk.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        for name in names(&self.path)? {
            let path = self.path.join(name);
            let synced = File::open(&path).and_then(|file| file.sync_all());
            synced.map_err(|error| StoreError::write(&path)(error).of_option(self.option))?;
        }
        sync_folder(&self.path).map_err(|error| error.of_option(self.option))
    }

    /// Marks the folder as renamed into place: it is no longer removed on drop.
    pub(super) fn committed(mut self) {
        self.committed = true;
        // Descendants of the child may still hold the log open; they must not block other processes.
        let _ = self.log.unlock();
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        if !self.committed {
            // If this fails, a later sweep removes the stale folder.
            let _ = fs::remove_dir_all(&self.path);
            // Fails at the first that is not empty.
            let _ = self.path.ancestors().skip(1).take(self.parents).try_for_each(fs::remove_dir);
        }
    }
}

/// Removes leftovers of killed processes in an experiment's folder and in those of its runs.
pub(super) fn clean_runs(folder: &Path) -> Vec<AbandonedFile> {
    let mut in_doubt = clean(folder);
    for group in folders(folder).unwrap_or_default().iter().map(|name| folder.join(name)) {
        for run_folder in folders(&group).unwrap_or_default().iter().map(|name| group.join(name)) {
            // A folder with a result only is left alone: there may be many.
            let names = names(&run_folder).unwrap_or_default();
            if names.is_empty() || names.iter().any(|name| name.starts_with('.')) {
                in_doubt.extend(clean(&run_folder));
                // Succeeds only if the folder is empty.
                let _ = fs::remove_dir(&run_folder);
            }
        }
        let _ = fs::remove_dir(&group);
    }
    in_doubt
}

/// Removes leftovers of killed processes in a folder.
pub(super) fn clean(folder: &Path) -> Vec<AbandonedFile> {
    temporary::clean(folder, LOG_FILE)
}

/// The names in a folder; none if the folder does not exist.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, StoreError> {
    Ok(entries(folder)?.into_iter().map(|(name, _)| name).collect())
}

fn entries(folder: &Path) -> Result<Vec<(String, DirEntry)>, StoreError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::read(folder)(error)),
    };
    let mut named = Vec::new();
    for entry in entries {
        let entry = entry.map_err(StoreError::read(folder))?;
        named.extend(entry.file_name().into_string().ok().map(|name| (name, entry)));
    }
    Ok(named)
}

/// The names of the folders in a folder, without hidden ones.
pub(super) fn folders(folder: &Path) -> Result<Vec<String>, StoreError> {
    let mut folders = Vec::new();
    for (name, entry) in entries(folder)?.into_iter().filter(|(name, _)| !name.starts_with('.')) {
        let path = folder.join(&name);
        // A link is followed.
        let is_folder = match entry.file_type() {
            Ok(kind) if !kind.is_symlink() => Ok(kind.is_dir()),
            _ => regular::is_folder(&path),
        };
        if is_folder.map_err(StoreError::read(&path))? {
            folders.push(name);
        }
    }
    Ok(folders)
}

/// Syncs a folder's entries to disk.
pub(super) fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(StoreError::write(folder))
}
