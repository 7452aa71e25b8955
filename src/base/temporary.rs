//! Files and folders under temporary names until they are complete, and removal of abandoned ones.
//!
//! The owner holds a file lock as long as it uses the file, or one lock file in the folder. The lock ends with its
//! process and its children, in whatever way they end. It is visible to all that share the file system: other
//! containers, where process ids differ, and other machines. Whoever gets the lock may remove the file as abandoned; on
//! file systems without locks, nothing is removed.

use std::fmt::{self, Display};
use std::fs::{self, DirEntry, File, FileType, Metadata, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, SystemTime};

/// Separates the target name from machine id and random number.
const MARK: &str = ".runner-";

/// Some file systems keep locks local to a machine. Files of another machine that have not changed for this long count
/// as abandoned.
const ABANDONED_AFTER: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Limit of attempts: another process may remove a file before it is locked, but never this often.
const ATTEMPTS: u32 = 100;

/// The pause after the first attempt. It grows with each attempt, so that cleaning ends in between.
const PAUSE: Duration = Duration::from_micros(100);

/// A unique temporary name for `of`: `.<of>.runner-<machine>-<random>`.
pub fn name(of: impl Display) -> String {
    let random = RandomState::new().hash_one(());
    format!(".{of}{MARK}{}-{random:016x}", *MACHINE)
}

/// The id of a machine without a boot id.
const UNKNOWN: &str = "00000000000000000000000000000000";

/// The boot id, which containers on the machine share. Processes with the same id are certain to see each other's
/// locks. It is read once, so that names are consistent even when files can no longer be opened.
static MACHINE: LazyLock<String> = LazyLock::new(|| {
    let start = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = start.chars().filter(char::is_ascii_hexdigit).collect();
    if digits.len() == UNKNOWN.len() { digits } else { UNKNOWN.to_owned() }
});

fn is_this_machine(machine: &str) -> bool {
    machine != UNKNOWN && machine == *MACHINE
}

/// The machine id in a temporary name.
fn machine_in(name: &str) -> Option<&str> {
    let (_, owner) = name.strip_prefix('.')?.rsplit_once(MARK)?;
    let (machine, random) = owner.split_once('-')?;
    let is_number = |text: &str, digits| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    (is_number(machine, UNKNOWN.len()) && is_number(random, 16)).then_some(machine)
}

/// What is known about the owner of a temporary folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Alive,
    Gone,
    /// The file system has no locks, or the owner is on another machine and its locks may be local.
    Unknown,
}

/// A temporary folder's target name and its owner, whose lock file is in it. `None` if it is no temporary folder.
pub fn owner(folder: &Path, lock_file: &str) -> Option<(String, Owner)> {
    let name = folder.file_name()?.to_str()?;
    let is_ours = is_this_machine(machine_in(name)?);
    let (of, _) = name.strip_prefix('.')?.rsplit_once(MARK)?;
    // A shared lock needs no permission to write. Cleaning processes leave the folder alone in the meantime.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let lock = OpenOptions::new().read(true).custom_flags(flags).open(folder.join(lock_file));
    let owner = match lock.map(|file| file.try_lock_shared()) {
        Ok(Err(TryLockError::WouldBlock)) => Owner::Alive,
        Ok(Ok(())) if is_ours => Owner::Gone,
        _ => Owner::Unknown,
    };
    Some((of.to_owned(), owner))
}

/// Calls `make` with new names until it succeeds. `make` returns `None` if another process has removed the file.
pub fn with_name<T>(of: impl Display, mut make: impl FnMut(&str) -> io::Result<Option<T>>) -> io::Result<T> {
    for attempt in 1..ATTEMPTS {
        match make(&name(&of)) {
            Ok(None) => {}
            Ok(Some(made)) => return Ok(made),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        thread::sleep(PAUSE * attempt);
    }
    make(&name(&of))?.ok_or_else(|| io::Error::other("it was removed by another process repeatedly"))
}

/// Creates and locks a file for writing and reading. An existing link is not followed. `None` if the file exists, or if
/// a cleaning process removed it before the lock.
pub fn create_locked(path: &Path) -> io::Result<Option<File>> {
    let file = match File::options().read(true).append(true).create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        file => file?,
    };
    match wait_for_lock(&file).and_then(|()| is_at(&file, path)) {
        Ok(is_ours) => Ok(is_ours.then_some(file)),
        Err(error) => {
            let _ = fs::remove_file(path);
            Err(error)
        }
    }
}

/// Waits for the lock on a file, which is created if its folder exists. `None` if the folder is gone.
pub fn lock(path: &Path) -> io::Result<Option<File>> {
    loop {
        let file = match open(path, true) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        wait_for_lock(&file)?;
        if is_at(&file, path)? {
            return Ok(Some(file));
        }
    }
}

/// Waits for the lock on a file. On file systems without locks it succeeds at once: nothing is removed there.
fn wait_for_lock(file: &File) -> io::Result<()> {
    loop {
        match file.lock() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if has_no_locks(&error) => return Ok(()),
            locked => return locked,
        }
    }
}

