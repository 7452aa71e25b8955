//! Encodes text as tokens. A tokenizer works in a child process with limits of memory and time.

use std::fmt;
use std::fs;
use std::io::{self, BufWriter, Read, Write};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::documents::Document;
use super::encoding_process::{self, ENCODED, EncodingError, FAILED, Setup, SetupError, WITH_OFFSETS};
use super::frames;
use crate::DataError;
use crate::digest::{self, FileDigest};
use base::regular;
use base::units::Bytes;

/// Maximum size of a tokenizer file; some have tens of MiB.
const LARGEST: Bytes = Bytes(256 << 20);

/// Maximum size of a document of a tokenizer, since encoding takes about 200 times its size in memory, and of bytes, which
/// only need to be in memory themselves.
const LONGEST: Bytes = Bytes(16 << 20);
const LONGEST_BYTES: Bytes = Bytes(1 << 30);

/// Interval at which the child's memory and time are read.
const TICK: Duration = Duration::from_millis(10);

/// The unit of time in `/proc/<id>/stat`, on every current Linux.
const CLOCK_TICK: Duration = Duration::from_millis(10);

/// The encoding of text as tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Encoding {
    /// The bytes of the text.
    Bytes,
    /// The ids that the text consists of.
    Ids,
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

impl Encoding {
    /// Maximum size of a document.
    pub(super) fn longest(&self) -> Bytes {
        match self {
            Encoding::Bytes | Encoding::Ids => LONGEST_BYTES,
            Encoding::Tokenizer(_) => LONGEST,
        }
    }
}

/// Starts the process that encodes.
pub(super) type Launch = fn() -> io::Result<Connection>;

/// Pipes to the process that encodes.
pub(super) struct Connection {
    pub(super) to: Box<dyn Write>,
    pub(super) from: Box<dyn Read + Send>,
    /// `None`: a thread of this process, in tests.
    pub(super) child: Option<Child>,
}

/// Starts this program again, as the process that encodes.
pub(super) fn launch() -> io::Result<Connection> {
    let mut command = device::this_program()?;
    command.arg("encode-text").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    match (child.stdin.take(), child.stdout.take()) {
        (Some(to), Some(from)) => {
            Ok(Connection { to: Box::new(BufWriter::new(to)), from: Box::new(from), child: Some(child) })
        }
        _ => Err(io::Error::other("it has no pipes")),
    }
}

/// A tokenizer, loaded by a child process.
pub(super) struct TokenizerEncoder<'a> {
    tokenizer: &'a TokenizerFile,
    digest: &'a FileDigest,
    launch: Launch,
    process: EncodingProcess,
}

impl<'a> TokenizerEncoder<'a> {
    /// Loads a tokenizer that has this digest.
    ///
    /// # Errors
    /// The tokenizer is missing, changed or invalid, or has no such end token.
    pub(super) fn open(
        tokenizer: &'a TokenizerFile,
        digest: &'a FileDigest,
        launch: Launch,
    ) -> Result<TokenizerEncoder<'a>, DataError> {
        let process = EncodingProcess::start(tokenizer, digest, launch)?;
        Ok(TokenizerEncoder { tokenizer, digest, launch, process })
    }

    /// The tokens of documents. If the process ends, they are encoded one by one, to find the document that ends it.
    ///
    /// # Errors
    /// The tokenizer has no token for a part of a document, or encoding it takes too much memory or time.
    pub(super) fn encode(&mut self, documents: &[Document<'_>]) -> Result<Vec<EncodedDocument>, DataError> {
        let failed = |document: &Document<'_>, failure| DataError::NotEncoded {
            path: document.path.to_owned(),
            line: document.line,
            tokenizer: self.tokenizer.file.clone(),
            failure,
        };
        match self.process.encode(documents) {
            Ok(encoded) => {
                let has_end = self.tokenizer.end.is_some();
                let of = |(document, tokens): (&Document<'_>, TokensWithOffsets)| {
                    let targets = document.targets.as_ref();
                    let targets =
                        targets.map(|ranges| token_ranges(ranges, &tokens.offsets, &document.text, has_end));
                    (tokens.ids, targets)
                };
                Ok(documents.iter().zip(encoded).map(of).collect())
            }
            Err(BatchError { index: Some(index), failure }) => Err(failed(&documents[index], failure)),
            Err(BatchError { index: None, failure }) => match documents {
                [document] => Err(failed(document, failure)),
                documents => {
                    self.process = EncodingProcess::start(self.tokenizer, self.digest, self.launch)?;
                    let one = |document: &Document<'_>| self.encode(std::slice::from_ref(document));
                    let encoded = documents.iter().map(one).collect::<Result<Vec<_>, _>>()?;
                    Ok(encoded.into_iter().flatten().collect())
                }
            },
        }
    }
}

