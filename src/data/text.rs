//! Text data sets. Tokens are bytes or the ids of a tokenizer.

mod chat;
mod documents;
mod encoded;
mod encoder;
mod encoding_process;
mod examine;
mod frames;
mod json;
mod notes;
mod reader;

use std::path::{Path, PathBuf};

pub use chat::ChatTemplate;
pub use documents::RecordFormat;
use encoded::{Encoded, EncodedText};
use encoder::Launch;
pub use encoder::{EncoderFailure, Encoding, TokenizerFile};
pub use encoding_process::encode_documents;
use examine::TextFile;

use super::digest::{FileDigest, Version};
use super::documents::{DocumentSamples, DocumentSet};
use super::files::SplitFiles;
use super::slices::{RowSlices, RowSummary, Splits};
use super::token_files::TokenFiles;
use super::{
    Contents, DataError, DataSet, DigestCache, Documents, KeyedCount, Note, PartRole, Sample, Source,
    TokenWidth, digest,
};
use base::units::Bytes;
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
    /// For JSON files: the documents in their records.
    pub records: Option<RecordFormat>,
    /// How documents become samples.
    pub documents: Documents,
    /// Absolute paths and globs of files for evaluation; empty: a part of `paths` is.
    pub evaluate: Vec<PathBuf>,
    /// The fraction of the training split, which comes first; the rest is the evaluation split.
    pub split: f64,
}

/// An encoded text in the cache, in one file or in one for each split.
struct CachedText {
    encoded: SplitFiles<Encoded>,
    digest: String,
    /// The bound of its tokens.
    below: KeyedCount,
    notes: Vec<Note>,
}

impl TextSet {
    /// Whether tokens are the unchanged bytes of these files.
    fn is_plain(&self, files: &SplitFiles<TextFile>) -> bool {
        self.encoding == Encoding::Bytes
            && self.records.is_none()
            && self.documents == Documents::Joined
            && !files.all().any(|file| file.text.is_compressed)
    }

    fn find(&self) -> Result<SplitFiles<PathBuf>, Vec<DataError>> {
        SplitFiles::find(&self.paths, &self.evaluate)
    }

    fn files(&self, cache: &mut DigestCache) -> Result<SplitFiles<TextFile>, Vec<DataError>> {
        // A line has its own limit.
        let longest = if self.records.is_some() { Bytes(u64::MAX) } else { self.encoding.longest() };
        self.find()?.try_map(|path| TextFile::examine(path, longest, cache))
    }

    /// The properties of files whose bytes are tokens.
    fn summary(&self, files: &SplitFiles<TextFile>) -> Result<RowSummary, DataError> {
        let splits = files.splits(|file| file.text.bytes as usize, self.split, UNITS)?;
        let digest = files.digest(|file| file.digest.clone());
        Ok(RowSummary { digest, splits, below: BYTES, notes: notes::of(self, files) })
    }

    /// Opens the files as a row of byte tokens. `versions` are from before the files were examined.
    fn row_of(
        &self,
        files: &SplitFiles<TextFile>,
        versions: Vec<Version>,
    ) -> Result<RowSlices<TokenFiles>, DataError> {
        let contents = self.summary(files)?;
        let header = |file: &TextFile| if file.text.is_marked { reader::MARK.len() } else { 0 };
        let counts = files.all().map(|file| (file.path.clone(), header(file), file.text.bytes as usize));
        let row = TokenFiles::open(counts.collect(), versions, (TokenWidth::U8, BYTES.count))?;
        Ok(RowSlices { row, contents })
    }

    /// The encoded text from the user's cache; encodes it if it is not cached.
    fn encoded(
        &self,
        files: &SplitFiles<TextFile>,
        cache: &mut DigestCache,
    ) -> Result<CachedText, DataError> {
        let folder = user_cache::folder().ok_or(DataError::NoCache)?;
        self.encoded_in(&folder.join("tokens"), files, cache, encoder::launch)
    }

    fn encoded_in(
        &self,
        folder: &Path,
        files: &SplitFiles<TextFile>,
        cache: &mut DigestCache,
        launch: Launch,
    ) -> Result<CachedText, DataError> {
        let tokenizer = self.digest_tokenizer(cache)?;
        let mut digests = Vec::new();
        let mut open = |files: &[TextFile]| {
            let digest = self.digest_of_encoded(files, tokenizer.as_ref());
            let text = EncodedText {
                files,
                records: self.records.as_ref(),
                encoding: &self.encoding,
                tokenizer: tokenizer.as_ref(),
                launch,
            };
            let found = Encoded::open(folder, &digest, &text, cache)?;
            digests.push(digest);
            match found.tokens {
                0 if files.iter().any(|file| file.text.bytes > 0) => {
                    Err(DataError::NoTokens { files: files.len(), documents: found.empty })
                }
                0 => Err(DataError::Empty { files: files.len() }),
                _ => Ok(found),
            }
        };
        let training = vec![open(&files.training)?];
        let evaluation = files.evaluation.as_ref().map(|files| open(files).map(|found| vec![found]));
        let evaluation = evaluation.transpose().map_err(DataError::in_evaluation)?;
        let encoded = SplitFiles { training, evaluation };
        let largest = encoded.all().map(|encoded| encoded.largest).max().unwrap_or_default();
        let below = KeyedCount { key: "data.text.tokens", count: largest as usize + 1 };
        Ok(CachedText { encoded, digest: digest::of_splits(digests), below, notes: notes::of(self, files) })
    }

