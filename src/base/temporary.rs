//! Files and folders that have a name of their own until they are complete, and what becomes of those that never are.
//!
//! Whoever makes one holds the system's lock on it for as long as it is needed: on the file, or on one file in the folder.
//! The lock ends with its process and its children, however they end, and all that share a file system with locks see it:
//! other containers, where a process has another number or none, and other machines. Who gets the lock may remove what
//! is left behind; where there are no locks, nobody removes anything.

use std::fmt::{self, Display};
use std::fs::{self, File, FileType, Metadata, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

/// Stands in a name before the machine and the random number.
const MARK: &str = ".runner-";

/// Some file systems keep locks to the machine they are taken on. What another machine has not touched for this long is
/// left behind there all the same.
const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Another process may take away what is not locked yet. Never so often.
const ATTEMPTS: usize = 100;

/// A name next to `of` that nothing else has: `.<of>.runner-<machine>-<random>`.
pub fn name(of: impl Display) -> String {
    let random = RandomState::new().hash_one(());
    format!(".{of}{MARK}{}-{random:016x}", *MACHINE)
}

/// Of a machine that says nothing of itself.
const UNKNOWN: &str = "00000000000000000000000000000000";

/// Processes that see each other's locks for certain have one number: that of their machine's start, which containers
/// on it share. Read once: what is made when nothing can be opened any more has its machine's number, too.
static MACHINE: LazyLock<String> = LazyLock::new(|| {
    let start = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = start.chars().filter(char::is_ascii_hexdigit).collect();
    if digits.len() == UNKNOWN.len() { digits } else { UNKNOWN.to_owned() }
});

fn is_this(machine: &str) -> bool {
    machine != UNKNOWN && machine == *MACHINE
}

/// The machine in a name of [`name`]'s.
fn machine_in(name: &str) -> Option<&str> {
    let (_, owner) = name.strip_prefix('.')?.rsplit_once(MARK)?;
    let (machine, random) = owner.split_once('-')?;
    let is_number = |text: &str, digits| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    (is_number(machine, UNKNOWN.len()) && is_number(random, 16)).then_some(machine)
}

/// Tries names until nobody takes away what is made there, which is `None`.
pub fn with_name<T>(of: impl Display, mut make: impl FnMut(&str) -> io::Result<Option<T>>) -> io::Result<T> {
    for _ in 1..ATTEMPTS {
        match make(&name(&of)) {
            Ok(None) => {}
            Ok(Some(made)) => return Ok(made),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    make(&name(&of))?.ok_or_else(|| io::Error::other("it was taken away again and again"))
}

/// Makes a file and locks it, to write and to read. A link is no new file and is not followed. `None` if another process,
/// which looks for what is left behind, was faster than the lock.
pub fn create_locked(path: &Path) -> io::Result<Option<File>> {
    let file = match File::options().read(true).append(true).create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        file => file?,
    };
    match hold(&file).and_then(|()| is_at(&file, path)) {
        Ok(is_ours) => Ok(is_ours.then_some(file)),
        Err(error) => {
            let _ = fs::remove_file(path);
            Err(error)
        }
    }
}

/// Waits for the lock on a file that is there or, in a folder that is there, is made. `None` if the folder is gone.
pub fn lock(path: &Path) -> io::Result<Option<File>> {
    loop {
        let file = match open(path, true) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        hold(&file)?;
        if is_at(&file, path)? {
            return Ok(Some(file));
        }
    }
}

/// Waits for the lock on a file. Where there are no locks nobody needs one: nobody removes anything. Where there are, what
/// is not locked may be taken for left behind.
fn hold(file: &File) -> io::Result<()> {
    loop {
        match file.lock() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if has_no_locks(&error) => return Ok(()),
            held => return held,
        }
    }
}

fn has_no_locks(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(libc::ENOLCK)
}

/// Opens a file to lock it: no link, and no pipe, at whose other end there may be nobody.
fn open(path: &Path, make: bool) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().append(true).create(make).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no file")) }
}

/// Whether a path still leads to an open file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let same = |a: Metadata, b: Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    match fs::symlink_metadata(path) {
        Ok(there) => Ok(same(there, file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A file under a name of its own. Removed when it is dropped, unless it has become another.
#[derive(Debug)]
pub struct TemporaryFile {
    path: PathBuf,
    file: File,
}

impl TemporaryFile {
    /// Beside a file.
    pub fn beside(file: &Path) -> io::Result<TemporaryFile> {
        let of = file.file_name().ok_or_else(|| io::Error::other("it names no file"))?;
        with_name(Path::new(of).display(), |name| {
            let path = file.with_file_name(name);
            Ok(create_locked(&path)?.map(|file| TemporaryFile { path, file }))
        })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Takes the place of a file: whoever reads that sees the old or the new one, whole.
    pub fn replace(self, file: &Path) -> io::Result<()> {
        fs::rename(&self.path, file)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // It is there no more if it has become another.
        let _ = fs::remove_file(&self.path);
    }
}

/// Replaces a file once every byte of the new one is on the disk, or not at all.
pub fn replace(file: &Path, write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> io::Result<()> {
    let temporary = TemporaryFile::beside(file)?;
    let mut to = BufWriter::new(temporary.file());
    write(&mut to)?;
    to.flush()?;
    drop(to);
    temporary.file().sync_all()?;
    temporary.replace(file)
}

/// Something that may be left behind and could not be removed: above all, where the file system has no locks.
#[derive(Debug)]
pub struct InDoubt {
    path: PathBuf,
    error: io::Error,
}

impl fmt::Display for InDoubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        write!(f, "{path} may be left behind, and stays: {}: remove it while no sweep runs", self.error)
    }
}

/// Removes what processes that ended have left in a folder: files, and folders in which they held the lock on the file of
/// this name. Returns what stays although it may be left behind.
pub fn clean(folder: &Path, lock_file: &str) -> Vec<InDoubt> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut in_doubt = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(machine) = name.to_str().and_then(machine_in) else { continue };
        let path = entry.path();
        let removed = entry.file_type().and_then(|kind| remove_abandoned(&path, kind, machine, lock_file));
        match removed.map_err(|error| (error.kind(), error)) {
            // Its process, or another that cleans, has removed it.
            Ok(()) | Err((io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty, _)) => {}
            Err((_, error)) => in_doubt.push(InDoubt { path, error }),
        }
    }
    in_doubt
}

