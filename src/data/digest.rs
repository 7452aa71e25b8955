//! Digests of data: what makes two data sets the same.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{DataError, TokenWidth};
use base::units::Bytes;
use base::{regular, temporary};

/// A file that changed this recently may change again without its time moving on.
const SETTLED: Duration = Duration::from_secs(2);

/// Of what is kept of them: some hundred thousand.
const LARGEST: Bytes = Bytes(64 << 20);

/// Digests of files, kept by path and by what no other contents have had there, so that a large corpus is not read again for every
/// sweep.
#[derive(Debug, Default)]
pub struct DigestCache {
    file: Option<PathBuf>,
    known: BTreeMap<String, Known>,
    changed: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Known {
    version: Version,
    sha256: String,
    /// Of files of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    largest: Option<u32>,
}

/// Equal for two looks at a file between which nobody wrote to it or put another in its place. Who copies a file may
/// set its size and the time of its modification, but neither its inode nor the time of its change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Version {
    bytes: u64,
    inode: u64,
    /// Seconds since 1970, and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Version {
    pub(super) fn of(metadata: &Metadata) -> Version {
        Version {
            bytes: metadata.len(),
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether it is so old that another one will be told from it.
    fn is_settled(&self, now: SystemTime) -> bool {
        let settled = self.modified.0.max(self.changed.0).saturating_add(SETTLED.as_secs() as i64);
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        settled < now
    }
}

/// What files are now.
///
/// # Errors
/// One that cannot be looked at.
pub(super) fn versions(paths: &[PathBuf]) -> Result<Vec<Version>, DataError> {
    let version = |path: &PathBuf| {
        let metadata = fs::metadata(path);
        let unreadable = |error| DataError::Unreadable { path: path.clone(), error };
        metadata.map(|metadata| Version::of(&metadata)).map_err(unreadable)
    };
    paths.iter().map(version).collect()
}

/// A file's length and the digest of its contents.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FileDigest {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// What is known of a file of tokens.
pub(super) struct TokensDigest {
    pub(super) digest: FileDigest,
    /// 0 where there is none.
    pub(super) largest: u32,
}

impl DigestCache {
    /// What is kept in the file. One that is missing or makes no sense is an empty cache: all it costs is time.
    pub fn read(file: &Path) -> DigestCache {
        let known = regular::read(file, LARGEST)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        DigestCache { file: Some(file.to_path_buf()), known, changed: false }
    }

    /// Keeps what was learnt, if it came from a file. Whole or not at all: another sweep may be reading.
    ///
    /// # Errors
    ///
    /// The file, and why it cannot be written.
    pub fn write(&self) -> Result<(), (&Path, io::Error)> {
        let Some(file) = self.file.as_ref().filter(|_| self.changed) else {
            return Ok(());
        };
        let text = serde_json::to_vec_pretty(&self.known).map_err(io::Error::from);
        text.and_then(|text| temporary::replace(file, |to| to.write_all(&text)))
            .map_err(|error| (file.as_path(), error))
    }

    /// The digest of a file's contents.
    pub(super) fn of_file(&mut self, path: &Path) -> io::Result<FileDigest> {
        self.of_file_at(path, SystemTime::now())
    }

    /// The digest of a file's contents, and the largest of the tokens behind its header.
    pub(super) fn of_tokens(
        &mut self,
        path: &Path,
        width: TokenWidth,
        header: usize,
    ) -> io::Result<TokensDigest> {
        let name = format!("{} as {} behind {header}", path.display(), width.name());
        self.look(name, path, SystemTime::now(), || {
            let mut largest = Largest { width, header, begun: Vec::new(), number: 0 };
            let digest = hash_file(path, |bytes| largest.add(bytes))?;
            Ok(TokensDigest { digest, largest: largest.number })
        })
    }

    fn of_file_at(&mut self, path: &Path, now: SystemTime) -> io::Result<FileDigest> {
        let name = path.to_string_lossy().into_owned();
        let read = || Ok(TokensDigest { digest: hash_file(path, |_| ())?, largest: 0 });
        Ok(self.look(name, path, now, read)?.digest)
    }

    /// What is known by a name, or else is found out now.
    fn look(
        &mut self,
        name: String,
        path: &Path,
        now: SystemTime,
        read: impl FnOnce() -> io::Result<TokensDigest>,
    ) -> io::Result<TokensDigest> {
        let version = Version::of(&fs::metadata(path)?);
        if let Some(known) = self.known.get(&name).filter(|known| known.version == version) {
            let digest = FileDigest { bytes: version.bytes, sha256: known.sha256.clone() };
            return Ok(TokensDigest { digest, largest: known.largest.unwrap_or_default() });
        }
        let found = read()?;
        if version.is_settled(now) && found.digest.bytes == version.bytes {
            let largest = Some(found.largest).filter(|largest| *largest > 0);
            self.known.insert(name, Known { version, sha256: found.digest.sha256.clone(), largest });
            self.changed = true;
        }
        Ok(found)
    }
}

/// The largest of the tokens that pass by, piece by piece.
struct Largest {
    width: TokenWidth,
    /// Bytes that are still to be passed over.
    header: usize,
    /// The first bytes of a number whose last are in the next piece.
    begun: Vec<u8>,
    number: u32,
}

impl Largest {
    fn add(&mut self, bytes: &[u8]) {
        let passed = self.header.min(bytes.len());
        self.header -= passed;
        let mut bytes = &bytes[passed..];
        while !self.begun.is_empty() && self.begun.len() < self.width.bytes() && !bytes.is_empty() {
            self.begun.push(bytes[0]);
            bytes = &bytes[1..];
        }
        if self.begun.len() == self.width.bytes() {
            let begun = std::mem::take(&mut self.begun);
            self.take(&begun);
        }
        let whole = bytes.len() - bytes.len() % self.width.bytes();
        self.take(&bytes[..whole]);
        self.begun.extend_from_slice(&bytes[whole..]);
    }

    fn take(&mut self, bytes: &[u8]) {
        self.number = self.width.numbers(bytes).fold(self.number, u32::max);
    }
}

/// Shows each piece as well.
fn hash_file(path: &Path, mut show: impl FnMut(&[u8])) -> io::Result<FileDigest> {
    let mut file = regular::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let count = match file.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            count => count?,
        };
        if count == 0 {
            return Ok(FileDigest { bytes, sha256: hex(&hash.finalize()) });
        }
        hash.update(&buffer[..count]);
        show(&buffer[..count]);
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

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// When what was just written has settled.
    fn later() -> SystemTime {
        SystemTime::now() + 2 * SETTLED
    }

    /// A file and the cache that has its digest.
    fn kept(text: &Path) -> DigestCache {
        fs::write(text, "one").unwrap();
        let mut cache = DigestCache::default();
        assert_eq!(cache.of_file_at(text, later()).unwrap().sha256, of_bytes(b"one").sha256);
        cache
    }

    #[test]
    fn a_file_is_read_once_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (text, file) = (folder.path().join("text"), folder.path().join("digests.json"));
        DigestCache { file: Some(file.clone()), ..kept(&text) }.write().unwrap();

        // Nothing has changed: taken from the cache, which the marker proves.
        let marked = fs::read_to_string(&file).unwrap().replace(&of_bytes(b"one").sha256, "marker");
        fs::write(&file, marked).unwrap();
        assert_eq!(DigestCache::read(&file).of_file(&text).unwrap().sha256, "marker");

        fs::write(&text, "three").unwrap();
        assert_eq!(DigestCache::read(&file).of_file(&text).unwrap().sha256, of_bytes(b"three").sha256);
    }

