//! The child process that tokenizes text. The `tokenizers` library may panic, abort, hang or exhaust memory on a
//! hostile tokenizer or text, so it runs only here. Messages are length-prefixed frames on standard input and output: a
//! `Setup`, the tokenizer file, then batches of documents, each answered with token ids or an error.

use std::any::Any;
use std::io::{self, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{self, Receiver, Sender};
use std::{fs, process, thread};

use serde::{Deserialize, Serialize};
use tokenizers::Tokenizer;

use super::frames;
use base::{brief, parallel};

/// The first message: how to encode. The second is the tokenizer file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// Whether to add the tokenizer's own special tokens to each document.
    pub(super) special: bool,
    /// An additional token at the end of each document.
    pub(super) end: Option<String>,
}

/// Why a tokenizer cannot be used.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SetupError {
    Invalid(String),
    NoSuchToken { special: Vec<String> },
}

/// Why a document could not be encoded.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum EncodingError {
    /// An error of the library.
    Refused(String),
    /// A panic of the library, or an implausible number of tokens.
    Failed(String),
}

/// The first byte of a reply to a batch: token ids follow, or an error.
pub(super) const ENCODED: u8 = 0;
pub(super) const FAILED: u8 = 1;

/// The bit of a document's length that requests the byte offsets of its tokens.
pub(super) const WITH_OFFSETS: u64 = 1 << 62;

/// The most tokens per byte of a document. A document with more than these and `MAX_EXTRA_TOKENS` is an error.
const MAX_TOKENS_PER_BYTE: usize = 64;
/// The most tokens of a document beyond those per byte.
const MAX_EXTRA_TOKENS: usize = 4096;

/// Encodes the documents from standard input, until it is closed.
///
/// # Errors
/// Standard output is closed, or a message is malformed.
pub fn encode_documents() -> io::Result<()> {
    // If memory runs out, the kernel's OOM killer ends this process first. If the file cannot be written, the kernel
    // chooses.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    // Print nothing on a panic: the reply contains it, and the parent reports it.
    panic::set_hook(Box::new(|_| ()));
    let (sender, messages) = mpsc::channel();
    let read = move || {
        // Standard input is closed: the parent has ended or needs no more documents. Exit, even during an encoding.
        let _ = forward(io::stdin().lock(), &sender);
        process::exit(0);
    };
    thread::Builder::new().name("documents".into()).spawn(read)?;
    serve(&messages, io::stdout().lock())
}

/// Reads messages until the input ends or the receiver is gone.
pub(super) fn forward(mut from: impl Read, to: &Sender<Vec<u8>>) -> io::Result<()> {
    while let Some(message) = frames::read(&mut from)? {
        if to.send(message).is_err() {
            break;
        }
    }
    Ok(())
}

/// Loads a tokenizer, then encodes batches of documents.
pub(super) fn serve(messages: &Receiver<Vec<u8>>, mut to: impl Write) -> io::Result<()> {
    let (Ok(setup), Ok(file)) = (messages.recv(), messages.recv()) else { return Ok(()) };
    let setup: Setup = serde_json::from_slice(&setup)?;
    let encoder = caught(|| Encoder::load(&setup, &file))
        .unwrap_or_else(|panic| Err(SetupError::Invalid(format!("the `tokenizers` library fails: {panic}"))));
    drop(file);
    frames::write(&mut to, &[&serde_json::to_vec(&encoder.as_ref().map(|_| ()))?])?;
    let Ok(encoder) = encoder else { return Ok(()) };
    for batch in messages {
        let documents = documents(&batch).ok_or(io::ErrorKind::InvalidData)?;
        let numbered = documents.into_iter().enumerate().collect();
        let encoded: Result<Vec<Vec<u8>>, (usize, EncodingError)> =
            parallel::map(numbered, |(index, (text, offsets))| {
                encoder.encode(text, offsets).map_err(|error| (index, error))
            })
            .into_iter()
            .collect();
        match encoded {
            Ok(encoded) => {
                let parts: Vec<&[u8]> =
                    [&[ENCODED][..]].into_iter().chain(encoded.iter().map(Vec::as_slice)).collect();
                frames::write(&mut to, &parts)?;
            }
            Err(error) => frames::write(&mut to, &[&[FAILED], &serde_json::to_vec(&error)?])?,
        }
    }
    Ok(())
}

