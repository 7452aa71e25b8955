//! A token row stored in files, which are read on demand.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::digest::Version;
use super::ids::Ids;
use super::slices::ReadTokens;
use super::{DataError, TokenWidth};
use base::regular;

/// Bytes to read at a time.
const PIECE: usize = 4 << 10;

/// Number of files that stay open; others are reopened for each sample. The usual limit is 1,024 per process.
const OPEN: usize = 256;

/// The concatenated tokens of files.
#[derive(Debug)]
pub(super) struct TokenFiles {
    files: Vec<TokenFile>,
    width: TokenWidth,
    /// The bound of all tokens when the files were digested.
    below: usize,
}

#[derive(Debug)]
struct TokenFile {
    /// Offset of its first token in the row.
    begin: usize,
    path: PathBuf,
    /// Bytes before the first token.
    header: usize,
    /// `None`: opened for each read.
    file: Option<File>,
    /// The version that was digested.
    version: Version,
    /// Whether it is in the cache, from where it may be removed.
    cached: bool,
}

impl TokenFiles {
    /// Opens files with the sizes of their headers, their numbers of tokens and the versions that were digested.
    ///
    /// # Errors
    /// A file is unreadable, or has changed since.
    pub(super) fn open(
        counts: Vec<(PathBuf, usize, usize)>,
        versions: Vec<Version>,
        (width, below): (TokenWidth, usize),
    ) -> Result<TokenFiles, DataError> {
        let mut begin = 0;
        let mut files = Vec::with_capacity(counts.len());
        for ((path, header, count), version) in counts.into_iter().zip(versions) {
            let opened = TokenFile { begin, path, header, file: None, version, cached: false };
            let file = opened.open()?;
            let file = (files.len() < OPEN).then_some(file);
            files.push(TokenFile { file, ..opened });
            begin += count;
        }
        Ok(TokenFiles { files, width, below })
    }

    /// Files of the cache, with their numbers of tokens, without headers.
    pub(super) fn cached(
        encoded: Vec<(PathBuf, File, Version, usize)>,
        width: TokenWidth,
        below: usize,
    ) -> TokenFiles {
        let mut begin = 0;
        let opened = encoded.into_iter().map(|(path, file, version, count)| {
            let opened = TokenFile { begin, path, header: 0, file: Some(file), version, cached: true };
            begin += count;
            opened
        });
        TokenFiles { files: opened.collect(), width, below }
    }

    /// Reads tokens of one file, from `offset` in the row on. Checks their bound, since the file may have changed.
    fn read_file(&self, index: usize, offset: usize, tokens: Ids<'_>) -> Result<(), DataError> {
        let token_file = &self.files[index];
        let opened = if token_file.file.is_none() { Some(token_file.open()?) } else { None };
        let file = token_file.file.as_ref().or(opened.as_ref()).expect("it is open, or was opened");
        token_file.check(file)?;
        let width = self.width.bytes();
        let mut bytes = [0; PIECE];
        let (mut rest, mut at) = (tokens, token_file.header + (offset - token_file.begin) * width);
        while rest.len() > 0 {
            let len = rest.len().min(PIECE / width);
            let (mut tokens, remaining) = rest.split_at(len);
            let bytes = &mut bytes[..len * width];
            file.read_exact_at(bytes, at as u64).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => token_file.changed(),
                _ => token_file.unreadable(error),
            })?;
            if self.width.numbers(bytes).any(|number| number as usize >= self.below) {
                return Err(token_file.changed());
            }
            tokens.put(self.width.numbers(bytes));
            (rest, at) = (remaining, at + bytes.len());
        }
        Ok(())
    }
}

impl TokenFile {
    fn open(&self) -> Result<File, DataError> {
        let file = regular::open(&self.path).map_err(|error| self.unreadable(error))?;
        self.check(&file)?;
        Ok(file)
    }

    /// Checks that the file has the digested version.
    fn check(&self, file: &File) -> Result<(), DataError> {
        let now = Version::of(&file.metadata().map_err(|error| self.unreadable(error))?);
        let same = if self.cached { now.has_contents_of(&self.version) } else { now == self.version };
        if same { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> DataError {
        DataError::Changed { path: self.path.clone() }
    }

    fn unreadable(&self, error: io::Error) -> DataError {
        DataError::Unreadable { path: self.path.clone(), error }
    }
}

impl ReadTokens for TokenFiles {
    fn read(&self, first: usize, tokens: Ids<'_>) -> Result<(), DataError> {
        let mut rest = tokens;
        let mut offset = first;
        let mut index = self.files.partition_point(|file| file.begin <= offset) - 1;
        while rest.len() > 0 {
            let end = self.files.get(index + 1).map_or(usize::MAX, |file| file.begin);
            let len = (end - offset).min(rest.len());
            let (tokens, remaining) = rest.split_at(len);
            self.read_file(index, offset, tokens)?;
            offset += len;
            (rest, index) = (remaining, index + 1);
        }
        Ok(())
    }
}
