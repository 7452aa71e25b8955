//! Encoded text, kept in the user's cache: the tokens of all documents one after the other, then where each document ends,
//! then how much there is of both.

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

/// What ends every such file. Another form of it, or other tokens for the same text, need another number.
const MARK: &[u8; 16] = b"runner tokens 1\n";

/// Tokens, documents, largest token, mark.
const TAIL: u64 = 8 + 8 + 8 + MARK.len() as u64;

/// Bytes of text that are encoded at a time, or one document.
const AT_ONCE: usize = 1 << 20;

/// An encoded text.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) tokens: usize,
    documents: usize,
    /// 0 where there is none.
    pub(super) largest: u32,
}

/// What there is of it.
#[derive(Default)]
struct Sums {
    tokens: u64,
    ends: Vec<u64>,
    largest: u32,
}

impl Encoded {
    /// The text that lies there; encoded now, if it does not.
    ///
    /// # Errors
    /// Those of [`Encoder::open`] and [`Encoder::encode`], and a cache that cannot be used.
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
        let mut to = Writer { to: BufWriter::new(temporary.file()), sums: Sums::default() };
        for (file, digest) in files {
            let mut waiting = Waiting { encoder: &encoder, documents: Vec::new(), bytes: 0 };
            documents::of_file(file, digest, jsonl, |document| {
                waiting.documents.push(document);
                waiting.bytes += waiting.documents.last().map_or(0, |document| document.text.len());
                if waiting.bytes < AT_ONCE {
                    Ok(())
                } else {
                    waiting.encode(&mut to).map_err(|error| error.of(uncached))
                }
            })?;
            waiting.encode(&mut to).map_err(|error| error.of(uncached))?;
        }
        to.finish().map_err(uncached)?;
        temporary.replace(path).map_err(uncached)?;
        Encoded::read(path).ok_or_else(|| uncached(io::Error::other("what was written is not there")))
    }

    /// What lies there, if it is whole.
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

    /// Where each document ends.
    pub(super) fn ends(&self) -> Result<Vec<u64>, DataError> {
        let mut bytes = vec![0; 8 * self.documents];
        self.file
            .read_exact_at(&mut bytes, 4 * self.tokens as u64)
            .map_err(|error| DataError::Unreadable { path: self.path.clone(), error })?;
        let ends: Vec<u64> = bytes.as_chunks().0.iter().map(|end| u64::from_le_bytes(*end)).collect();
        let are_in_order = ends.is_sorted() && ends.last().is_none_or(|last| *last == self.tokens as u64);
        are_in_order.then_some(ends).ok_or_else(|| DataError::Changed { path: self.path.clone() })
    }
}

/// Documents that are to be encoded together.
struct Waiting<'a> {
    encoder: &'a Encoder,
    documents: Vec<Document<'a>>,
    bytes: usize,
}

/// What went wrong with text, or with the file of its tokens.
enum Failure {
    Text(DataError),
    File(io::Error),
}

impl Failure {
    fn of(self, uncached: impl Fn(io::Error) -> DataError) -> DataError {
        match self {
            Failure::Text(error) => error,
            Failure::File(error) => uncached(error),
        }
    }
}

impl Waiting<'_> {
    fn encode(&mut self, to: &mut Writer<'_>) -> Result<(), Failure> {
        self.bytes = 0;
        let documents = std::mem::take(&mut self.documents);
        for tokens in parallel::map(documents, |document| self.encoder.encode(&document)) {
            to.document(&tokens.map_err(Failure::Text)?).map_err(Failure::File)?;
        }
        Ok(())
    }
}

/// A file of tokens that is being written.
struct Writer<'a> {
    to: BufWriter<&'a File>,
    sums: Sums,
}

impl Writer<'_> {
    /// One without tokens is none.
    fn document(&mut self, tokens: &[u32]) -> io::Result<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        let Sums { tokens: sum, ends, largest } = &mut self.sums;
        *sum += tokens.len() as u64;
        ends.push(*sum);
        *largest = tokens.iter().copied().fold(*largest, u32::max);
        tokens.iter().try_for_each(|token| self.to.write_all(&token.to_le_bytes()))
    }

    fn finish(mut self) -> io::Result<()> {
        let Sums { tokens, ends, largest } = &self.sums;
        let counts = [*tokens, ends.len() as u64, u64::from(*largest)];
        ends.iter().chain(&counts).try_for_each(|number| self.to.write_all(&number.to_le_bytes()))?;
        self.to.write_all(MARK)?;
        self.to.flush()?;
        self.to.get_ref().sync_all()
    }
}

/// How tokens lie in such a file.
pub(super) const WIDTH: TokenWidth = TokenWidth::U32;