    /// Other contents of the same size, with the time of their modification set to what it was.
    #[test]
    fn no_other_contents_are_taken_for_those_that_were() {
        let folder = tempfile::tempdir().unwrap();
        let (text, other) = (folder.path().join("text"), folder.path().join("other"));
        let changes: [&dyn Fn(); 2] = [&|| fs::write(&text, "two").unwrap(), &|| {
            fs::write(&other, "two").unwrap();
            fs::rename(&other, &text).unwrap();
        }];
        for change in changes {
            let mut cache = kept(&text);
            let modified = fs::metadata(&text).unwrap().modified().unwrap();
            change();
            File::options().write(true).open(&text).unwrap().set_modified(modified).unwrap();
            assert_eq!(fs::metadata(&text).unwrap().modified().unwrap(), modified);
            assert_eq!(cache.of_file(&text).unwrap().sha256, of_bytes(b"two").sha256);
        }
    }

    /// Their times are the same, of modification and of change.
    #[test]
    fn files_of_one_moment_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let made = |name: String| {
            let file = folder.path().join(name);
            fs::write(&file, "one").unwrap();
            Version::of(&fs::metadata(file).unwrap())
        };
        let mut pairs = (0..10_000).map(|number| (made(format!("a{number}")), made(format!("b{number}"))));
        let (a, b) = pairs.find(|(a, b)| Version { inode: b.inode, ..a.clone() } == *b).expect("a moment");
        assert_ne!(a, b);
    }

    #[test]
    fn a_file_that_just_changed_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (text, kept) = (folder.path().join("text"), folder.path().join("digests.json"));
        fs::write(&text, "one").unwrap();
        // Long ago, as it says itself.
        let modified = SystemTime::now() - 100 * SETTLED;
        File::options().write(true).open(&text).unwrap().set_modified(modified).unwrap();
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