    /// All documents as one row.
    fn joined(&self, cached: CachedText) -> Result<RowSlices<TokenFiles>, DataError> {
        for encoded in cached.encoded.all() {
            if !encoded.masked()?.is_empty() {
                return Err(DataError::MaskedRow);
            }
        }
        let splits = cached.encoded.splits(|encoded| encoded.tokens, self.split, ["token", "text"])?;
        let CachedText { encoded, digest, below, notes } = cached;
        Ok(RowSlices { row: row(encoded, below), contents: RowSummary { digest, splits, below, notes } })
    }

    /// The documents, for samples that separate them.
    fn separated(&self, cached: &CachedText) -> Result<DocumentSet, DataError> {
        let CachedText { encoded, digest, below, notes } = cached;
        let (mut ends, mut masked, mut tokens) = (Vec::new(), Vec::new(), 0);
        for encoded in encoded.all() {
            ends.extend(encoded.ends()?.into_iter().map(|end| tokens + end));
            masked
                .extend(encoded.masked()?.into_iter().map(|range| tokens + range.start..tokens + range.end));
            tokens += encoded.tokens as u64;
        }
        let documents = ["document", "documents"];
        let Splits { training, .. } = encoded.splits(|encoded| encoded.documents, self.split, documents)?;
        let (digest, below, notes) = (digest.clone(), *below, notes.clone());
        let mut set = DocumentSet { digest, below, documents: self.documents, ends, masked, training, notes };
        let empty = encoded.all().map(|encoded| encoded.empty).sum();
        set.notes.push(notes::of_documents(self, &set, empty));
        Ok(set)
    }

    fn digest_tokenizer(&self, cache: &mut DigestCache) -> Result<Option<FileDigest>, DataError> {
        let Encoding::Tokenizer(TokenizerFile { file, .. }) = &self.encoding else { return Ok(None) };
        let digest = cache.of_file(file);
        digest.map(Some).map_err(|error| DataError::NoTokenizer { path: file.clone(), error })
    }

    /// The digest of everything that determines the tokens.
    fn digest_of_encoded(&self, files: &[TextFile], tokenizer: Option<&FileDigest>) -> String {
        let mut parts: Vec<FileDigest> = files.iter().map(|file| file.digest.clone()).collect();
        let mut how = format!("encoded, records {:?}", self.records);
        if let Encoding::Tokenizer(TokenizerFile { special, end, .. }) = &self.encoding {
            parts.extend(tokenizer.cloned());
            how += &format!(", special {special}, end {end:?}");
        }
        parts.push(digest::of_bytes(how.as_bytes()));
        digest::combine(&parts)
    }
}

fn row(encoded: SplitFiles<Encoded>, below: KeyedCount) -> TokenFiles {
    let SplitFiles { training, evaluation } = encoded;
    let files = training.into_iter().chain(evaluation.into_iter().flatten());
    let files = files.map(|encoded| (encoded.path, encoded.file, encoded.version, encoded.tokens));
    TokenFiles::cached(files.collect(), encoded::WIDTH, below.count)
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

    fn evaluation_paths(&self) -> &[PathBuf] {
        &self.evaluate
    }

    fn is_known_unread(&self) -> bool {
        true
    }

    fn is_row(&self) -> bool {
        self.documents == Documents::Joined
    }

    fn below(&self, part: PartRole) -> Option<KeyedCount> {
        (self.encoding == Encoding::Bytes && part.is_stored()).then_some(BYTES)
    }

    fn inspect(&self, cache: &mut DigestCache) -> Result<Box<dyn Contents>, Vec<DataError>> {
        let files = self.files(cache)?;
        let mut contents = || -> Result<Box<dyn Contents>, DataError> {
            if self.is_plain(&files) {
                return Ok(Box::new(self.summary(&files)?));
            }
            let encoded = self.encoded(&files, cache)?;
            Ok(match self.documents {
                Documents::Joined => Box::new(self.joined(encoded)?.contents),
                _ => Box::new(self.separated(&encoded)?),
            })
        };
        contents().map_err(|error| vec![error])
    }

    fn open(&self, sample: &Sample, cache: &mut DigestCache) -> Result<Box<dyn Source>, DataError> {
        // Taken before the files are examined, so that later changes are detected.
        let found = self.find().map_err(first)?;
        let versions = digest::versions(found.all())?;
        let files = self.files(cache).map_err(first)?;
        if self.is_plain(&files) {
            return Ok(Box::new(self.row_of(&files, versions)?));
        }
        let encoded = self.encoded(&files, cache)?;
        if self.documents == Documents::Joined {
            return Ok(Box::new(self.joined(encoded)?));
        }
        let contents = self.separated(&encoded)?;
        contents.check_size(sample, false)?;
        Ok(Box::new(DocumentSamples::new(row(encoded.encoded, encoded.below), contents, sample)))
    }
}

#[cfg(test)]
mod tests;