/// The token ids of a document, and the ranges of them that are targets (`None`: all).
pub(super) type EncodedDocument = (Vec<u32>, Option<Vec<Range<usize>>>);

/// The token ids of a document, and the range of bytes that each stands for; without targets, these are left out.
struct TokensWithOffsets {
    ids: Vec<u32>,
    offsets: Vec<Range<u32>>,
}

/// The tokens that stand for any of these byte ranges. A token of white space may have an empty range at its end, and special
/// tokens that the tokenizer adds one at 0. An end token belongs to the last range, unless text follows that.
fn token_ranges(
    ranges: &[Range<usize>],
    offsets: &[Range<u32>],
    text: &[u8],
    has_end: bool,
) -> Vec<Range<usize>> {
    let overlaps = |token: &Range<u32>, bytes: &Range<usize>| {
        let (begin, end) = (token.start as usize, token.end as usize);
        if begin == end {
            bytes.start < end && end <= bytes.end
        } else {
            begin < bytes.end && bytes.start < end
        }
    };
    let mut tokens: Vec<Range<usize>> = Vec::new();
    for bytes in ranges {
        // Tokens are in the order of the text.
        let first = tokens.last().map_or(0, |last| last.end);
        let mut found = (first..offsets.len()).filter(|token| overlaps(&offsets[*token], bytes));
        if let Some(begin) = found.next() {
            tokens.push(begin..found.next_back().unwrap_or(begin) + 1);
        }
    }
    let ends_with_target = ranges.last().is_some_and(|last| text[last.end..].trim_ascii().is_empty());
    if has_end
        && ends_with_target
        && let Some(end) = offsets.len().checked_sub(1)
    {
        tokens.push(end..end + 1);
    }
    tokens
}

/// Why a document could not be encoded.
#[derive(Debug)]
pub enum EncoderFailure {
    /// An error of the tokenizer.
    Refused(String),
    /// A panic of the library.
    Panicked(String),
    /// The process ended.
    Died(ExitStatus),
    TooMuchMemory(Bytes),
    TooMuchTime(Duration),
    /// The process could not be reached, or its reply was malformed.
    Broken(String),
}

impl fmt::Display for EncoderFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EncoderFailure::Refused(message) => write!(f, "{message}"),
            EncoderFailure::Panicked(message) => write!(f, "the `tokenizers` library fails: {message}"),
            EncoderFailure::Died(status) => {
                write!(f, "the `tokenizers` library ends its process ")?;
                match status.signal() {
                    Some(6) => write!(f, "(signal 6, abort)"),
                    Some(11) => write!(f, "(signal 11, segmentation fault)"),
                    Some(9) => write!(f, "(signal 9; the system may have run out of memory)"),
                    Some(signal) => write!(f, "(signal {signal})"),
                    None => write!(f, "(code {})", status.code().unwrap_or(-1)),
                }
            }
            EncoderFailure::TooMuchMemory(limit) => write!(f, "it takes more than {limit} of memory"),
            EncoderFailure::TooMuchTime(limit) => {
                write!(f, "it takes more than {} s of processor time", limit.as_secs())
            }
            EncoderFailure::Broken(message) => write!(f, "{message}"),
        }
    }
}

impl EncoderFailure {
    fn broken(error: impl fmt::Display) -> EncoderFailure {
        EncoderFailure::Broken(format!("the process that encodes text cannot be used: {error}"))
    }
}

/// A batch that was not encoded.
struct BatchError {
    /// The document at fault, if the process named it.
    index: Option<usize>,
    failure: EncoderFailure,
}

