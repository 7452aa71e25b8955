//! Private folders: written by one process, not read by others.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::StoreError;
use super::error::OUT;
use base::temporary::{self, AbandonedFile};
use execute::LOG_FILE;

/// A folder with a unique temporary name beside its final path. The holder of the lock on its log owns it: the process
/// that created it and its child, whose standard error is the log. Removed on drop unless committed.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    log: File,
    /// The option for its location, for error messages.
    option: &'static str,
    /// Whether the parent folder, if empty, is removed as well.
    with_parent: bool,
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
        Ok(PrivateFolder { path, log, option, with_parent: true, committed: false })
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
            Ok(()) => Ok(Some(PrivateFolder { path, log, option: OUT, with_parent: true, committed: false })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::write(place)(error)),
        }
    }

    /// Keeps the parent folder, which belongs to the user.
    pub(super) fn without_parent(self) -> PrivateFolder {
        let mut private = self;
        private.with_parent = false;
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
            if self.with_parent {
                // Fails if the parent is not empty.
                let _ = self.path.parent().map(fs::remove_dir);
            }
        }
    }
}

/// Removes leftovers of killed processes in an experiment's folder and in those of its runs.
pub(super) fn clean_runs(folder: &Path) -> Vec<AbandonedFile> {
    let mut in_doubt = clean(folder);
    let runs = names(folder).unwrap_or_default();
    for run_folder in runs.iter().map(|name| folder.join(name)).filter(|path| path.is_dir()) {
        in_doubt.extend(clean(&run_folder));
        // Succeeds only if the folder is empty.
        let _ = fs::remove_dir(&run_folder);
    }
    in_doubt
}

/// Removes leftovers of killed processes in a folder.
pub(super) fn clean(folder: &Path) -> Vec<AbandonedFile> {
    temporary::clean(folder, LOG_FILE)
}

/// The names in a folder; none if the folder does not exist.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, StoreError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::read(folder)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(StoreError::read(folder))?.file_name();
        names.extend(name.into_string().ok());
    }
    Ok(names)
}

/// Syncs a folder's entries to disk.
pub(super) fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(StoreError::write(folder))
}
