//! An on-disk cache of compiled kernels and autotuned algorithms, so that only the first run after a change compiles
//! and times candidates.
//!
//! Files are written atomically by renaming and contain a digest of their contents: truncated or damaged files are
//! detected and replaced. The contents are executed, so a folder that other users can write to is not used.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

use base::{temporary, user_cache};

const DIGEST: usize = 32;

/// A cache folder. If it is missing or not writable, everything works but slower.
pub(super) struct Cache {
    folder: Option<PathBuf>,
    warning: OnceLock<String>,
}

impl Cache {
    /// Opens the cache in the user's cache folder.
    pub(super) fn open_user() -> Cache {
        let cache = Cache::in_folder(user_cache::folder());
        if cache.folder.is_none() {
            cache.warn(
                "no cache folder for compiled kernels and algorithms: neither RUNNER_CACHE_DIR nor HOME is set",
            );
        }
        cache
    }

    pub(super) fn in_folder(folder: Option<PathBuf>) -> Cache {
        let cache = Cache { folder, warning: OnceLock::new() };
        let Some(folder) = cache.folder.as_deref().filter(|folder| is_writable_by_others(folder)) else {
            return cache;
        };
        let folder = folder.display();
        cache.warn(&format!(
            "other users can write to {folder}, so its files are not used; run `chmod go-w` on it, or set \
             RUNNER_CACHE_DIR"
        ));
        Cache { folder: None, ..cache }
    }

    /// The contents of a key, if present and undamaged.
    pub(super) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let mut bytes = fs::read(self.folder.as_ref()?.join(key)).ok()?;
        let contents = bytes.split_off(DIGEST.min(bytes.len()));
        (bytes == Sha256::digest(&contents).as_slice()).then_some(contents)
    }

    /// Stores contents under a key, or records a warning.
    pub(super) fn put(&self, key: &str, contents: &[u8]) {
        let Some(folder) = &self.folder else { return };
        if let Err(error) = write(folder, key, contents) {
            let folder = folder.display();
            self.warn(&format!(
                "compiled kernels and algorithms cannot be cached in {folder}: {error}; set RUNNER_CACHE_DIR"
            ));
        }
    }

    /// The first warning, for the user.
    pub(super) fn warning(&self) -> Option<&str> {
        self.warning.get().map(String::as_str)
    }

    fn warn(&self, what: &str) {
        // Only the first warning is kept.
        let _ = self.warning.set(format!("{what}; every run compiles and times candidates again"));
    }
}

/// Whether a user other than the current one or root can write to an existing folder.
fn is_writable_by_others(folder: &Path) -> bool {
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
    fn damaged_entries_are_ignored_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::in_folder(Some(folder.path().join("a/b")));
        assert_eq!(cache.get("key"), None);
        cache.put("key", b"contents");
        assert_eq!(cache.get("key").as_deref(), Some(&b"contents"[..]));
        assert_eq!(cache.warning(), None);
        assert_eq!(fs::read_dir(folder.path().join("a/b")).unwrap().count(), 1, "no temporary files remain");

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
    fn folders_writable_by_others_are_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let open = |mode| fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
        Cache::in_folder(Some(folder.path().to_path_buf())).put("key", b"contents");
        for (mode, is_used) in [(0o755, true), (0o775, false), (0o757, false), (0o1777, false), (0o700, true)]
        {
            open(mode);
            let cache = Cache::in_folder(Some(folder.path().to_path_buf()));
            assert_eq!(cache.get("key").is_some(), is_used, "{mode:o}");
            let warns = cache.warning().is_some_and(|what| what.starts_with("other users can write to /"));
            assert_eq!(warns, !is_used, "{mode:o}");
            cache.put("other", b"contents");
            assert_eq!(folder.path().join("other").exists(), is_used, "{mode:o}");
            let _ = fs::remove_file(folder.path().join("other"));
        }
    }

    #[test]
    fn unwritable_folder_warns_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let cache = Cache::in_folder(Some(file.join("cache")));
        cache.put("one", b"1");
        cache.put("two", b"2");
        assert_eq!(cache.get("one"), None);
        let warning = cache.warning().unwrap();
        assert!(warning.contains("file/cache: Not a directory"), "{warning}");
        assert!(
            warning.ends_with("set RUNNER_CACHE_DIR; every run compiles and times candidates again"),
            "{warning}"
        );
    }
}
