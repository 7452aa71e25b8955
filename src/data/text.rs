//! Text data sets. Tokens are bytes or the ids of a tokenizer.

mod documents;
mod encoded;
mod encoder;
mod encoding_process;
mod frames;
mod json_field;

use std::path::{Path, PathBuf};

use encoded::{Encoded, EncodedText};
use encoder::Launch;
pub use encoder::{EncoderFailure, Encoding, TokenizerFile};
pub use encoding_process::encode_documents;

use super::digest::FileDigest;
use super::documents::{DocumentSamples, DocumentSet};
use super::row::PARTS;
use super::slices::{RowSlices, RowSummary, Splits};
use super::token_files::TokenFiles;
use super::{
    Contents, DataError, DataSet, DigestCache, Documents, KeyedCount, Sample, Source, TokenWidth, digest,
    files, formats,
};
use base::user_cache;

/// The bound of byte tokens.
const BYTES: KeyedCount = KeyedCount { key: "data.text.tokens", count: 256 };

/// Unit and material, for error messages.
const UNITS: [&str; 2] = ["byte", "text"];

/// Text files, concatenated in the order of their sorted paths.
#[derive(Debug)]
pub struct TextSet {
    /// Absolute paths and globs.
    pub paths: Vec<PathBuf>,
    pub encoding: Encoding,
    /// For files in JSON Lines: the field with the text.
    pub jsonl: Option<String>,
    /// How documents become samples.
    pub documents: Documents,
    /// The fraction of the training split, which comes first; the rest is the evaluation split.
    pub split: f64,
}

/// An encoded text in the cache, its digest, and the bound of its tokens.
type CachedText = (Encoded, String, KeyedCount);

/// The files of a text and their digests.
type Digested = Vec<(PathBuf, FileDigest)>;

impl TextSet {
    /// Whether tokens are the unchanged bytes of the files.
    fn is_plain(&self) -> bool {
        self.encoding == Encoding::Bytes && self.jsonl.is_none() && self.documents == Documents::Joined
    }

    /// Opens the files as a row of byte tokens.
    fn files(&self, cache: &mut DigestCache) -> Result<RowSlices<TokenFiles>, DataError> {
        // Taken before digesting, so that later changes are detected.
        let versions = digest::versions(&files::find(&self.paths).map_err(first)?)?;
        let digested = self.digested(cache).map_err(first)?;
        let counts = digested.iter().map(|(path, digest)| (path.clone(), digest.bytes as usize)).collect();
        let digests: Vec<FileDigest> = digested.into_iter().map(|(_, digest)| digest).collect();
        let bytes: u64 = digests.iter().map(|digest| digest.bytes).sum();
        let contents = self.summary(digest::combine(&digests), bytes as usize, digests.len())?;
        let row = TokenFiles::open(counts, versions, (TokenWidth::U8, 0, BYTES.count))?;
        Ok(RowSlices { row, contents })
    }

    fn summarise(&self, cache: &mut DigestCache) -> Result<RowSummary, Vec<DataError>> {
        let files: Vec<FileDigest> = self.digested(cache)?.into_iter().map(|(_, digest)| digest).collect();
        let bytes: u64 = files.iter().map(|digest| digest.bytes).sum();
        self.summary(digest::combine(&files), bytes as usize, files.len()).map_err(|error| vec![error])
    }

    fn summary(&self, digest: String, bytes: usize, files: usize) -> Result<RowSummary, DataError> {
        if bytes == 0 {
            return Err(DataError::Empty { files });
        }
        let splits = Splits::of(bytes, self.split, UNITS)?;
        Ok(RowSummary { digest, splits, below: BYTES })
    }