/// Splits a batch into documents, each prefixed with its length and whether offsets are requested. `None` if the batch is
/// malformed.
fn documents(batch: &[u8]) -> Option<Vec<(&str, bool)>> {
    let (mut documents, mut rest) = (Vec::new(), batch);
    while !rest.is_empty() {
        let (length, text) = frames::split_number(rest)?;
        let (length, offsets) = (length as u64 & !WITH_OFFSETS, length as u64 & WITH_OFFSETS != 0);
        let (text, others) = text.split_at_checked(length as usize)?;
        documents.push((str::from_utf8(text).ok()?, offsets));
        rest = others;
    }
    Some(documents)
}

/// A loaded tokenizer.
struct Encoder {
    tokenizer: Box<Tokenizer>,
    special: bool,
    end: Option<u32>,
}

impl Encoder {
    fn load(setup: &Setup, file: &[u8]) -> Result<Encoder, SetupError> {
        let bad = |error: tokenizers::Error| SetupError::Invalid(error.to_string());
        let mut tokenizer = Tokenizer::from_bytes(file).map_err(bad)?;
        // Documents are neither padded nor truncated.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(bad)?;
        let end = setup.end.as_ref().map(|end| token_id(end, &tokenizer)).transpose()?;
        Ok(Encoder { tokenizer: Box::new(tokenizer), special: setup.special, end })
    }

    /// Encodes a document: the number of tokens (u64), then the token ids (u32), little-endian; then the number of offsets, 0
    /// unless requested, and the first and the last byte that each token stands for (u32).
    fn encode(&self, text: &str, offsets: bool) -> Result<Vec<u8>, EncodingError> {
        let encode = || match offsets {
            true => self.tokenizer.encode(text, self.special),
            false => self.tokenizer.encode_fast(text, self.special),
        };
        let encoded = caught(encode)
            .map_err(EncodingError::Failed)?
            .map_err(|error| EncodingError::Refused(brief::line(&error.to_string()).into_owned()))?;
        let tokens = encoded.get_ids();
        let count = tokens.len() + usize::from(self.end.is_some());
        if tokens.len() > MAX_TOKENS_PER_BYTE * text.len() + MAX_EXTRA_TOKENS {
            return Err(EncodingError::Failed(format!("{} bytes became {count} tokens", text.len())));
        }
        let mut bytes = Vec::with_capacity(8 + 4 * count);
        bytes.extend((count as u64).to_le_bytes());
        tokens.iter().chain(&self.end).for_each(|token| bytes.extend(token.to_le_bytes()));
        bytes.extend((if offsets { count as u64 } else { 0 }).to_le_bytes());
        if offsets {
            let of_end = self.end.map(|_| (0, 0));
            for (begin, end) in encoded.get_offsets().iter().copied().chain(of_end) {
                bytes.extend([begin as u32, end as u32].map(u32::to_le_bytes).as_flattened());
            }
        }
        Ok(bytes)
    }
}

/// The id of a token; if there is none, the tokenizer's special tokens.
fn token_id(token: &str, tokenizer: &Tokenizer) -> Result<u32, SetupError> {
    tokenizer.token_to_id(token).ok_or_else(|| {
        let added = tokenizer.get_added_tokens_decoder();
        let mut special: Vec<(u32, String)> = added
            .into_iter()
            .filter(|(_, token)| token.special)
            .map(|(id, token)| (id, token.content))
            .collect();
        special.sort();
        SetupError::NoSuchToken { special: special.into_iter().map(|(_, content)| content).collect() }
    })
}

/// Calls `work`. Returns its result, or the message of its panic.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // Unwind safety: after a panic no state is used again, because the parent ends this process.
    panic::catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_message(&*panic))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    brief::line(text.unwrap_or("a panic without a message")).into_owned()
}
