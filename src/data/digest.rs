//! Digests of data: what makes two data sets the same.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{regular, temporary};

/// A file that changed this recently may change again without its time moving on.
const SETTLED: Duration = Duration::from_secs(2);

/// Digests of files, kept by path, size and time of change, so that a large corpus is not read again for every
/// sweep.
#[derive(Debug, Default)]
pub struct DigestCache {
    file: Option<PathBuf>,
    known: BTreeMap<String, Known>,
    changed: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Known {
    bytes: u64,
    /// Since 1970.
    modified_ns: u64,
    sha256: String,
}

/// A file's length and the digest of its contents.
pub(super) struct FileDigest {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

impl DigestCache {
    /// What is kept in the file. One that is missing or makes no sense is an empty cache: all it costs is time.
    pub fn read(file: &Path) -> DigestCache {
        let known =
            regular::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        DigestCache { file: Some(file.to_path_buf()), known, changed: false }
    }

    /// Keeps what was learnt, if it came from a file. Whole or not at all: another sweep may be reading.
    pub fn write(&self) -> io::Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.changed) else {
            return Ok(());
        };
        let text = serde_json::to_vec_pretty(&self.known)?;
        temporary::replace(file, |to| to.write_all(&text))
    }

    /// The digest of a file's contents.
    pub(super) fn of_file(&mut self, path: &Path) -> io::Result<FileDigest> {
        let metadata = fs::metadata(path)?;
        let modified = metadata.modified()?;
        let name = path.to_string_lossy().into_owned();
        let modified_ns = modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        if let Some(known) = self.known.get(&name)
            && known.bytes == metadata.len()
            && known.modified_ns == modified_ns
        {
            return Ok(FileDigest { bytes: known.bytes, sha256: known.sha256.clone() });
        }
        let digest = hash_file(path)?;
        let settled = SystemTime::now().duration_since(modified).is_ok_and(|age| age > SETTLED);
        if settled && digest.bytes == metadata.len() {
            self.known
                .insert(name, Known { bytes: digest.bytes, modified_ns, sha256: digest.sha256.clone() });
            self.changed = true;
        }
        Ok(digest)
    }
}

fn hash_file(path: &Path) -> io::Result<FileDigest> {
    let mut file = regular::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(FileDigest { bytes, sha256: hex(&hash.finalize()) });
        }
        hash.update(&buffer[..count]);
        bytes += count as u64;
    }
}

/// The digest of contents in memory.
pub(super) fn of_bytes(text: &[u8]) -> FileDigest {
    FileDigest { bytes: text.len() as u64, sha256: hex(&Sha256::digest(text)) }
}

/// The digest of files in their order. Where they lie is not part of it, so that a copy elsewhere is the same
/// data.
pub(super) fn combine(files: &[FileDigest]) -> String {
    let mut hash = Sha256::new();
    for file in files {
        hash.update(file.bytes.to_le_bytes());
        hash.update(file.sha256.as_bytes());
    }
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn age(path: &Path, seconds: u64) {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    }

    #[test]
    fn a_file_is_read_once_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (text, kept) = (folder.path().join("text"), folder.path().join("digests.json"));
        fs::write(&text, "one").unwrap();
        age(&text, 100);
        let mut cache = DigestCache::read(&kept);
        let first = cache.of_file(&text).unwrap().sha256;
        assert_eq!(first, of_bytes(b"one").sha256);
        cache.write().unwrap();

        // Same size and time: taken from the cache, which the marker proves.
        let marked = fs::read_to_string(&kept).unwrap().replace(&first, "marker");
        fs::write(&kept, marked).unwrap();
        assert_eq!(DigestCache::read(&kept).of_file(&text).unwrap().sha256, "marker");

        fs::write(&text, "two").unwrap();
        age(&text, 50);
        assert_eq!(DigestCache::read(&kept).of_file(&text).unwrap().sha256, of_bytes(b"two").sha256);
    }

    #[test]
    fn a_file_that_just_changed_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (text, kept) = (folder.path().join("text"), folder.path().join("digests.json"));
        fs::write(&text, "one").unwrap();
        let mut cache = DigestCache::read(&kept);
        cache.of_file(&text).unwrap();
        cache.write().unwrap();
        assert!(!kept.exists());
    }

    #[test]
    fn a_broken_cache_is_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("digests.json");
        fs::write(&kept, "{ not json").unwrap();
        assert!(DigestCache::read(&kept).known.is_empty());
    }

    #[test]
    fn order_lengths_and_contents_count() {
        let (a, b) = (|| of_bytes(b"ab"), || of_bytes(b"c"));
        assert_ne!(combine(&[a(), b()]), combine(&[b(), a()]));
        assert_ne!(combine(&[a(), b()]), combine(&[of_bytes(b"a"), of_bytes(b"bc")]));
        assert_eq!(combine(&[a(), b()]), combine(&[a(), b()]));
    }
}
