//! Encoded text in the user's cache. File format: the tokens of all documents (u32), the end of each document (u64), the
//! ranges of tokens that are no targets (u64, begin and end), counts, the digest of the source, the digest of all that precedes it, and a mark.

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::documents::{self, Document, RecordFormat};
use super::encoder::{self, Encoding, Launch, TokenizerEncoder};
use super::examine::TextFile;
use crate::digest::{self, FileDigest, Progress, Version, Work};
use crate::{DataError, DigestCache, TokenWidth};
use base::{regular, temporary};

/// The end of every such file. Change its number with the file format or with the tokens of the same text.
const MARK: &[u8; 16] = b"runner tokens 4\n";

/// Number of tokens, documents, masked ranges and documents without tokens, and the largest token (u64 each); the digest of the source, in hexadecimal digits.
const COUNTS: usize = 5 * 8;
const SOURCE: usize = 64;

/// The digest of all that precedes it, in hexadecimal digits, and the mark.
const SEAL: usize = 64 + MARK.len();

/// Bytes of text to encode at a time, unless one document is longer.
const AT_ONCE: usize = 1 << 20;

/// Attempts to create a file in the cache, from which other processes may remove folders.
const ATTEMPTS: usize = 5;

/// The width of tokens in such a file.
pub(super) const WIDTH: TokenWidth = TokenWidth::U32;

/// A text, and how it is encoded.
pub(super) struct EncodedText<'a> {
    pub(super) files: &'a [TextFile],
    pub(super) records: Option<&'a RecordFormat>,
    pub(super) encoding: &'a Encoding,
    /// The digest of the tokenizer file, if there is one.
    pub(super) tokenizer: Option<&'a FileDigest>,
    pub(super) launch: Launch,
}

/// An encoded text.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) path: PathBuf,
    pub(super) file: File,
    /// The version whose contents were checked.
    pub(super) version: Version,
    pub(super) tokens: usize,
    pub(super) documents: usize,
    /// Number of documents without tokens, which are not among the others.
    pub(super) empty: usize,
    masked: usize,
    /// The largest token; 0 without tokens.
    pub(super) largest: u32,
}

/// Totals of the documents written so far.
#[derive(Default)]
struct Totals {
    tokens: u64,
    ends: Vec<u64>,
    /// Tokens that are no targets.
    masked: Vec<Range<u64>>,
    empty: u64,
    largest: u32,
}

impl Encoded {
    /// Opens the encoded text of this `source`, a digest of everything that determines the tokens. Encodes it first if the
    /// cache does not have it, or if its file is damaged or of another user.
    ///
    /// # Errors
    /// The text cannot be encoded, or the cache is unusable.
    pub(super) fn open(
        folder: &Path,
        source: &str,
        text: &EncodedText<'_>,
        digests: &mut DigestCache,
    ) -> Result<Encoded, DataError> {
        let path = &folder.join(source);
        clean(folder);
        if let Some(encoded) = Encoded::read(path, source, digests) {
            return Ok(encoded);
        }
        let uncached = |error| DataError::Uncached { folder: folder.to_owned(), error };
        create(folder).map_err(uncached)?;
        remove_unusable(path).map_err(uncached)?;
        // One process encodes, and others wait for it. Where files cannot be locked, each encodes.
        let lock = temporary::lock(path);
        if let Some(encoded) = Encoded::read(path, source, digests) {
            return Ok(encoded);
        }
        let encoded = Encoded::make(path, source, text, digests.progress());
        if encoded.is_err() && fs::metadata(path).is_ok_and(|found| found.len() == 0) {
            // Made for the lock.
            let _ = fs::remove_file(path);
        }
        drop(lock);
        encoded
    }