    fn digested(&self, cache: &mut DigestCache) -> Result<Digested, Vec<DataError>> {
        let files = files::find(&self.paths)?;
        let (mut digested, mut errors) = (Vec::with_capacity(files.len()), Vec::new());
        for path in files {
            let checked = formats::check_text(&path).and_then(|()| {
                cache.of_file(&path).map_err(|error| DataError::Unreadable { path: path.clone(), error })
            });
            match checked {
                Ok(digest) => digested.push((path, digest)),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(digested) } else { Err(errors) }
    }

    /// The encoded text from the user's cache; encodes it if it is not cached.
    fn encoded(&self, cache: &mut DigestCache) -> Result<CachedText, Vec<DataError>> {
        let folder = user_cache::folder().ok_or_else(|| vec![DataError::NoCache])?;
        self.encoded_in(&folder.join("tokens"), cache, encoder::launch)
    }

    fn encoded_in(
        &self,
        folder: &Path,
        cache: &mut DigestCache,
        launch: Launch,
    ) -> Result<CachedText, Vec<DataError>> {
        let digested = self.digested(cache)?;
        let one = |error| vec![error];
        let tokenizer = self.digest_tokenizer(cache).map_err(one)?;
        let digest = self.digest_of_encoded(&digested, tokenizer.as_ref());
        let text = EncodedText {
            files: &digested,
            jsonl: self.jsonl.as_deref(),
            encoding: &self.encoding,
            tokenizer: tokenizer.as_ref(),
            launch,
        };
        let found = Encoded::open(folder, &digest, &text, cache).map_err(one)?;
        if found.tokens == 0 {
            return Err(one(DataError::Empty { files: digested.len() }));
        }
        let below = KeyedCount { key: "data.text.tokens", count: found.largest as usize + 1 };
        Ok((found, digest, below))
    }

    /// All documents as one row.
    fn joined(&self, (found, digest, below): CachedText) -> Result<RowSlices<TokenFiles>, DataError> {
        let splits = Splits::of(found.tokens, self.split, ["token", "text"])?;
        Ok(RowSlices { row: row(found, below), contents: RowSummary { digest, splits, below } })
    }

    /// The documents, for samples that separate them.
    fn separated(&self, (found, digest, below): &CachedText) -> Result<DocumentSet, DataError> {
        let ends = found.ends()?;
        let Splits { training, .. } = Splits::of(ends.len(), self.split, ["document", "documents"])?;
        let (digest, below, documents) = (digest.clone(), *below, self.documents);
        Ok(DocumentSet { digest, below, documents, ends, training })
    }

    fn digest_tokenizer(&self, cache: &mut DigestCache) -> Result<Option<FileDigest>, DataError> {
        let Encoding::Tokenizer(TokenizerFile { file, .. }) = &self.encoding else { return Ok(None) };
        let digest = cache.of_file(file);
        digest.map(Some).map_err(|error| DataError::NoTokenizer { path: file.clone(), error })
    }

    /// The digest of everything that determines the tokens.
    fn digest_of_encoded(&self, files: &Digested, tokenizer: Option<&FileDigest>) -> String {
        let mut parts: Vec<FileDigest> = files.iter().map(|(_, digest)| digest.clone()).collect();
        let mut how = format!("encoded, jsonl {:?}", self.jsonl);
        if let Encoding::Tokenizer(TokenizerFile { special, end, .. }) = &self.encoding {
            parts.extend(tokenizer.cloned());
            how += &format!(", special {special}, end {end:?}");
        }
        parts.push(digest::of_bytes(how.as_bytes()));
        digest::combine(&parts)
    }
}

fn row(found: Encoded, below: KeyedCount) -> TokenFiles {
    TokenFiles::cached(found.path, found.file, found.version, encoded::WIDTH, below.count)
}

fn first(errors: Vec<DataError>) -> DataError {
    errors.into_iter().next().unwrap_or(DataError::NoPaths)
}

impl DataSet for TextSet {
    fn name(&self) -> &'static str {
        "text"
    }

    fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    fn is_known_unread(&self) -> bool {
        true
    }

    fn is_row(&self) -> bool {
        self.documents == Documents::Joined
    }

    fn below(&self, part: &str) -> Option<KeyedCount> {
        (self.encoding == Encoding::Bytes && PARTS.contains(&part)).then_some(BYTES)
    }

    fn inspect(&self, cache: &mut DigestCache) -> Result<Box<dyn Contents>, Vec<DataError>> {
        if self.is_plain() {
            return Ok(Box::new(self.summarise(cache)?));
        }
        let encoded = self.encoded(cache)?;
        let contents: Result<Box<dyn Contents>, DataError> = match self.documents {
            Documents::Joined => self.joined(encoded).map(|joined| Box::new(joined.contents) as _),
            _ => self.separated(&encoded).map(|documents| Box::new(documents) as _),
        };
        contents.map_err(|error| vec![error])
    }

    fn open(&self, sample: &Sample, cache: &mut DigestCache) -> Result<Box<dyn Source>, DataError> {
        if self.is_plain() {
            return Ok(Box::new(self.files(cache)?));
        }
        let encoded = self.encoded(cache).map_err(first)?;
        if self.documents == Documents::Joined {
            return Ok(Box::new(self.joined(encoded)?));
        }
        let contents = self.separated(&encoded)?;
        contents.check_size(sample, false)?;
        let (found, _, below) = encoded;
        Ok(Box::new(DocumentSamples::new(row(found, below), contents, sample)))
    }
}

#[cfg(test)]
mod tests;