fn remove_abandoned(path: &Path, kind: FileType, machine: &str, lock_file: &str) -> io::Result<()> {
    let locked = if kind.is_dir() { path.join(lock_file) } else { path.to_path_buf() };
    let is_judged = is_this(machine) || is_forgotten(path)? && is_forgotten(&locked).unwrap_or(true);
    if !is_judged {
        return Ok(());
    }
    // In a folder whose owner was stopped before it made the file, or whose removal was, it is made here: an owner that
    // comes to it finds it taken.
    let file = open(&locked, kind.is_dir())?;
    match file.try_lock() {
        Ok(()) if kind.is_dir() => fs::remove_dir_all(path),
        Ok(()) => fs::remove_file(path),
        Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn is_forgotten(path: &Path) -> io::Result<bool> {
    let modified = fs::symlink_metadata(path)?.modified()?;
    Ok(SystemTime::now().duration_since(modified).is_ok_and(|age| age > FORGOTTEN))
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
        clean(folder, LOCK_FILE).iter().map(InDoubt::to_string).collect()
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
    fn what_is_locked_stays_and_what_is_not_goes() {
        let folder = tempfile::tempdir().unwrap();
        let (path, lock) = owned_folder(folder.path());
        let file = TemporaryFile::beside(&folder.path().join("table.csv")).unwrap();
        // Cut short before the lock, and in the middle of being removed.
        fs::create_dir(folder.path().join(name("2"))).unwrap();
        let half = folder.path().join(name("3"));
        fs::create_dir(&half).unwrap();
        fs::write(half.join("run.toml"), "").unwrap();
        assert_eq!(cleaned(folder.path()), [""; 0]);
        let mut used = [&path, &file.path].map(|path| path.file_name().unwrap().to_str().unwrap());
        used.sort();
        assert_eq!(names(folder.path()), used);

        let stale = file.path.clone();
        // As if it was killed.
        std::mem::forget(file.file.try_clone().unwrap());
        file.file.unlock().unwrap();
        std::mem::forget(file);
        drop(lock);
        assert!(path.exists() && stale.exists());
        assert_eq!(cleaned(folder.path()), [""; 0]);
        assert_eq!(names(folder.path()), [""; 0]);
    }

    #[test]
    fn a_child_that_has_the_lock_file_owns_it_too() {
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
    fn what_another_machine_left_goes_once_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        for machine in ["0123456789abcdef0123456789abcdef", UNKNOWN] {
            let path = folder.path().join(format!(".1{MARK}{machine}-0123456789abcdef"));
            fs::create_dir(&path).unwrap();
            let lock = path.join(LOCK_FILE);
            fs::write(&lock, "").unwrap();
            for (path, is_there) in [(&path, true), (&lock, false)] {
                assert_eq!(cleaned(folder.path()), [""; 0]);
                assert!(path.exists());
                let long_ago = SystemTime::now() - FORGOTTEN - Duration::from_secs(1);
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
    fn what_has_no_lock_is_named_and_stays() {
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
            let begins = format!("{} may be left behind, and stays: ", path.display());
            assert_eq!(doubts.iter().filter(|doubt| doubt.starts_with(&begins)).count(), 1, "{doubts:?}");
            assert!(fs::symlink_metadata(path).is_ok());
        }
        assert_eq!(fs::read(&kept).unwrap(), b"mine");
    }

    #[test]
    fn what_others_named_is_not_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let mut others =
            vec![".keep", ".a-0123456789abcdef", ".runner-x-y", "1", ".1.runner-0-0", "table.csv"];
        others.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        assert_eq!(cleaned(folder.path()), [""; 0]);
        others.sort();
        assert_eq!(names(folder.path()), others);
    }

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("table.csv");
        replace(&file, |to| to.write_all(b"one")).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"one");
        let failed = replace(&file, |to| {
            to.write_all(b"half")?;
            to.flush()?;
            // Nothing is where the file is.
            assert_eq!(fs::read(&file)?, b"one");
            assert_eq!(names(folder.path()).len(), 2);
            Err(io::Error::other("the disk is full"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "the disk is full");
        assert_eq!(fs::read(&file).unwrap(), b"one");
        assert_eq!(names(folder.path()), ["table.csv"]);
    }

    #[test]
    fn a_file_that_is_taken_away_before_it_is_locked_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(create_locked(&file).unwrap().is_none(), "whose it is is not known");
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
    fn those_who_make_and_those_who_clean_do_not_disturb_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("table.csv");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..500 {
                    assert_eq!(cleaned(folder.path()), [""; 0]);
                    std::thread::sleep(Duration::from_micros(100));
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