fn has_no_locks(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(libc::ENOLCK)
}

/// Opens a file to lock it. Links are refused, and pipes, whose opening may block.
fn open(path: &Path, make: bool) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().append(true).create(make).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

/// Whether the path still refers to the open file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let same = |a: Metadata, b: Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(same(found, file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A file under a temporary name. Dropping it removes the file, unless it was renamed.
#[derive(Debug)]
pub struct TemporaryFile {
    path: PathBuf,
    file: File,
}

impl TemporaryFile {
    /// Creates a temporary file in the folder of `file`.
    pub fn beside(file: &Path) -> io::Result<TemporaryFile> {
        let target = file.file_name().ok_or_else(|| io::Error::other("the path has no file name"))?;
        with_name(Path::new(target).display(), |name| {
            let path = file.with_file_name(name);
            Ok(create_locked(&path)?.map(|file| TemporaryFile { path, file }))
        })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Renames it to `file` atomically: readers see either the old or the complete new file.
    pub fn replace(self, file: &Path) -> io::Result<()> {
        fs::rename(&self.path, file)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // Fails without consequence if the file was renamed.
        let _ = fs::remove_file(&self.path);
    }
}

/// Replaces a file atomically after the new content has been synced to disk; on an error the old file stays.
pub fn replace(file: &Path, write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> io::Result<()> {
    let temporary = TemporaryFile::beside(file)?;
    let mut to = BufWriter::new(temporary.file());
    write(&mut to)?;
    to.flush()?;
    drop(to);
    temporary.file().sync_all()?;
    temporary.replace(file)
}

/// A file or folder that may be abandoned but could not be removed, usually because the file system has no locks.
#[derive(Debug)]
pub struct AbandonedFile {
    path: PathBuf,
    error: io::Error,
}

impl fmt::Display for AbandonedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        write!(
            f,
            "{path} may be abandoned and was not removed: {}; remove it while no sweep runs",
            self.error
        )
    }
}

/// Removes abandoned temporary files in a folder, and abandoned temporary folders, whose owners held the lock on
/// `lock_file` in them. Returns those that may be abandoned but could not be removed.
pub fn clean(folder: &Path, lock_file: &str) -> Vec<AbandonedFile> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    // Listed first: cleaning does not follow a process that creates files while it runs.
    let entries: Vec<DirEntry> = entries.filter_map(Result::ok).collect();
    let mut in_doubt = Vec::new();
    for entry in entries {
        let name = entry.file_name();
        let Some(machine) = name.to_str().and_then(machine_in) else { continue };
        let path = entry.path();
        let removed = entry.file_type().and_then(|kind| remove_abandoned(&path, kind, machine, lock_file));
        match removed.map_err(|error| (error.kind(), error)) {
            // Its owner or another cleaning process has removed it.
            Ok(()) | Err((io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty, _)) => {}
            Err((_, error)) => in_doubt.push(AbandonedFile { path, error }),
        }
    }
    in_doubt
}

