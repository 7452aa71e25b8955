//! Examines text files: their digest, line ends and encoding. Binary data and other encodings than UTF-8 are errors.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::reader::{MARK, TextReader};
use crate::digest::{Examined, FileDigest, Progress, TextProperties, Work};
use crate::formats;
use crate::{DataError, DigestCache};
use base::units::Bytes;

/// A file of a text.
#[derive(Clone, Debug)]
pub(super) struct TextFile {
    pub(super) path: PathBuf,
    /// Of the file as stored.
    pub(super) digest: FileDigest,
    pub(super) text: TextProperties,
}

/// Bytes of text to examine at a time.
const AT_ONCE: usize = 1 << 20;

impl TextFile {
    /// Examines a file, unless the cache has its properties; `longest` is the maximum size of a decompressed text.
    ///
    /// # Errors
    /// The file is unreadable, damaged, too long, or not text in UTF-8.
    pub(super) fn examine(
        path: PathBuf,
        longest: Bytes,
        cache: &mut DigestCache,
    ) -> Result<TextFile, DataError> {
        let Examined { digest, text, .. } =
            cache.of_text(&path, |progress| examine(&path, longest, progress))?;
        let text = text.ok_or_else(|| DataError::Changed { path: path.clone() })?;
        Ok(TextFile { path, digest, text })
    }
}

/// Examines a file; `longest` is the maximum size of a decompressed text.
///
/// # Errors
/// The file is unreadable, damaged, too long, or not text in UTF-8.
fn examine(path: &Path, longest: Bytes, progress: &mut Progress) -> Result<Examined, DataError> {
    let mut reader = TextReader::open(path)?;
    let all = std::fs::metadata(path).map_or(0, |found| found.len());
    let mut buffer = vec![0; AT_ONCE];
    // An offset in the text includes its byte order mark.
    let begin = if reader.is_marked { MARK.len() as u64 } else { 0 };
    let (mut kept, mut at, mut has_crlf, mut ends_with_cr) = (0, begin, false, false);
    loop {
        let count = reader.read(&mut buffer[kept..]).map_err(|error| reader.failed(error))?;
        let bytes = &buffer[..kept + count];
        let valid = match str::from_utf8(bytes) {
            Ok(_) => bytes.len(),
            // The rest of a character follows.
            Err(error) if error.error_len().is_none() && count > 0 => error.valid_up_to(),
            Err(error) => return Err(not_utf8(path, at, bytes, error.valid_up_to())),
        };
        if bytes.contains(&0) {
            return Err(binary(path, at, bytes));
        }
        let crlf = ends_with_cr && bytes.first() == Some(&b'\n');
        has_crlf |= crlf || (bytes.contains(&b'\r') && bytes.windows(2).any(|pair| pair == b"\r\n"));
        ends_with_cr = bytes[..valid].last() == Some(&b'\r') || (valid == 0 && ends_with_cr);
        at += valid as u64;
        if count == 0 {
            break;
        }
        if reader.is_compressed() && at > longest.0 {
            let problem = format!("is larger than {longest} when decompressed, the maximum of a document");
            let help = "split it into files, or write one JSON object per line and document, and set jsonl to its field";
            return Err(DataError::Unfit { path: path.to_owned(), problem, help: help.to_owned() });
        }
        buffer.copy_within(valid..kept + count, 0);
        kept = kept + count - valid;
        progress.report(Work::Reading, path, reader.stored(), all);
    }
    let text = TextProperties {
        bytes: at - begin,
        is_compressed: reader.is_compressed(),
        is_marked: reader.is_marked,
        has_crlf,
    };
    Ok(Examined { digest: reader.digest()?, largest: 0, text: Some(text) })
}

/// Bytes at this offset with a zero among them are binary, or UTF-16 without a byte order mark.
fn binary(path: &Path, at: u64, bytes: &[u8]) -> DataError {
    let at = at + bytes.iter().position(|byte| *byte == 0).unwrap_or_default() as u64;
    let zeros = |parity: usize| bytes.iter().skip(parity).step_by(2).filter(|byte| **byte == 0).count();
    let half = bytes.len() / 2;
    let encoding = match [zeros(0), zeros(1)] {
        [even, odd] if odd > half / 2 && even < half / 8 => Some("UTF-16LE"),
        [even, odd] if even > half / 2 && odd < half / 8 => Some("UTF-16BE"),
        _ => None,
    };
    let (problem, help) = match encoding {
        Some(encoding) => (
            format!("looks like {encoding} without a byte order mark: byte {at} is 0"),
            formats::iconv(encoding, path),
        ),
        None => (
            format!("looks binary: byte {at} is 0"),
            "use a file of text; for token ids, use data.tokens".to_owned(),
        ),
    };
    DataError::Unfit { path: path.to_owned(), problem, help }
}

/// The error of bytes that are not UTF-8 from `valid` on; they begin at offset `at` of the text.
fn not_utf8(path: &Path, at: u64, bytes: &[u8], valid: usize) -> DataError {
    if bytes.contains(&0) {
        return binary(path, at, bytes);
    }
    let offset = at + valid as u64;
    let line = line_of(path, offset).map_or(String::new(), |line| format!(" in line {line}"));
    let rest = &bytes[valid..];
    let others = bytes.iter().filter(|byte| !byte.is_ascii()).count();
    let unprinted = |byte: &&u8| byte.is_ascii_control() && !b"\t\n\r\x0c\x1b".contains(byte);
    let (guess, help) = match () {
        () if rest.len() < 4 && str::from_utf8(rest).is_err_and(|error| error.error_len().is_none()) => {
            let file = path.display().to_string();
            ("it ends within a character".to_owned(), format!("cut it there: truncate -s {offset} {file:?}"))
        }
        () if bytes.iter().filter(unprinted).count() > bytes.len() / 100 => {
            ("it looks binary".to_owned(), "use a file of text; for token ids, use data.tokens".to_owned())
        }
        () if others > bytes.len() / 5 * 2 => {
            ("it may be in Shift_JIS, GB18030, EUC-KR or KOI8-R".to_owned(), formats::iconv("ENCODING", path))
        }
        () => {
            let character = Some(char::from(rest[0])).filter(|character| !character.is_control());
            let character =
                character.map_or(String::new(), |character| format!(", where it is `{character}`"));
            (format!("it may be in Latin-1 or Windows-1252{character}"), formats::iconv("WINDOWS-1252", path))
        }
    };
    let byte = rest[0];
    let problem = format!("is not UTF-8 text: byte {offset}{line} is 0x{byte:02x}; {guess}");
    DataError::Unfit { path: path.to_owned(), problem, help }
}

/// The line of an offset in a text, from 1.
fn line_of(path: &Path, offset: u64) -> Option<usize> {
    let mut text = BufReader::new(TextReader::open(path).ok()?.take(offset));
    let mut lines = 1;
    loop {
        let bytes = text.fill_buf().ok()?;
        if bytes.is_empty() {
            return Some(lines);
        }
        lines += bytes.iter().filter(|byte| **byte == b'\n').count();
        let count = bytes.len();
        text.consume(count);
    }
}