    /// Encodes the text.
    fn make(
        path: &Path,
        source: &str,
        text: &EncodedText<'_>,
        progress: &mut Progress,
    ) -> Result<Encoded, DataError> {
        let folder = path.parent().unwrap_or(path);
        let uncached = |error| DataError::Uncached { folder: folder.to_owned(), error };
        let mut encoder = match (text.encoding, text.tokenizer) {
            (Encoding::Tokenizer(file), Some(digest)) => {
                Some(TokenizerEncoder::open(file, digest, text.launch)?)
            }
            _ => None,
        };
        let temporary = temporary_file(path).map_err(uncached)?;
        let mut to =
            Writer { to: BufWriter::new(temporary.file()), hash: Sha256::new(), totals: Totals::default() };
        let all = text.files.iter().map(|file| file.text.bytes).sum();
        let mut done = 0;
        for file in text.files {
            let mut pending = Vec::new();
            let mut bytes = 0;
            let longest = text.encoding.longest();
            let mut flush = |pending: &mut Vec<Document<'_>>| {
                let documents = std::mem::take(pending);
                done += documents.iter().map(|document| document.text.len() as u64).sum::<u64>();
                progress.report(Work::Encoding, &file.path, done, all);
                to.encode(&documents, text.encoding, encoder.as_mut())
                    .map_err(|error| error.into_data_error(uncached))
            };
            documents::read_file(file, text.records, longest, |document| {
                encoder::check(&document, text.encoding)?;
                bytes += document.text.len();
                pending.push(document);
                if bytes < AT_ONCE {
                    return Ok(());
                }
                bytes = 0;
                flush(&mut pending)
            })?;
            flush(&mut pending)?;
        }
        let totals = to.finish(source).map_err(uncached)?;
        // Used as it is, even if the cache is removed meanwhile.
        let kept = temporary.file().try_clone().map_err(uncached)?;
        match temporary.replace(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(uncached(error)),
            _ => {}
        }
        // Without effect where files cannot be locked.
        let _ = kept.unlock();
        let version = Version::of(&kept.metadata().map_err(uncached)?);
        Ok(Encoded {
            path: path.to_owned(),
            file: kept,
            version,
            tokens: totals.tokens as usize,
            documents: totals.ends.len(),
            empty: totals.empty as usize,
            masked: totals.masked.len(),
            largest: totals.largest,
        })
    }

    /// Opens an existing file, if it is of this user and its contents are what was written.
    fn read(path: &Path, source: &str, digests: &mut DigestCache) -> Option<Encoded> {
        let file = regular::open(path).ok()?;
        let found = file.metadata().ok()?;
        let version = Version::of(&found);
        let length = found.len();
        let mut tail = [0; COUNTS + SOURCE + SEAL];
        let begin = length.checked_sub(tail.len() as u64)?;
        file.read_exact_at(&mut tail, begin).ok()?;
        let (numbers, tail) = tail.split_at(COUNTS);
        let (stored_source, seal) = tail.split_at(SOURCE);
        let (stored_digest, mark) = seal.split_at(SEAL - MARK.len());
        let (numbers, _) = numbers.as_chunks();
        let [tokens, documents, masked, empty, largest] =
            [0, 1, 2, 3, 4].map(|index| u64::from_le_bytes(numbers[index]));
        let expected = tokens
            .checked_mul(4)?
            .checked_add(documents.checked_mul(8)?)?
            .checked_add(masked.checked_mul(16)?)?
            .checked_add((COUNTS + SOURCE + SEAL) as u64)?;
        (mark == MARK && length == expected && stored_source == source.as_bytes()).then_some(())?;
        (is_own(&found, path)).then_some(())?;
        let digest = digests.of_body(path, SEAL as u64).ok()?;
        // The path may have been replaced since it was opened.
        let checked = Version::of(&fs::metadata(path).ok()?);
        (digest.as_bytes() == stored_digest && checked == version).then_some(())?;
        Some(Encoded {
            path: path.to_owned(),
            file,
            version,
            tokens: usize::try_from(tokens).ok()?,
            documents: usize::try_from(documents).ok()?,
            empty: usize::try_from(empty).ok()?,
            masked: usize::try_from(masked).ok()?,
            largest: u32::try_from(largest).ok()?,
        })
    }

    /// The end of each document, in tokens.
    pub(super) fn ends(&self) -> Result<Vec<u64>, DataError> {
        let ends = self.numbers(4 * self.tokens as u64, self.documents)?;
        let valid = ends.is_sorted() && ends.last().is_none_or(|last| *last == self.tokens as u64);
        valid.then_some(ends).ok_or_else(|| DataError::Changed { path: self.path.clone() })
    }

    /// The ranges of tokens that are no targets, in order.
    pub(super) fn masked(&self) -> Result<Vec<Range<u64>>, DataError> {
        let bounds = self.numbers(4 * self.tokens as u64 + 8 * self.documents as u64, 2 * self.masked)?;
        let valid = bounds.is_sorted() && bounds.last().is_none_or(|last| *last <= self.tokens as u64);
        let ranges = bounds.as_chunks().0.iter().map(|[begin, end]| *begin..*end).collect();
        valid.then_some(ranges).ok_or_else(|| DataError::Changed { path: self.path.clone() })
    }

    fn numbers(&self, at: u64, count: usize) -> Result<Vec<u64>, DataError> {
        let mut bytes = vec![0; 8 * count];
        self.file
            .read_exact_at(&mut bytes, at)
            .map_err(|error| DataError::Unreadable { path: self.path.clone(), error })?;
        Ok(bytes.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number)).collect())
    }
}

