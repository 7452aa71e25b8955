//! Compiled kernels and choices of algorithms on the disk, so that only the first run after a change waits for the compiler
//! and for candidates to be timed.
//!
//! Files are written whole, by renaming, and carry a digest of what they hold: one that was cut or damaged is noticed
//! and replaced. What is read here is run: a folder that others can write to is not used.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

use base::{temporary, user_cache};

const DIGEST: usize = 32;

/// A folder that may not be writable: everything works without, only slower.
pub(super) struct Cache {
    folder: Option<PathBuf>,
    complaint: OnceLock<String>,
}

impl Cache {
    /// In the user's cache.
    pub(super) fn of_user() -> Cache {
        let cache = Cache::within(user_cache::folder());
        if cache.folder.is_none() {
            cache.complain(
                "there is no folder for compiled kernels and chosen algorithms: neither RUNNER_CACHE_DIR nor HOME is set",
            );
        }
        cache
    }

    pub(super) fn within(folder: Option<PathBuf>) -> Cache {
        let cache = Cache { folder, complaint: OnceLock::new() };
        let Some(folder) = cache.folder.as_deref().filter(|folder| is_of_others(folder)) else {
            return cache;
        };
        let folder = folder.display();
        cache.complain(&format!(
            "others can write to {folder}: what lies there is not used; `chmod go-w` makes it yours, or set \
             RUNNER_CACHE_DIR"
        ));
        Cache { folder: None, ..cache }
    }

    /// What lies under a key, if all of it does.
    pub(super) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let mut bytes = fs::read(self.folder.as_ref()?.join(key)).ok()?;
        let contents = bytes.split_off(DIGEST.min(bytes.len()));
        (bytes == Sha256::digest(&contents).as_slice()).then_some(contents)
    }

    /// Keeps contents under a key, or remembers why that cannot be.
    pub(super) fn put(&self, key: &str, contents: &[u8]) {
        let Some(folder) = &self.folder else { return };
        if let Err(error) = write(folder, key, contents) {
            let folder = folder.display();
            self.complain(&format!(
                "compiled kernels and chosen algorithms cannot be kept in {folder}: {error}; set RUNNER_CACHE_DIR"
            ));
        }
    }

    /// What the user should know, once.
    pub(super) fn complaint(&self) -> Option<&str> {
        self.complaint.get().map(String::as_str)
    }

    fn complain(&self, what: &str) {
        // The first reason is enough.
        let _ = self.complaint.set(format!("{what}; every run compiles and times again"));
    }
}

/// Whether anybody but its user, or the system's, decides what is in a folder that is there.
fn is_of_others(folder: &Path) -> bool {
    let Ok(found) = fs::metadata(folder) else { return false };
    let user = fs::metadata("/proc/self").map(|process| process.uid());
    found.mode() & 0o022 != 0 || user.is_ok_and(|user| found.uid() != user && found.uid() != 0)
}

fn write(folder: &Path, key: &str, contents: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    temporary::replace(&folder.join(key), |to| {
        to.write_all(Sha256::digest(contents).as_slice())?;
        to.write_all(contents)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_was_put_is_there_until_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::within(Some(folder.path().join("a/b")));
        assert_eq!(cache.get("key"), None);
        cache.put("key", b"contents");
        assert_eq!(cache.get("key").as_deref(), Some(&b"contents"[..]));
        assert_eq!(cache.complaint(), None);
        assert_eq!(fs::read_dir(folder.path().join("a/b")).unwrap().count(), 1, "nothing else is left");

        let file = folder.path().join("a/b/key");
        let whole = fs::read(&file).unwrap();
        for length in [0, 5, DIGEST, whole.len() - 1] {
            fs::write(&file, &whole[..length]).unwrap();
            assert_eq!(cache.get("key"), None, "cut to {length} bytes");
        }
        let mut damaged = whole.clone();
        damaged[DIGEST + 3] ^= 1;
        fs::write(&file, damaged).unwrap();
        assert_eq!(cache.get("key"), None);
        cache.put("key", b"contents");
        assert_eq!(fs::read(&file).unwrap(), whole, "replaced");
    }

    #[test]
    fn what_others_could_have_put_there_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let open = |mode| fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
        Cache::within(Some(folder.path().to_path_buf())).put("key", b"contents");
        for (mode, is_used) in [(0o755, true), (0o775, false), (0o757, false), (0o1777, false), (0o700, true)]
        {
            open(mode);
            let cache = Cache::within(Some(folder.path().to_path_buf()));
            assert_eq!(cache.get("key").is_some(), is_used, "{mode:o}");
            let complains = cache.complaint().is_some_and(|what| what.starts_with("others can write to /"));
            assert_eq!(complains, !is_used, "{mode:o}");
            cache.put("other", b"contents");
            assert_eq!(folder.path().join("other").exists(), is_used, "{mode:o}");
            let _ = fs::remove_file(folder.path().join("other"));
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let cache = Cache::within(Some(file.join("cache")));
        cache.put("one", b"1");
        cache.put("two", b"2");
        assert_eq!(cache.get("one"), None);
        let complaint = cache.complaint().unwrap();
        assert!(complaint.contains("file/cache: Not a directory"), "{complaint}");
        assert!(
            complaint.ends_with("set RUNNER_CACHE_DIR; every run compiles and times again"),
            "{complaint}"
        );
    }
}
