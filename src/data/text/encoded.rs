//! Encoded text in the user's cache. File format: the tokens of all documents (u32), the end of each document (u64),
//! and a tail with the counts.

use std::fs::{DirBuilder, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

use super::documents::{self, Document};
use super::encoder::Encoder;
use crate::digest::FileDigest;
use crate::{DataError, TokenWidth};
use base::temporary::TemporaryFile;
use base::{parallel, regular};

/// The end of every such file. Change its number with the file format or with the tokens of the same text.
const MARK: &[u8; 16] = b"runner tokens 1\n";

/// Number of tokens, number of documents, largest token (u64 each), mark.
const TAIL: u64 = 8 + 8 + 8 + MARK.len() as u64;

/// Bytes of text to encode at a time, unless one document is longer.
const AT_ONCE: usize = 1 << 20;

/// An encoded text.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) tokens: usize,
    documents: usize,
    /// The largest token; 0 without tokens.
    pub(super) largest: u32,
}

/// Totals of the documents written so far.
#[derive(Default)]
struct Totals {
    tokens: u64,
    ends: Vec<u64>,
    largest: u32,
}

impl Encoded {
    /// Opens the encoded text at `path`; encodes it first if there is none.
    ///
    /// # Errors
    /// Those of [`Encoder::open`] and [`Encoder::encode`], and an unusable cache.
    pub(super) fn open(
        path: &Path,
        files: &[(PathBuf, FileDigest)],
        jsonl: Option<&str>,
        encoder: impl Fn() -> Result<Encoder, DataError>,
    ) -> Result<Encoded, DataError> {
        if let Some(encoded) = Encoded::read(path) {
            return Ok(encoded);
        }
        let folder = path.parent().unwrap_or(path);
        let uncached = |error| DataError::Uncached { folder: folder.to_owned(), error };
        let encoder = encoder()?;
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(uncached)?;
        let temporary = TemporaryFile::beside(path).map_err(uncached)?;
        let mut to = Writer { to: BufWriter::new(temporary.file()), totals: Totals::default() };
        for (file, digest) in files {
            let mut pending = PendingDocuments { encoder: &encoder, documents: Vec::new(), bytes: 0 };
            documents::read_file(file, digest, jsonl, |document| {
                pending.documents.push(document);
                pending.bytes += pending.documents.last().map_or(0, |document| document.text.len());
                if pending.bytes < AT_ONCE {
                    Ok(())
                } else {
                    pending.encode(&mut to).map_err(|error| error.into_data_error(uncached))
                }
            })?;
            pending.encode(&mut to).map_err(|error| error.into_data_error(uncached))?;
        }
        to.finish().map_err(uncached)?;
        temporary.replace(path).map_err(uncached)?;
        Encoded::read(path)
            .ok_or_else(|| uncached(io::Error::other("the file that was just written is missing")))
    }

    /// Opens an existing file, if it is complete.
    fn read(path: &Path) -> Option<Encoded> {
        let file = regular::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        let mut tail = [0; TAIL as usize];
        file.read_exact_at(&mut tail, length.checked_sub(TAIL)?).ok()?;
        let (numbers, mark) = tail.split_at(24);
        let (numbers, _) = numbers.as_chunks();
        let [tokens, documents, largest] = [0, 1, 2].map(|index| u64::from_le_bytes(numbers[index]));
        let expected = tokens.checked_mul(4)?.checked_add(documents.checked_mul(8)?)?.checked_add(TAIL)?;
        (mark == MARK && length == expected).then_some(())?;
        let (tokens, documents) = (usize::try_from(tokens).ok()?, usize::try_from(documents).ok()?);
        Some(Encoded {
            path: path.to_owned(),
            file,
            tokens,
            documents,
            largest: u32::try_from(largest).ok()?,
        })
    }

    /// The end of each document, in tokens.
    pub(super) fn ends(&self) -> Result<Vec<u64>, DataError> {
        let mut bytes = vec![0; 8 * self.documents];
        self.file
            .read_exact_at(&mut bytes, 4 * self.tokens as u64)
            .map_err(|error| DataError::Unreadable { path: self.path.clone(), error })?;
        let ends: Vec<u64> = bytes.as_chunks().0.iter().map(|end| u64::from_le_bytes(*end)).collect();
        let valid = ends.is_sorted() && ends.last().is_none_or(|last| *last == self.tokens as u64);
        valid.then_some(ends).ok_or_else(|| DataError::Changed { path: self.path.clone() })
    }
}

/// Documents to encode in parallel.
struct PendingDocuments<'a> {
    encoder: &'a Encoder,
    documents: Vec<Document<'a>>,
    bytes: usize,
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

impl PendingDocuments<'_> {
    fn encode(&mut self, to: &mut Writer<'_>) -> Result<(), Failure> {
        self.bytes = 0;
        let documents = std::mem::take(&mut self.documents);
        for tokens in parallel::map(documents, |document| self.encoder.encode(&document)) {
            to.document(&tokens.map_err(Failure::Text)?).map_err(Failure::File)?;
        }
        Ok(())
    }
}

/// Writes a file of encoded text.
struct Writer<'a> {
    to: BufWriter<&'a File>,
    totals: Totals,
}

impl Writer<'_> {
    /// Appends a document; ignores documents without tokens.
    fn document(&mut self, tokens: &[u32]) -> io::Result<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        let Totals { tokens: total, ends, largest } = &mut self.totals;
        *total += tokens.len() as u64;
        ends.push(*total);
        *largest = tokens.iter().copied().fold(*largest, u32::max);
        tokens.iter().try_for_each(|token| self.to.write_all(&token.to_le_bytes()))
    }

    fn finish(mut self) -> io::Result<()> {
        let Totals { tokens, ends, largest } = &self.totals;
        let counts = [*tokens, ends.len() as u64, u64::from(*largest)];
        ends.iter().chain(&counts).try_for_each(|number| self.to.write_all(&number.to_le_bytes()))?;
        self.to.write_all(MARK)?;
        self.to.flush()?;
        self.to.get_ref().sync_all()
    }
}

/// The width of tokens in such a file.
pub(super) const WIDTH: TokenWidth = TokenWidth::U32;
