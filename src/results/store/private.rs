//! Folders that one process writes and no other reads.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::StoreError;
use super::error::OUT;
use base::temporary::{self, InDoubt};
use execute::LOG_FILE;

/// A folder under a name of its own, next to where it is to be. Whoever has the lock on its log owns it: the process that
/// made it and then, as the log is its standard error, its child. Removed when it is dropped, unless it was committed.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    log: File,
    /// The option that says where it lies, for advice.
    option: &'static str,
    /// Whether the folder around it, where nothing else is in it, is removed as well.
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
            // Another process may remove the parent, empty, between its making and ours in it.
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

    /// Moves a folder that is not private out of its place, if it is there and `unwanted` once nobody else can move it.
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

    /// The folder around it is the user's.
    pub(super) fn without_parent(self) -> PrivateFolder {
        let mut private = self;
        private.with_parent = false;
        private
    }

    /// What its child writes to its standard error.
    pub fn log(&self) -> &File {
        &self.log
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file.
    pub fn write(&self, name: &str, contents: &[u8]) -> Result<(), StoreError> {
        let path = self.path.join(name);
        let write = || File::create(&path)?.write_all(contents);
        write().map_err(|error| StoreError::write(&path)(error).of_option(self.option))
    }

    /// Everything in it is on the disk, or it is an error.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        for name in names(&self.path)? {
            let path = self.path.join(name);
            let synced = File::open(&path).and_then(|file| file.sync_all());
            synced.map_err(|error| StoreError::write(&path)(error).of_option(self.option))?;
        }
        sync_folder(&self.path).map_err(|error| error.of_option(self.option))
    }

    /// It has another name now, and is not private any more.
    pub(super) fn committed(mut self) {
        self.committed = true;
        // What a child has left behind, and holds the log open, does not keep others from the result.
        let _ = self.log.unlock();
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        if !self.committed {
            // What cannot be removed now is stale and removed by a later sweep.
            let _ = fs::remove_dir_all(&self.path);
            if self.with_parent {
                // Fails if anything else is in it.
                let _ = self.path.parent().map(fs::remove_dir);
            }
        }
    }
}

/// Removes what processes that ended before their time have left in the folder of an experiment and in those of its runs.
pub(super) fn clean_runs(folder: &Path) -> Vec<InDoubt> {
    let mut in_doubt = clean(folder);
    let runs = names(folder).unwrap_or_default();
    for run_folder in runs.iter().map(|name| folder.join(name)).filter(|path| path.is_dir()) {
        in_doubt.extend(clean(&run_folder));
        // Succeeds only if nothing is in it.
        let _ = fs::remove_dir(&run_folder);
    }
    in_doubt
}

/// Removes what processes that ended before their time have left in a folder.
pub(super) fn clean(folder: &Path) -> Vec<InDoubt> {
    temporary::clean(folder, LOG_FILE)
}

/// The names in a folder; none if it is not there.
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

/// New names in a folder are on the disk.
pub(super) fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(StoreError::write(folder))
}