impl From<EncoderFailure> for BatchError {
    fn from(failure: EncoderFailure) -> BatchError {
        BatchError { index: None, failure }
    }
}

/// The parent's side of the process that encodes. Dropping it ends the process.
struct EncodingProcess {
    to: Box<dyn Write>,
    replies: Receiver<Vec<u8>>,
    child: Option<Child>,
    /// Sizes that determine the limit of memory: of the tokenizer, and of the largest batch so far.
    tokenizer: usize,
    largest: usize,
}

impl EncodingProcess {
    fn start(
        tokenizer: &TokenizerFile,
        digest: &FileDigest,
        launch: Launch,
    ) -> Result<EncodingProcess, DataError> {
        let TokenizerFile { file: path, special, end } = tokenizer;
        let file = regular::read(path, LARGEST)
            .map_err(|error| DataError::NoTokenizer { path: path.clone(), error })?;
        if digest::of_bytes(&file) != *digest {
            return Err(DataError::Changed { path: path.clone() });
        }
        let bad = |failure: EncoderFailure| {
            let message = match failure {
                EncoderFailure::TooMuchMemory(_) | EncoderFailure::TooMuchTime(_) => {
                    format!("when it is loaded, {failure}")
                }
                failure => failure.to_string(),
            };
            DataError::BadTokenizer { path: path.clone(), message }
        };
        let connect = || {
            let Connection { to, mut from, child } = launch()?;
            let (sender, replies) = mpsc::channel();
            let receive = move || encoding_process::forward(&mut from, &sender);
            let process = EncodingProcess { to, replies, child, tokenizer: file.len(), largest: 0 };
            thread::Builder::new().name("encoded text".into()).spawn(receive)?;
            Ok(process)
        };
        let mut process = connect().map_err(|error: io::Error| bad(EncoderFailure::broken(error)))?;
        let setup = Setup { special: *special, end: end.clone() };
        let reply = serde_json::to_vec(&setup)
            .map_err(io::Error::from)
            .and_then(|setup| frames::write(&mut process.to, &[&setup]))
            .and_then(|()| frames::write(&mut process.to, &[&file]));
        let reply = match reply {
            Ok(()) => process.reply(Duration::from_secs(20) + Duration::from_micros(2) * file.len() as u32),
            Err(_) => Err(process.died()),
        };
        match serde_json::from_slice(&reply.map_err(bad)?) {
            Ok(Ok(())) => Ok(process),
            Ok(Err(SetupError::Invalid(message))) => {
                Err(DataError::BadTokenizer { path: path.clone(), message })
            }
            Ok(Err(SetupError::NoSuchToken { special })) => Err(DataError::NoSuchToken {
                path: path.clone(),
                token: end.clone().unwrap_or_default(),
                special,
            }),
            Err(error) => Err(bad(EncoderFailure::broken(error))),
        }
    }

    fn encode(&mut self, documents: &[Document<'_>]) -> Result<Vec<TokensWithOffsets>, BatchError> {
        let length = |document: &Document<'_>| {
            let offsets = if document.targets.is_some() { WITH_OFFSETS } else { 0 };
            (document.text.len() as u64 | offsets).to_le_bytes()
        };
        let lengths: Vec<[u8; 8]> = documents.iter().map(length).collect();
        let parts: Vec<&[u8]> = lengths
            .iter()
            .zip(documents)
            .flat_map(|(length, document)| [&length[..], &document.text])
            .collect();
        let bytes: usize = documents.iter().map(|document| document.text.len()).sum();
        self.largest = self.largest.max(bytes);
        if frames::write(&mut self.to, &parts).is_err() {
            return Err(self.died().into());
        }
        // About ten times what a tokenizer takes.
        let reply = self.reply(Duration::from_secs(5) + Duration::from_micros(10) * bytes as u32)?;
        let malformed = || BatchError::from(EncoderFailure::broken("its reply is malformed"));
        match reply.split_first() {
            Some((&ENCODED, tokens)) => {
                let encoded = split_tokens(tokens).filter(|encoded| encoded.len() == documents.len());
                encoded.ok_or_else(malformed)
            }
            Some((&FAILED, error)) => {
                let (index, error): (usize, EncodingError) =
                    serde_json::from_slice(error).map_err(|_| malformed())?;
                let failure = match error {
                    EncodingError::Refused(message) => EncoderFailure::Refused(message),
                    EncodingError::Failed(message) => EncoderFailure::Panicked(message),
                };
                if index < documents.len() {
                    Err(BatchError { index: Some(index), failure })
                } else {
                    Err(malformed())
                }
            }
            _ => Err(malformed()),
        }
    }

