//! Tokens in files, one after the other, which are read where samples need them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::digest::Version;
use super::ids::Ids;
use super::stretches::Row;
use super::{DataError, TokenWidth};
use base::regular;

/// Bytes that are read at a time.
const PIECE: usize = 4 << 10;

/// So many files stay open; others are opened for each sample. A process may have 1,024 of them, and needs some itself.
const OPEN: usize = 256;

/// All files.
#[derive(Debug)]
pub(super) struct Files {
    files: Vec<TokenFile>,
    width: TokenWidth,
    header: usize,
    /// What all tokens were below when they were looked at.
    below: usize,
}

#[derive(Debug)]
struct TokenFile {
    /// The place in the row that its tokens begin at.
    begin: usize,
    path: PathBuf,
    /// `None`: it is opened when it is read.
    file: Option<File>,
    /// What it was when it was looked at, of a file that others may write to.
    version: Option<Version>,
}

impl Files {
    /// Those of these paths, each with as many tokens, that hold what they were digested as: `looked_at` says which version of
    /// each that was.
    ///
    /// # Errors
    /// A file that cannot be read, or is another by now.
    pub(super) fn open(
        counts: Vec<(PathBuf, usize)>,
        looked_at: Vec<Version>,
        (width, header, below): (TokenWidth, usize, usize),
    ) -> Result<Files, DataError> {
        let mut begin = 0;
        let mut files = Vec::with_capacity(counts.len());
        for ((path, count), version) in counts.into_iter().zip(looked_at) {
            let opened = TokenFile { begin, path, file: None, version: Some(version) };
            let file = opened.opened()?;
            let file = (files.len() < OPEN).then_some(file);
            files.push(TokenFile { file, ..opened });
            begin += count;
        }
        Ok(Files { files, width, header, below })
    }

    /// One that is all tokens, up to a number of them, which nobody else writes to.
    pub(super) fn one(path: PathBuf, file: File, width: TokenWidth, below: usize) -> Files {
        let file = TokenFile { begin: 0, path, file: Some(file), version: None };
        Files { files: vec![file], width, header: 0, below }
    }

    /// Those of one file. What it holds now may be other numbers than were looked at.
    fn read_file(&self, number: usize, place: usize, tokens: Ids<'_>) -> Result<(), DataError> {
        let of = &self.files[number];
        let opened = if of.file.is_none() { Some(of.opened()?) } else { None };
        let file = of.file.as_ref().or(opened.as_ref()).expect("it is open, or was opened");
        of.check(file)?;
        let width = self.width.bytes();
        let mut bytes = [0; PIECE];
        let (mut rest, mut at) = (tokens, self.header + (place - of.begin) * width);
        while rest.len() > 0 {
            let len = rest.len().min(PIECE / width);
            let (mut tokens, later) = rest.split_at(len);
            let bytes = &mut bytes[..len * width];
            file.read_exact_at(bytes, at as u64).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => of.changed(),
                _ => of.unreadable(error),
            })?;
            if self.width.numbers(bytes).any(|number| number as usize >= self.below) {
                return Err(of.changed());
            }
            tokens.put(self.width.numbers(bytes));
            (rest, at) = (later, at + bytes.len());
        }
        Ok(())
    }
}

impl TokenFile {
    fn opened(&self) -> Result<File, DataError> {
        let file = regular::open(&self.path).map_err(|error| self.unreadable(error))?;
        self.check(&file)?;
        Ok(file)
    }

    /// Whether it is what it was when it was looked at.
    fn check(&self, file: &File) -> Result<(), DataError> {
        let Some(version) = &self.version else { return Ok(()) };
        let now = file.metadata().map_err(|error| self.unreadable(error))?;
        if Version::of(&now) == *version { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> DataError {
        DataError::Changed { path: self.path.clone() }
    }

    fn unreadable(&self, error: io::Error) -> DataError {
        DataError::Unreadable { path: self.path.clone(), error }
    }
}

impl Row for Files {
    fn read(&self, first: usize, tokens: Ids<'_>) -> Result<(), DataError> {
        let mut rest = tokens;
        let mut place = first;
        let mut number = self.files.partition_point(|file| file.begin <= place) - 1;
        while rest.len() > 0 {
            let end = self.files.get(number + 1).map_or(usize::MAX, |file| file.begin);
            let len = (end - place).min(rest.len());
            let (here, later) = rest.split_at(len);
            self.read_file(number, place, here)?;
            place += len;
            (rest, number) = (later, number + 1);
        }
        Ok(())
    }
}
