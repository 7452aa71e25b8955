//! Encodes text as tokens.

use std::path::{Path, PathBuf};

use tokenizers::Tokenizer;

use super::documents::Document;
use crate::DataError;
use base::regular;
use base::units::Bytes;

/// Maximum size of a tokenizer file; some have tens of MiB.
const LARGEST: Bytes = Bytes(1 << 30);

/// Maximum size of a document, since encoding takes about 200 times its size in memory.
const LONGEST: usize = 16 << 20;

/// The encoding of text as tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Encoding {
    /// The bytes of the text.
    Bytes,
    Tokenizer(TokenizerFile),
}

/// A tokenizer file of Hugging Face's `tokenizers` library.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizerFile {
    pub file: PathBuf,
    /// Whether to add the tokenizer's own special tokens to each document.
    pub special: bool,
    /// An additional token at the end of each document.
    pub end: Option<String>,
}

/// A loaded encoding.
pub(super) enum Encoder {
    Bytes,
    Tokenizer { tokenizer: Box<Tokenizer>, special: bool, end: Option<u32> },
}

impl Encoder {
    /// # Errors
    /// The tokenizer is missing or invalid, or has no such end token.
    pub(super) fn open(encoding: &Encoding) -> Result<Encoder, DataError> {
        let Encoding::Tokenizer(TokenizerFile { file, special, end }) = encoding else {
            return Ok(Encoder::Bytes);
        };
        let bytes = regular::read(file, LARGEST)
            .map_err(|error| DataError::NoTokenizer { path: file.clone(), error })?;
        let bad = |error: tokenizers::Error| DataError::BadTokenizer {
            path: file.clone(),
            message: error.to_string(),
        };
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(bad)?;
        // Documents are neither padded nor truncated.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(bad)?;
        let end = end.as_ref().map(|end| token_id(end, &tokenizer, file)).transpose()?;
        Ok(Encoder::Tokenizer { tokenizer: Box::new(tokenizer), special: *special, end })
    }

    /// # Errors
    /// The text is not UTF-8 or too long, or the tokenizer has no token for a part of it.
    pub(super) fn encode(&self, document: &Document<'_>) -> Result<Vec<u32>, DataError> {
        let Encoder::Tokenizer { tokenizer, special, end } = self else {
            return Ok(document.text.iter().map(|byte| u32::from(*byte)).collect());
        };
        let path = || document.path.to_owned();
        let text = str::from_utf8(&document.text)
            .map_err(|error| DataError::NotText { path: path(), at: error.valid_up_to() })?;
        if text.len() > LONGEST {
            let (bytes, most) = (Bytes(text.len() as u64), Bytes(LONGEST as u64));
            return Err(DataError::TooLong { path: path(), line: document.line, bytes, most });
        }
        let encoded = tokenizer.encode_fast(text, *special).map_err(|error| DataError::NotEncoded {
            path: path(),
            line: document.line,
            message: error.to_string(),
        })?;
        Ok(encoded.get_ids().iter().copied().chain(*end).collect())
    }
}

fn token_id(token: &str, tokenizer: &Tokenizer, file: &Path) -> Result<u32, DataError> {
    tokenizer.token_to_id(token).ok_or_else(|| {
        let added = tokenizer.get_added_tokens_decoder();
        let mut special: Vec<(u32, String)> = added
            .into_iter()
            .filter(|(_, token)| token.special)
            .map(|(id, token)| (id, token.content))
            .collect();
        special.sort();
        let special = special.into_iter().map(|(_, content)| content).collect();
        DataError::NoSuchToken { path: file.to_owned(), token: token.to_owned(), special }
    })
}
