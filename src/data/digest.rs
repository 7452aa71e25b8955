//! Digests of data: equal digests mean the same data.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{DataError, TokenWidth};
use base::units::Bytes;
use base::{regular, temporary};

/// A file that changed this recently may change again without a new timestamp.
const SETTLED: Duration = Duration::from_secs(2);

/// Maximum size of a cache file: a few hundred thousand digests.
const LARGEST: Bytes = Bytes(64 << 20);

/// Digests of files, cached by path and file version, so that a large corpus is not read again for every sweep.
#[derive(Debug, Default)]
pub struct DigestCache {
    file: Option<PathBuf>,
    known: BTreeMap<String, CachedDigest>,
    changed: bool,
    progress: Progress,
}

/// Long work on data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Reading,
    Encoding,
}

/// Receives the progress of long work: on which file, and bytes done of all.
type Tell = fn(Work, &Path, Bytes, Bytes);

/// Interval between reports of progress. Shorter work is not reported.
const INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Progress {
    tell: Option<Tell>,
    /// When work began, or was last reported.
    last: Option<Instant>,
}

impl Progress {
    pub(super) fn report(&mut self, work: Work, file: &Path, done: u64, all: u64) {
        if self.last.get_or_insert_with(Instant::now).elapsed() >= INTERVAL {
            self.last = Some(Instant::now());
            if let Some(tell) = self.tell {
                tell(work, file, Bytes(done), Bytes(all));
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CachedDigest {
    version: Version,
    sha256: String,
    /// The largest token, for files of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    largest: Option<u32>,
    /// For files of text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<TextProperties>,
}

/// The properties of a file of text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TextProperties {
    /// Bytes of text: decompressed, without a byte order mark.
    pub(super) bytes: u64,
    pub(super) is_compressed: bool,
    /// Whether it begins with a byte order mark.
    pub(super) is_marked: bool,
    /// Whether it has line ends of two bytes, CR and LF.
    pub(super) has_crlf: bool,
}

/// Identifies the contents of a path: equal only if the file was neither written to nor replaced. Copying a file can
/// preserve its size and modification time, but neither its inode nor its change time.
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

    /// Whether the contents are the same, although the path may have been removed, which changes the change time.
    pub(super) fn has_contents_of(&self, other: &Version) -> bool {
        (self.bytes, self.inode, self.modified) == (other.bytes, other.inode, other.modified)
    }

    /// Whether it is old enough that a later change would get another timestamp.
    fn is_settled(&self, now: SystemTime) -> bool {
        let settled = self.modified.0.max(self.changed.0).saturating_add(SETTLED.as_secs() as i64);
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        settled < now
    }
}

/// The current versions of files.
///
/// # Errors
/// A file's metadata is unreadable.
pub(super) fn versions<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> Result<Vec<Version>, DataError> {
    let version = |path: &PathBuf| {
        let metadata = fs::metadata(path);
        let unreadable = |error| DataError::Unreadable { path: path.clone(), error };
        metadata.map(|metadata| Version::of(&metadata)).map_err(unreadable)
    };
    paths.map(version).collect()
}

/// A file's length and the digest of its contents.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FileDigest {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// The digest of a file, and what a data set needs of its contents.
pub(super) struct Examined {
    pub(super) digest: FileDigest,
    /// The largest token; 0 without tokens.
    pub(super) largest: u32,
    /// For files of text.
    pub(super) text: Option<TextProperties>,
}

impl From<FileDigest> for Examined {
    fn from(digest: FileDigest) -> Examined {
        Examined { digest, largest: 0, text: None }
    }
}

impl DigestCache {
    /// Reads a cache file. A missing or invalid file is an empty cache, which only costs time.
    pub fn read(file: &Path) -> DigestCache {
        let known = regular::read(file, LARGEST)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        DigestCache { file: Some(file.to_path_buf()), known, ..DigestCache::default() }
    }

    /// Reports the progress of long work.
    pub fn telling(mut self, tell: fn(Work, &Path, Bytes, Bytes)) -> DigestCache {
        self.progress.tell = Some(tell);
        self
    }

    pub(super) fn progress(&mut self) -> &mut Progress {
        &mut self.progress
    }

    /// Writes new digests back to the cache file, if there is one. Atomic, since another sweep may be reading.
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

    /// The digest of a file's contents, and the largest token after its header.
    pub(super) fn of_tokens(
        &mut self,
        path: &Path,
        width: TokenWidth,
        header: usize,
    ) -> io::Result<Examined> {
        let name = format!("{} as {} behind {header}", path.display(), width.name());
        let read = |progress: &mut Progress| {
            let mut largest = LargestToken { width, header, partial: Vec::new(), number: 0 };
            let digest = hash_file(path, 0, progress, |bytes| largest.add(bytes))?;
            Ok(Examined { digest, largest: largest.number, text: None })
        };
        self.cached_or(name, path, SystemTime::now(), |error| error, read)
    }

    /// The digest of an image file, which is checked before, unless its digest is cached.
    pub(super) fn of_image(
        &mut self,
        path: &Path,
        check: impl FnOnce() -> Result<(), DataError>,
    ) -> Result<FileDigest, DataError> {
        let unreadable = |error| DataError::Unreadable { path: path.to_owned(), error };
        let name = format!("{} as an image", path.display());
        let read = |progress: &mut Progress| {
            check()?;
            hash_file(path, 0, progress, |_| ()).map(Examined::from).map_err(unreadable)
        };
        Ok(self.cached_or(name, path, SystemTime::now(), unreadable, read)?.digest)
    }

    /// The digest of a file's contents, and the largest class that `scan` finds in a part of it.
    pub(super) fn of_classes(
        &mut self,
        path: &Path,
        part: &str,
        scan: impl FnOnce() -> Result<u32, DataError>,
    ) -> Result<Examined, DataError> {
        let unreadable = |error| DataError::Unreadable { path: path.to_owned(), error };
        let digest = self.of_file(path).map_err(unreadable)?;
        let name = format!("{} with classes in {part}", path.display());
        self.cached_or(name, path, SystemTime::now(), unreadable, |_| {
            Ok(Examined { digest, largest: scan()?, text: None })
        })
    }

    /// The digest and the properties of a file of text, which `examine` finds.
    pub(super) fn of_text(
        &mut self,
        path: &Path,
        examine: impl FnOnce(&mut Progress) -> Result<Examined, DataError>,
    ) -> Result<Examined, DataError> {
        let unreadable = |error| DataError::Unreadable { path: path.to_owned(), error };
        self.cached_or(format!("{} as text", path.display()), path, SystemTime::now(), unreadable, examine)
    }

    /// The digest of a file's contents without its last `tail` bytes.
    pub(super) fn of_body(&mut self, path: &Path, tail: u64) -> io::Result<String> {
        let name = format!("{} without {tail}", path.display());
        let read = |progress: &mut Progress| {
            let digest = hash_file(path, tail, progress, |_| ())?;
            let bytes = digest.bytes + tail;
            Ok(FileDigest { bytes, ..digest }.into())
        };
        Ok(self.cached_or(name, path, SystemTime::now(), |error| error, read)?.digest.sha256)
    }

    fn of_file_at(&mut self, path: &Path, now: SystemTime) -> io::Result<FileDigest> {
        let name = path.to_string_lossy().into_owned();
        let read = |progress: &mut Progress| hash_file(path, 0, progress, |_| ()).map(Examined::from);
        Ok(self.cached_or(name, path, now, |error| error, read)?.digest)
    }

    /// The cached digest of this name, or else that which `read` computes.
    fn cached_or<E>(
        &mut self,
        name: String,
        path: &Path,
        now: SystemTime,
        unreadable: impl FnOnce(io::Error) -> E,
        read: impl FnOnce(&mut Progress) -> Result<Examined, E>,
    ) -> Result<Examined, E> {
        let version = Version::of(&fs::metadata(path).map_err(unreadable)?);
        if let Some(known) = self.known.get(&name).filter(|known| known.version == version) {
            let digest = FileDigest { bytes: version.bytes, sha256: known.sha256.clone() };
            let largest = known.largest.unwrap_or_default();
            return Ok(Examined { digest, largest, text: known.text });
        }
        let found = read(&mut self.progress)?;
        if version.is_settled(now) && found.digest.bytes == version.bytes {
            let largest = Some(found.largest).filter(|largest| *largest > 0);
            let sha256 = found.digest.sha256.clone();
            self.known.insert(name, CachedDigest { version, sha256, largest, text: found.text });
            self.changed = true;
        }
        Ok(found)
    }
}

/// The largest token of a file that is read in chunks.
struct LargestToken {
    width: TokenWidth,
    /// Remaining bytes of the header.
    header: usize,
    /// The first bytes of a token that continues in the next chunk.
    partial: Vec<u8>,
    number: u32,
}

impl LargestToken {
    fn add(&mut self, bytes: &[u8]) {
        let skipped = self.header.min(bytes.len());
        self.header -= skipped;
        let mut bytes = &bytes[skipped..];
        while !self.partial.is_empty() && self.partial.len() < self.width.bytes() && !bytes.is_empty() {
            self.partial.push(bytes[0]);
            bytes = &bytes[1..];
        }
        if self.partial.len() == self.width.bytes() {
            let token = std::mem::take(&mut self.partial);
            self.add_tokens(&token);
        }
        let whole = bytes.len() - bytes.len() % self.width.bytes();
        self.add_tokens(&bytes[..whole]);
        self.partial.extend_from_slice(&bytes[whole..]);
    }

    fn add_tokens(&mut self, bytes: &[u8]) {
        self.number = self.width.numbers(bytes).fold(self.number, u32::max);
    }
}

/// Hashes a file without its last `tail` bytes in chunks, and passes each chunk to `visit`.
fn hash_file(
    path: &Path,
    tail: u64,
    progress: &mut Progress,
    mut visit: impl FnMut(&[u8]),
) -> io::Result<FileDigest> {
    let file = regular::open(path)?;
    let all = file.metadata()?.len().saturating_sub(tail);
    // A file without a tail may grow meanwhile, which its digest shows.
    let mut file = file.take(if tail == 0 { u64::MAX } else { all });
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
        visit(&buffer[..count]);
        bytes += count as u64;
        progress.report(Work::Reading, path, bytes, all);
    }
}

/// The digest of contents in memory.
pub(super) fn of_bytes(text: &[u8]) -> FileDigest {
    FileDigest { bytes: text.len() as u64, sha256: hex(&Sha256::digest(text)) }
}

/// The digest of files in their order. Paths are not part of it, so that a copy elsewhere is the same data.
pub(super) fn combine(files: &[FileDigest]) -> String {
    let mut hash = Sha256::new();
    for file in files {
        hash.update(file.bytes.to_le_bytes());
        hash.update(file.sha256.as_bytes());
    }
    hex(&hash.finalize())
}

/// The digest of a data set with one digest for all its files, or one for each split.
pub(super) fn of_splits(digests: Vec<String>) -> String {
    match digests.as_slice() {
        [all] => all.clone(),
        splits => of_bytes(format!("splits {}", splits.join(" ")).as_bytes()).sha256,
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// A time when a file that was just written has settled.
    fn later() -> SystemTime {
        SystemTime::now() + 2 * SETTLED
    }

    /// Writes a file and returns a cache with its digest.
    fn cached(text: &Path) -> DigestCache {
        fs::write(text, "one").unwrap();
        let mut cache = DigestCache::default();
        assert_eq!(cache.of_file_at(text, later()).unwrap().sha256, of_bytes(b"one").sha256);
        cache
    }

    #[test]
    fn file_is_read_once_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (text, file) = (folder.path().join("text"), folder.path().join("digests.json"));
        DigestCache { file: Some(file.clone()), ..cached(&text) }.write().unwrap();

        // Unchanged: taken from the cache, as the marker proves.
        let marked = fs::read_to_string(&file).unwrap().replace(&of_bytes(b"one").sha256, "marker");
        fs::write(&file, marked).unwrap();
        assert_eq!(DigestCache::read(&file).of_file(&text).unwrap().sha256, "marker");

        fs::write(&text, "three").unwrap();
        assert_eq!(DigestCache::read(&file).of_file(&text).unwrap().sha256, of_bytes(b"three").sha256);
    }

    /// Other contents of the same size, with the old modification time.
    #[test]
    fn changed_contents_are_detected_despite_equal_size_and_mtime() {
        let folder = tempfile::tempdir().unwrap();
        let (text, other) = (folder.path().join("text"), folder.path().join("other"));
        let changes: [&dyn Fn(); 2] = [&|| fs::write(&text, "two").unwrap(), &|| {
            fs::write(&other, "two").unwrap();
            fs::rename(&other, &text).unwrap();
        }];
        for change in changes {
            let mut cache = cached(&text);
            let modified = fs::metadata(&text).unwrap().modified().unwrap();
            change();
            File::options().write(true).open(&text).unwrap().set_modified(modified).unwrap();
            assert_eq!(fs::metadata(&text).unwrap().modified().unwrap(), modified);
            assert_eq!(cache.of_file(&text).unwrap().sha256, of_bytes(b"two").sha256);
        }
    }

    /// Two files with equal modification and change times.
    #[test]
    fn files_with_equal_times_differ_by_inode() {
        let folder = tempfile::tempdir().unwrap();
        let made = |name: String| {
            let file = folder.path().join(name);
            fs::write(&file, "one").unwrap();
            Version::of(&fs::metadata(file).unwrap())
        };
        let mut pairs = (0..10_000).map(|number| (made(format!("a{number}")), made(format!("b{number}"))));
        let (a, b) = pairs
            .find(|(a, b)| Version { inode: b.inode, ..a.clone() } == *b)
            .expect("two files with equal times");
        assert_ne!(a, b);
    }

    #[test]
    fn recently_changed_file_is_not_cached() {
        let folder = tempfile::tempdir().unwrap();
        let (text, kept) = (folder.path().join("text"), folder.path().join("digests.json"));
        fs::write(&text, "one").unwrap();
        // Its modification time is long ago.
        let modified = SystemTime::now() - 100 * SETTLED;
        File::options().write(true).open(&text).unwrap().set_modified(modified).unwrap();
        let mut cache = DigestCache::read(&kept);
        cache.of_file(&text).unwrap();
        cache.write().unwrap();
        assert!(!kept.exists());
    }

    #[test]
    fn invalid_cache_file_is_an_empty_cache() {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("digests.json");
        fs::write(&kept, "{ not json").unwrap();
        assert!(DigestCache::read(&kept).known.is_empty());
    }

    #[test]
    fn combined_digest_depends_on_order_lengths_and_contents() {
        let (a, b) = (|| of_bytes(b"ab"), || of_bytes(b"c"));
        assert_ne!(combine(&[a(), b()]), combine(&[b(), a()]));
        assert_ne!(combine(&[a(), b()]), combine(&[of_bytes(b"a"), of_bytes(b"bc")]));
        assert_eq!(combine(&[a(), b()]), combine(&[a(), b()]));
    }
}
