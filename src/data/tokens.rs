//! Data sets of pre-encoded tokens: flat binary files of integers, which are read in place.

use std::path::{Path, PathBuf};

use super::digest::{Examined, FileDigest, versions};
use super::files::SplitFiles;
use super::slices::{RowSlices, RowSummary};
use super::token_files::TokenFiles;
use super::token_width::TokenWidth;
use super::{Contents, DataError, DataSet, DigestCache, KeyedCount, Sample, Source, formats};

/// Unit and material, for error messages.
const UNITS: [&str; 2] = ["token", "tokens"];

/// Files of tokens, concatenated in the order of their sorted paths.
#[derive(Debug)]
pub struct TokenSet {
    /// Absolute paths and globs.
    pub paths: Vec<PathBuf>,
    pub width: TokenWidth,
    /// Size of each file's header in bytes.
    pub header: usize,
    /// Absolute paths and globs of files for evaluation; empty: a part of `paths` is.
    pub evaluate: Vec<PathBuf>,
    /// The fraction of the training split, which comes first; the rest is the evaluation split.
    pub split: f64,
}

/// A file, and what a data set needs of its contents.
struct ExaminedFile {
    path: PathBuf,
    tokens: usize,
    digest: FileDigest,
    largest: u32,
}

impl TokenSet {
    fn find(&self) -> Result<SplitFiles<PathBuf>, Vec<DataError>> {
        SplitFiles::find(&self.paths, &self.evaluate)
    }

    fn files(&self, cache: &mut DigestCache) -> Result<SplitFiles<ExaminedFile>, Vec<DataError>> {
        self.find()?.try_map(|path| {
            let Examined { digest, largest, .. } = self.digest_file(&path, cache)?;
            let tokens = (digest.bytes as usize).saturating_sub(self.header) / self.width.bytes();
            Ok(ExaminedFile { path, tokens, digest, largest })
        })
    }

    fn summary(&self, files: &SplitFiles<ExaminedFile>) -> Result<RowSummary, DataError> {
        let splits = files.splits(|file| file.tokens, self.split, UNITS)?;
        let largest = files.all().map(|file| file.largest).max().unwrap_or_default();
        let below = KeyedCount { key: "data.tokens.paths", count: largest as usize + 1 };
        let digest = files.digest(|file| file.digest.clone());
        Ok(RowSummary { digest, splits, below, notes: files.notes(|file| &file.path, |file| &file.digest) })
    }

    fn digest_file(&self, path: &Path, cache: &mut DigestCache) -> Result<Examined, DataError> {
        let unreadable = |error| DataError::Unreadable { path: path.to_owned(), error };
        formats::check_tokens(path, self.width, self.header)?;
        let found = cache.of_tokens(path, self.width, self.header).map_err(unreadable)?;
        let bytes = found.digest.bytes.saturating_sub(self.header as u64);
        if !bytes.is_multiple_of(self.width.bytes() as u64) {
            let format = self.width.name();
            return Err(DataError::OddLength { path: path.to_owned(), bytes, format });
        }
        Ok(found)
    }
}

impl DataSet for TokenSet {
    fn name(&self) -> &'static str {
        "tokens"
    }

    fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    fn evaluation_paths(&self) -> &[PathBuf] {
        &self.evaluate
    }

    /// Only the number of tokens is unknown, which a plan does not need.
    fn is_known_unread(&self) -> bool {
        true
    }

    fn is_row(&self) -> bool {
        true
    }

    fn inspect(&self, cache: &mut DigestCache) -> Result<Box<dyn Contents>, Vec<DataError>> {
        let summary = self.summary(&self.files(cache)?);
        Ok(Box::new(summary.map_err(|error| vec![error])?))
    }

    fn open(&self, _sample: &Sample, cache: &mut DigestCache) -> Result<Box<dyn Source>, DataError> {
        let first = |errors: Vec<DataError>| errors.into_iter().next().unwrap_or(DataError::NoPaths);
        // Taken before digesting, so that later changes are detected.
        let found = self.find().map_err(first)?;
        let versions = versions(found.all())?;
        let files = self.files(cache).map_err(first)?;
        let contents = self.summary(&files)?;
        let counts = files.all().map(|file| (file.path.clone(), self.header, file.tokens)).collect();
        let row = TokenFiles::open(counts, versions, (self.width, contents.below.count))?;
        Ok(Box::new(RowSlices { row, contents }))
    }
}

#[cfg(test)]
mod tests;