    /// Waits for a reply for at most `time` of the child's processor time, while its memory is within its limit.
    fn reply(&mut self, time: Duration) -> Result<Vec<u8>, EncoderFailure> {
        let memory = self.memory_limit();
        let id = self.child.as_ref().map(Child::id);
        let begun = id.and_then(processor_time).unwrap_or_default();
        loop {
            match self.replies.recv_timeout(TICK) {
                Ok(reply) => return Ok(reply),
                Err(RecvTimeoutError::Disconnected) => return Err(self.died()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let Some(id) = id else { continue };
            if resident(id).is_some_and(|bytes| bytes > memory) {
                return Err(EncoderFailure::TooMuchMemory(memory));
            }
            if processor_time(id).is_some_and(|spent| spent.saturating_sub(begun) > time) {
                return Err(EncoderFailure::TooMuchTime(time));
            }
        }
    }

    /// What ended the process.
    fn died(&mut self) -> EncoderFailure {
        match self.child.as_mut().map(|child| child.kill().and_then(|()| child.wait())) {
            Some(Ok(status)) => EncoderFailure::Died(status),
            Some(Err(error)) => EncoderFailure::broken(error),
            None => EncoderFailure::broken("it has ended"),
        }
    }

    /// More than twice what tokenizers and their text take.
    fn memory_limit(&self) -> Bytes {
        Bytes((512 << 20) + 64 * self.tokenizer as u64 + 400 * self.largest as u64)
    }
}

impl Drop for EncodingProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // No effect on a child that was waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn split_tokens(reply: &[u8]) -> Option<Vec<TokensWithOffsets>> {
    let (mut encoded, mut rest) = (Vec::new(), reply);
    while !rest.is_empty() {
        let (count, tokens) = frames::split_number(rest)?;
        let (ids, others) = tokens.split_at_checked(count.checked_mul(4)?)?;
        let (count, offsets) = frames::split_number(others)?;
        let (offsets, others) = offsets.split_at_checked(count.checked_mul(8)?)?;
        let ids = ids.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect();
        let bounds: Vec<u32> = offsets.as_chunks().0.iter().map(|bound| u32::from_le_bytes(*bound)).collect();
        let offsets = bounds.as_chunks().0.iter().map(|[begin, end]| *begin..*end).collect();
        encoded.push(TokensWithOffsets { ids, offsets });
        rest = others;
    }
    Some(encoded)
}

/// The resident bytes of a process.
fn resident(id: u32) -> Option<Bytes> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(Bytes(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10))
}

/// The processor time of all threads of a process.
fn processor_time(id: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // Behind the program's name, which may contain spaces and parentheses: state, parent, ... user and system time.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some(CLOCK_TICK * (ticks()?.checked_add(ticks()?)?))
}

/// # Errors
/// The document is too long, or has changed since it was examined.
pub(super) fn check(document: &Document<'_>, encoding: &Encoding) -> Result<(), DataError> {
    let (bytes, most) = (Bytes(document.text.len() as u64), encoding.longest());
    let path = || document.path.to_owned();
    if bytes > most {
        return Err(DataError::TooLong { path: path(), line: document.line, bytes, most });
    }
    if !matches!(encoding, Encoding::Tokenizer(_)) {
        return Ok(());
    }
    // It was UTF-8 when it was examined.
    str::from_utf8(&document.text).map(|_| ()).map_err(|_| DataError::Changed { path: path() })
}

#[cfg(test)]
pub(super) fn in_thread() -> io::Result<Connection> {
    let ((input, to), (from, output)) = (io::pipe()?, io::pipe()?);
    let (sender, messages) = mpsc::channel();
    thread::spawn(move || encoding_process::forward(input, &sender));
    thread::spawn(move || encoding_process::serve(&messages, output));
    Ok(Connection { to: Box::new(to), from: Box::new(from), child: None })
}
