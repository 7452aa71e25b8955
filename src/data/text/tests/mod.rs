//! Tests of text data sets.

mod cache;
mod chat;
mod combinations;
mod encoding;
mod files;
mod samples;

use std::fs;

use super::*;
use crate::ids::Ids;
use crate::slices::ReadTokens;

/// The repository's folder.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn given(key: &'static str, count: usize) -> KeyedCount {
    KeyedCount { key, count }
}

/// A set whose tokens are bytes.
fn plain(paths: &[PathBuf], split: f64) -> TextSet {
    TextSet {
        paths: paths.to_vec(),
        encoding: Encoding::Bytes,
        records: None,
        documents: Documents::Joined,
        evaluate: Vec::new(),
        split,
    }
}

/// Texts encoded by Hugging Face's Python library (tests/reference/tokenizer/make.py).
#[derive(serde::Deserialize)]
struct Reference {
    texts: Vec<String>,
    special: Vec<Vec<i32>>,
    plain: Vec<Vec<i32>>,
}

impl Reference {
    fn read() -> Reference {
        serde_json::from_slice(&fs::read(Reference::folder().join("encoded.json")).unwrap()).unwrap()
    }

    fn folder() -> PathBuf {
        Path::new(ROOT).join("tests/reference/tokenizer")
    }

    fn tokenizer(special: bool, end: Option<&str>) -> Encoding {
        let (file, end) = (Reference::folder().join("tokenizer.json"), end.map(str::to_owned));
        Encoding::Tokenizer(TokenizerFile { file, special, end })
    }
}

/// A temporary folder with text files and a cache.
struct TestFolder {
    folder: tempfile::TempDir,
    digests: DigestCache,
}

impl TestFolder {
    fn with(files: &[(&str, &[u8])]) -> TestFolder {
        let folder = TestFolder { folder: tempfile::tempdir().unwrap(), digests: DigestCache::default() };
        fs::create_dir(folder.folder.path().join("texts")).unwrap();
        for (name, contents) in files {
            fs::write(folder.text(name), contents).unwrap();
        }
        folder
    }

    fn text(&self, name: &str) -> PathBuf {
        self.folder.path().join("texts").join(name)
    }

    fn set(&self, encoding: Encoding, jsonl: Option<&str>) -> TextSet {
        let paths = vec![self.text("*")];
        TextSet {
            records: jsonl.map(|field| RecordFormat::Text(field.to_owned())),
            encoding,
            ..plain(&paths, 1.0)
        }
    }

    /// All tokens of a set.
    fn row(&mut self, set: &TextSet) -> Result<Vec<i32>, DataError> {
        let data = set.joined(self.encoded(set, encoder::in_thread)?)?;
        let mut tokens = vec![[0; 4]; data.contents.splits.training];
        data.row.read(0, Ids::I32(&mut tokens)).unwrap();
        let tokens: Vec<i32> = tokens.into_iter().map(i32::from_ne_bytes).collect();
        let largest = tokens.iter().copied().max().unwrap_or(0) as usize;
        assert_eq!(data.contents.below, given("data.text.tokens", largest + 1));
        Ok(tokens)
    }

    /// The encoded text of a set.
    fn encoded(&mut self, set: &TextSet, launch: Launch) -> Result<CachedText, DataError> {
        let files = set.files(&mut self.digests).map_err(first)?;
        set.encoded_in(&self.cache(), &files, &mut self.digests, launch)
    }

    /// The contents of a set without an encoder.
    fn inspect(&mut self, set: &TextSet) -> Result<Box<dyn Contents>, DataError> {
        let files = set.files(&mut self.digests).map_err(first)?;
        if set.is_plain(&files) {
            return Ok(Box::new(set.summary(&files)?));
        }
        Ok(Box::new(set.joined(self.encoded(set, encoder::in_thread)?)?.contents))
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn cached(&self) -> usize {
        fs::read_dir(self.cache()).map_or(0, Iterator::count)
    }
}