fn remove_abandoned(path: &Path, kind: FileType, machine: &str, lock_file: &str) -> io::Result<()> {
    let locked = if kind.is_dir() { path.join(lock_file) } else { path.to_path_buf() };
    let may_be_abandoned = is_this_machine(machine) || is_old(path)? && is_old(&locked).unwrap_or(true);
    if !may_be_abandoned {
        return Ok(());
    }
    // The lock file is missing if the owner was stopped before creating it, or a removal was interrupted. It is created
    // here; an owner that creates it later finds that it exists.
    let file = open(&locked, kind.is_dir())?;
    match file.try_lock() {
        Ok(()) if kind.is_dir() => fs::remove_dir_all(path),
        Ok(()) => fs::remove_file(path),
        Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn is_old(path: &Path) -> io::Result<bool> {
    let modified = fs::symlink_metadata(path)?.modified()?;
    Ok(SystemTime::now().duration_since(modified).is_ok_and(|age| age > ABANDONED_AFTER))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};

    use super::*;

    const LOCK_FILE: &str = "log.txt";

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn cleaned(folder: &Path) -> Vec<String> {
        clean(folder, LOCK_FILE).iter().map(AbandonedFile::to_string).collect()
    }

    fn owned_folder(parent: &Path) -> (PathBuf, File) {
        with_name("1", |name| {
            let path = parent.join(name);
            fs::create_dir(&path)?;
            fs::write(path.join("run.toml"), "")?;
            Ok(create_locked(&path.join(LOCK_FILE))?.map(|file| (path, file)))
        })
        .unwrap()
    }

    #[test]
    fn cleaning_removes_only_unlocked_files() {
        let folder = tempfile::tempdir().unwrap();
        let (path, lock) = owned_folder(folder.path());
        let file = TemporaryFile::beside(&folder.path().join("table.csv")).unwrap();
        // One interrupted before the lock, one in the middle of its removal.
        fs::create_dir(folder.path().join(name("2"))).unwrap();
        let half = folder.path().join(name("3"));
        fs::create_dir(&half).unwrap();
        fs::write(half.join("run.toml"), "").unwrap();
        assert_eq!(cleaned(folder.path()), [""; 0]);
        let mut used = [&path, &file.path].map(|path| path.file_name().unwrap().to_str().unwrap());
        used.sort();
        assert_eq!(names(folder.path()), used);

        let stale = file.path.clone();
        // As if the process was killed.
        std::mem::forget(file.file.try_clone().unwrap());
        file.file.unlock().unwrap();
        std::mem::forget(file);
        drop(lock);
        assert!(path.exists() && stale.exists());
        assert_eq!(cleaned(folder.path()), [""; 0]);
        assert_eq!(names(folder.path()), [""; 0]);
    }

    #[test]
    fn child_process_keeps_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let (path, lock) = owned_folder(folder.path());
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(lock.try_clone().unwrap())
            .spawn()
            .unwrap();
        drop(lock);
        assert_eq!(cleaned(folder.path()), [""; 0]);
        assert!(path.exists());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(cleaned(folder.path()), [""; 0]);
        assert!(!path.exists());
    }

    #[test]
    fn files_of_other_machines_are_removed_when_old() {
        let folder = tempfile::tempdir().unwrap();
        for machine in ["0123456789abcdef0123456789abcdef", UNKNOWN] {
            let path = folder.path().join(format!(".1{MARK}{machine}-0123456789abcdef"));
            fs::create_dir(&path).unwrap();
            let lock = path.join(LOCK_FILE);
            fs::write(&lock, "").unwrap();
            for (path, is_there) in [(&path, true), (&lock, false)] {
                assert_eq!(cleaned(folder.path()), [""; 0]);
                assert!(path.exists());
                let long_ago = SystemTime::now() - ABANDONED_AFTER - Duration::from_secs(1);
                File::open(path).unwrap().set_modified(long_ago).unwrap();
                let in_use = File::open(&lock).unwrap();
                in_use.lock().unwrap();
                assert_eq!(cleaned(folder.path()), [""; 0]);
                assert!(path.exists());
                drop(in_use);
                assert_eq!(cleaned(folder.path()), [""; 0]);
                assert_eq!(path.exists(), is_there);
            }
        }
    }

    #[test]
    fn files_that_cannot_be_locked_are_reported_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("kept");
        fs::write(&kept, "mine").unwrap();
        let path = folder.path().join(name("1"));
        fs::create_dir(&path).unwrap();
        symlink(&kept, path.join(LOCK_FILE)).unwrap();
        let pipe = folder.path().join(name("2"));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let doubts = cleaned(folder.path());
        for path in [&path, &pipe] {
            let begins = format!("{} may be abandoned and was not removed: ", path.display());
            assert_eq!(doubts.iter().filter(|doubt| doubt.starts_with(&begins)).count(), 1, "{doubts:?}");
            assert!(fs::symlink_metadata(path).is_ok());
        }
        assert_eq!(fs::read(&kept).unwrap(), b"mine");
    }

    #[test]
    fn other_names_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let mut others =
            vec![".keep", ".a-0123456789abcdef", ".runner-x-y", "1", ".1.runner-0-0", "table.csv"];
        others.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        assert_eq!(cleaned(folder.path()), [""; 0]);
        others.sort();
        assert_eq!(names(folder.path()), others);
    }

    #[test]
    fn replace_is_atomic() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("table.csv");
        replace(&file, |to| to.write_all(b"one")).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"one");
        let failed = replace(&file, |to| {
            to.write_all(b"half")?;
            to.flush()?;
            // The target is unchanged until the rename.
            assert_eq!(fs::read(&file)?, b"one");
            assert_eq!(names(folder.path()).len(), 2);
            Err(io::Error::other("the disk is full"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "the disk is full");
        assert_eq!(fs::read(&file).unwrap(), b"one");
        assert_eq!(names(folder.path()), ["table.csv"]);
    }

    #[test]
    fn file_removed_before_locking_is_created_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(create_locked(&file).unwrap().is_none(), "existing files are not taken over");
        let mut attempts = 0;
        let made = with_name("file", |name| {
            attempts += 1;
            if attempts < 3 {
                return Ok(None);
            }
            create_locked(&folder.path().join(name))
        });
        assert!(made.is_ok() && attempts == 3);
    }

    #[test]
    fn creation_and_cleaning_are_safe_concurrently() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("table.csv");
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..500 {
                    assert_eq!(cleaned(folder.path()), [""; 0]);
                    thread::sleep(Duration::from_micros(100));
                }
            });
            for _ in 0..300 {
                let (path, _lock) = with_name("1", |name| {
                    let path = folder.path().join(name);
                    fs::create_dir(&path)?;
                    Ok(create_locked(&path.join(LOCK_FILE))?.map(|file| (path, file)))
                })
                .unwrap();
                fs::write(path.join("run.toml"), "").unwrap();
                replace(&file, |to| to.write_all(b"one")).unwrap();
                assert!(path.join("run.toml").exists());
            }
        });
        cleaned(folder.path());
        assert_eq!(names(folder.path()), ["table.csv"]);
    }
}