/// Creates the cache folder.
fn create(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Creates a temporary file for the file at `path` that only this user may write to. The folder may be removed meanwhile.
fn temporary_file(path: &Path) -> io::Result<temporary::TemporaryFile> {
    let mut attempts = 1..ATTEMPTS;
    loop {
        let made = create(path.parent().unwrap_or(path)).and_then(|()| {
            let made = temporary::TemporaryFile::beside(path)?;
            made.file().set_permissions(Permissions::from_mode(0o600))?;
            Ok(made)
        });
        match made {
            Err(error) if error.kind() == io::ErrorKind::NotFound && attempts.next().is_some() => {}
            made => return made,
        }
    }
}

/// Removes files of killed processes: temporary ones, and empty ones that were made to be locked.
fn clean(folder: &Path) {
    // Files that cannot be removed do no harm.
    let _ = temporary::clean(folder, "");
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let is_empty = entry.metadata().is_ok_and(|found| found.is_file() && found.len() == 0);
        let path = entry.path();
        // Who creates such a file notices that it is removed.
        if is_empty && File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Removes whatever is in the place of a file and is not a file.
fn remove_unusable(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(found) if !found.is_file() => fs::remove_file(path),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether no other user can have written a file, except root.
fn is_own(found: &Metadata, path: &Path) -> bool {
    let user = fs::metadata("/proc/self").map(|process| process.uid());
    let is_closed = |found: &Metadata| found.mode() & 0o022 == 0;
    if is_closed(found) && (found.uid() == 0 || user.is_ok_and(|user| found.uid() == user)) {
        return true;
    }
    // Some file systems give files other owners or rights than those requested: compare with a new file.
    let new = temporary_file(path).and_then(|new| new.file().metadata());
    new.is_ok_and(|new| new.uid() == found.uid() && (is_closed(found) || !is_closed(&new)))
}

/// An error in the text, or in writing its tokens.
enum Failure {
    Text(DataError),
    File(io::Error),
}

impl Failure {
    fn into_data_error(self, uncached: impl Fn(io::Error) -> DataError) -> DataError {
        match self {
            Failure::Text(error) => error,
            Failure::File(error) => uncached(error),
        }
    }
}

/// Writes a file of encoded text.
struct Writer<'a> {
    to: BufWriter<&'a File>,
    hash: Sha256,
    totals: Totals,
}

impl Writer<'_> {
    /// Encodes documents; without an encoder, they are bytes or token ids.
    fn encode(
        &mut self,
        documents: &[Document<'_>],
        encoding: &Encoding,
        encoder: Option<&mut TokenizerEncoder<'_>>,
    ) -> Result<(), Failure> {
        if documents.is_empty() {
            return Ok(());
        }
        if let Some(encoder) = encoder {
            for (tokens, targets) in encoder.encode(documents).map_err(Failure::Text)? {
                self.document(tokens.into_iter(), targets.as_deref()).map_err(Failure::File)?;
            }
            return Ok(());
        }
        let mut document = |document: &Document<'_>| {
            let targets = document.targets.as_deref();
            match encoding {
                Encoding::Ids => {
                    let ids = document.text.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id));
                    self.document(ids, targets)
                }
                _ => self.document(document.text.iter().map(|byte| u32::from(*byte)), targets),
            }
        };
        documents.iter().try_for_each(&mut document).map_err(Failure::File)
    }

    /// Appends a document, whose targets are ranges of its tokens; only counts documents without tokens.
    fn document(
        &mut self,
        tokens: impl ExactSizeIterator<Item = u32>,
        targets: Option<&[Range<usize>]>,
    ) -> io::Result<()> {
        if tokens.len() == 0 {
            self.totals.empty += 1;
            return Ok(());
        }
        if let Some(targets) = targets {
            let (begin, end) = (self.totals.tokens, self.totals.tokens + tokens.len() as u64);
            let mut masked_from = begin;
            let document_end = tokens.len()..tokens.len();
            for range in targets.iter().chain(std::iter::once(&document_end)) {
                let target = (begin + range.start as u64).min(end);
                if masked_from < target {
                    self.totals.masked.push(masked_from..target);
                }
                masked_from = begin + range.end as u64;
            }
        }
        self.totals.tokens += tokens.len() as u64;
        self.totals.ends.push(self.totals.tokens);
        let mut piece = [0; 4 << 10];
        let mut filled = 0;
        for token in tokens {
            self.totals.largest = self.totals.largest.max(token);
            piece[filled..filled + 4].copy_from_slice(&token.to_le_bytes());
            filled += 4;
            if filled == piece.len() {
                self.write(&piece)?;
                filled = 0;
            }
        }
        self.write(&piece[..filled])
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.to.write_all(bytes)
    }

    fn finish(mut self, source: &str) -> io::Result<Totals> {
        let totals = std::mem::take(&mut self.totals);
        let [ends, masked] = [totals.ends.len(), totals.masked.len()].map(|count| count as u64);
        let counts = [totals.tokens, ends, masked, totals.empty, u64::from(totals.largest)];
        let bounds = totals.masked.iter().flat_map(|range| [&range.start, &range.end]);
        let numbers: Vec<&u64> = totals.ends.iter().chain(bounds).chain(&counts).collect();
        numbers.into_iter().try_for_each(|number| self.write(&number.to_le_bytes()))?;
        self.write(source.as_bytes())?;
        let digest = digest::hex(&self.hash.finalize());
        self.to.write_all(digest.as_bytes())?;
        self.to.write_all(MARK)?;
        self.to.flush()?;
        self.to.get_ref().sync_all()?;
        Ok(totals)
    }
}
