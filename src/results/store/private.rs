//! Folders that one process writes and no other reads.

use std::fmt::Display;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::StoreError;
use super::error::OUT;

/// `.<name>-<pid>@<host>-<random>`, next to where it is to be. Removed when it is dropped, unless it was committed.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
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
        let mut private = PrivateFolder::reserve(parent, name);
        private.option = option;
        let mut made = fs::create_dir_all(&private.path);
        // Another process may remove the parent, empty, between its making and ours in it.
        for _ in 0..10 {
            match &made {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    made = fs::create_dir_all(&private.path);
                }
                _ => break,
            }
        }
        made.map_err(|error| StoreError::make(&private.path)(error).of_option(option))?;
        Ok(private)
    }

    /// A name that nothing has yet.
    pub(super) fn reserve(parent: &Path, name: impl Display) -> PrivateFolder {
        let path = parent.join(format!(".{name}-{}", unique()));
        PrivateFolder { path, option: OUT, with_parent: true, committed: false }
    }

    /// The folder around it is the user's.
    pub(super) fn without_parent(self) -> PrivateFolder {
        let mut private = self;
        private.with_parent = false;
        private
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

/// Cleans the folder of each run.
pub(super) fn clean_runs(folder: &Path) {
    let Ok(runs) = names(folder) else { return };
    for run_folder in runs.iter().map(|name| folder.join(name)).filter(|path| path.is_dir()) {
        clean(&run_folder);
        // Succeeds only if nothing is in it.
        let _ = fs::remove_dir(&run_folder);
    }
}

/// Removes what processes that ended before their time have left behind. What is in doubt stays: a folder of
/// another host's, on a shared file system, may be in use there.
pub(super) fn clean(parent: &Path) {
    let stale = names(parent).unwrap_or_default().into_iter().filter(|name| is_stale(name));
    for name in stale {
        let _ = fs::remove_dir_all(parent.join(name));
    }
}

fn is_stale(name: &str) -> bool {
    let owner = name.strip_prefix('.').and_then(|name| name.split_once('-')).map(|(_, rest)| rest);
    let Some((pid, rest)) = owner.and_then(|owner| owner.split_once('@')) else {
        return false;
    };
    let host = rest.rsplit_once('-').map(|(host, _)| host);
    host == Some(host_name().as_str())
        && pid.parse::<u32>().is_ok()
        // Without a process file system nobody can be said to have ended.
        && Path::new("/proc/self").exists()
        && !Path::new("/proc").join(pid).exists()
}

/// Part of a name that nothing else has.
pub(super) fn unique() -> String {
    let random = RandomState::new().hash_one(());
    format!("{}-{random:016x}", owner())
}

/// This process, among all that share a file system.
pub(super) fn owner() -> String {
    format!("{}@{}", std::process::id(), host_name())
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().replace(|c: char| !c.is_ascii_alphanumeric(), "_")
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
