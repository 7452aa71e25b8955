//! Data sets of pre-encoded tokens: flat binary files of integers, which are read in place.

use std::path::{Path, PathBuf};

use super::digest::{Examined, versions};
use super::slices::{RowSlices, RowSummary, Splits};
use super::token_files::TokenFiles;
use super::token_width::TokenWidth;
use super::{Contents, DataError, DataSet, DigestCache, KeyedCount, Sample, Source, digest, files, formats};

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
    /// The fraction of the training split, which comes first; the rest is the evaluation split.
    pub split: f64,
}

/// The properties of all files, and the size of the header and the number of tokens of each.
struct FileSummary {
    contents: RowSummary,
    counts: Vec<(PathBuf, usize, usize)>,
}

impl TokenSet {
    fn summarise(&self, cache: &mut DigestCache) -> Result<FileSummary, Vec<DataError>> {
        let files = files::find(&self.paths)?;
        let (mut digests, mut counts, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        let mut largest = 0;
        for path in files {
            match self.digest_file(&path, cache) {
                Ok(found) => {
                    largest = largest.max(found.largest);
                    let bytes = (found.digest.bytes as usize).saturating_sub(self.header);
                    counts.push((path, self.header, bytes / self.width.bytes()));
                    digests.push(found.digest);
                }
                Err(error) => errors.push(error),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let tokens = counts.iter().map(|(.., count)| count).sum();
        if tokens == 0 {
            return Err(vec![DataError::Empty { files: counts.len() }]);
        }
        let splits = Splits::of(tokens, self.split, UNITS).map_err(|error| vec![error])?;
        let below = KeyedCount { key: "data.tokens.paths", count: largest as usize + 1 };
        let notes = Vec::new();
        Ok(FileSummary {
            contents: RowSummary { digest: digest::combine(&digests), splits, below, notes },
            counts,
        })
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

    fn files(&self, cache: &mut DigestCache) -> Result<RowSlices<TokenFiles>, DataError> {
        let first = |errors: Vec<DataError>| errors.into_iter().next().unwrap_or(DataError::NoPaths);
        // Taken before digesting, so that later changes are detected.
        let versions = versions(&files::find(&self.paths).map_err(first)?)?;
        let FileSummary { contents, counts } = self.summarise(cache).map_err(first)?;
        let format = (self.width, contents.below.count);
        Ok(RowSlices { row: TokenFiles::open(counts, versions, format)?, contents })
    }
}

impl DataSet for TokenSet {
    fn name(&self) -> &'static str {
        "tokens"
    }

    fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Only the number of tokens is unknown, which a plan does not need.
    fn is_known_unread(&self) -> bool {
        true
    }

    fn is_row(&self) -> bool {
        true
    }

    fn inspect(&self, cache: &mut DigestCache) -> Result<Box<dyn Contents>, Vec<DataError>> {
        Ok(Box::new(self.summarise(cache)?.contents))
    }

    fn open(&self, _sample: &Sample, cache: &mut DigestCache) -> Result<Box<dyn Source>, DataError> {
        Ok(Box::new(self.files(cache)?))
    }
}

#[cfg(test)]
mod tests;
