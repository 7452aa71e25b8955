//! Recognises files that are not what a data set reads them as: compressed files, tables, images, text in other encodings,
//! and token files with another header or number size. Read as text or tokens, they would be trained on without a word.

mod known;

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::error::count as counted;
use super::{DataError, TokenWidth};
use base::regular;
use known::Wanted;

/// Bytes of a file's beginning that are examined.
pub(super) const HEAD: usize = 4096;

/// Texts in other encodings than UTF-8 begin with these bytes, the longer ones first. Tokens may, too.
const TEXT_ENCODINGS: &[(&[u8], &str, &str)] = &[
    (b"\xff\xfe\0\0", "text in UTF-32", "UTF-32"),
    (b"\0\0\xfe\xff", "text in UTF-32", "UTF-32"),
    (b"\xff\xfe", "text in UTF-16", "UTF-16"),
    (b"\xfe\xff", "text in UTF-16", "UTF-16"),
];

/// The first integers of llm.c's token files: the mark, a version, and the number of tokens. The mark tells the size.
const LLMC_MARKS: [(u32, TokenWidth); 2] = [(20_240_520, TokenWidth::U16), (20_240_801, TokenWidth::U32)];
const LLMC_HEADER: usize = 1024;
/// The marks of llm.c's other files: models, states for tests, tokenizers and evaluations.
const LLMC_OTHERS: [u32; 4] = [20_240_326, 20_240_327, 20_240_328, 20_240_522];

/// Number types in the index of a Megatron data set, whose codes count from 1.
const MEGATRON_TYPES: [&str; 8] = ["u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16"];
/// Number types, and the names that NumPy has for them.
const NUMPY_TYPES: [(&str, &str); 6] = [
    ("u8", "uint8"),
    ("i8", "int8"),
    ("i16", "int16"),
    ("i64", "int64"),
    ("f32", "float32"),
    ("f64", "float64"),
];

/// Numbers of a token file whose size is examined, at least and at most.
const LEAST_NUMBERS: usize = 32;
const MOST_NUMBERS: usize = 1024;

/// The largest vocabulary of a model.
const MOST_TOKENS: u64 = 1 << 24;

/// The beginning of a file.
struct Head {
    bytes: Vec<u8>,
    length: u64,
    /// The last byte; 0 without any.
    last: u8,
}

impl Head {
    fn read(path: &Path) -> io::Result<Head> {
        let file = regular::open(path)?;
        let length = file.metadata()?.len();
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(HEAD).min(HEAD)];
        file.read_exact_at(&mut bytes, 0)?;
        let mut last = [0];
        if let Some(at) = length.checked_sub(1) {
            file.read_exact_at(&mut last, at)?;
        }
        Ok(Head { bytes, length, last: last[0] })
    }

    /// The beginning of a file of unknown length.
    fn of(bytes: &[u8]) -> Head {
        Head { bytes: bytes.to_vec(), length: bytes.len() as u64, last: b'.' }
    }

    fn number(&self, index: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.bytes.get(4 * index..)?.first_chunk()?))
    }

    /// The text encoding that its byte order mark declares, and the name that `iconv` has for it.
    fn encoding(&self) -> Option<(&'static str, &'static str)> {
        let found = TEXT_ENCODINGS.iter().find(|(begins, ..)| self.bytes.starts_with(begins))?;
        Some((found.1, found.2))
    }
}

/// How to convert a text to UTF-8.
pub(super) fn iconv(encoding: &str, path: &Path) -> String {
    let (from, to) = (path.display().to_string(), format!("{}.utf8", path.display()));
    format!("convert it to UTF-8: iconv -f {encoding} -t UTF-8 {from:?} > {to:?}")
}

/// The format of a file that begins so, with help: a binary one, or text in another encoding than UTF-8.
pub fn file_format(head: &[u8], path: &Path) -> Option<(&'static str, String)> {
    other_format(&Head::of(head), path)
}

fn other_format(head: &Head, path: &Path) -> Option<(&'static str, String)> {
    let format = known::format(head).map(|format| (format.name, format.help(path, Wanted::Text)));
    format.or_else(|| head.encoding().map(|(name, encoding)| (name, iconv(encoding, path))))
}

/// A compression that is decoded while reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Zstandard,
}

/// The compression of a text file; `None` if it can be text itself.
///
/// # Errors
/// The file is unreadable, or of another format.
pub(super) fn check_text(path: &Path) -> Result<Option<Compression>, DataError> {
    let head = Head::read(path).map_err(|error| DataError::Unreadable { path: path.to_owned(), error })?;
    match head.bytes.as_slice() {
        [0x1f, 0x8b, 8, ..] => Ok(Some(Compression::Gzip)),
        // A frame, or a skippable one.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            Ok(Some(Compression::Zstandard))
        }
        _ => check_text_head(path, &head).map(|()| None),
    }
}

/// Checks the beginning of decompressed text.
///
/// # Errors
/// It is of another format.
pub(super) fn check_decompressed(path: &Path, head: &[u8]) -> Result<(), DataError> {
    check_text_head(path, &Head::of(head)).map_err(|error| match error {
        DataError::Unfit { path, problem, .. } => DataError::Unfit {
            path,
            problem: format!("contains {}", problem.trim_start_matches("is ")),
            help: "decompress it, then convert or extract the file in it".to_owned(),
        },
        other => other,
    })
}

fn check_text_head(path: &Path, head: &Head) -> Result<(), DataError> {
    let unfit = |name: &str, help: String| {
        Err(DataError::Unfit { path: path.to_owned(), problem: format!("is {name}"), help })
    };
    match head.number(0) {
        Some(mark) if LLMC_MARKS.iter().any(|(known, _)| *known == mark) => {
            return unfit("a token file of llm.c", "use data.tokens with header = 1024".to_owned());
        }
        Some(mark) if LLMC_OTHERS.contains(&mark) => {
            return unfit(
                "a file of llm.c without text",
                "use its files of tokens, with data.tokens".to_owned(),
            );
        }
        _ => {}
    }
    match other_format(head, path) {
        Some((name, help)) => unfit(name, help),
        None => Ok(()),
    }
}

/// Checks that a file can be tokens of this size behind a header of this many bytes.
pub(super) fn check_tokens(path: &Path, width: TokenWidth, header: usize) -> Result<(), DataError> {
    let head = Head::read(path).map_err(|error| DataError::Unreadable { path: path.to_owned(), error })?;
    match tokens_problem(path, &head, width, header)? {
        None => Ok(()),
        Some((problem, help)) => Err(DataError::Unfit { path: path.to_owned(), problem, help }),
    }
}

/// Why a file cannot be such tokens, with help.
fn tokens_problem(
    path: &Path,
    head: &Head,
    width: TokenWidth,
    header: usize,
) -> Result<Option<(String, String)>, DataError> {
    let found = |problem: &str, help: &str| Ok(Some((problem.to_owned(), help.to_owned())));
    let count = head.length.saturating_sub(header as u64) / width.bytes() as u64;
    let miscounted = |listed: u64| {
        let problem = format!("declares {} in its header, but has {count}", counted(listed, "token"));
        (listed != count).then(|| (problem, "the file is incomplete or damaged: make it again".to_owned()))
    };
    let declares = |number: &str, by: &str| {
        let problem = format!("declares {number} in {by}, but format = \"{}\"", width.name());
        Some((problem, format_help(path, number, header)))
    };
    if let Some((_, marked)) = LLMC_MARKS.iter().find(|(mark, _)| head.number(0) == Some(*mark)) {
        return match header {
            LLMC_HEADER if *marked != width => Ok(declares(marked.name(), "its header")),
            // A count of 0 was not filled in.
            LLMC_HEADER => {
                Ok(head.number(2).filter(|listed| *listed != 0).and_then(|n| miscounted(n.into())))
            }
            _ => {
                let problem = format!("begins with llm.c's header of 1,024 bytes, but header = {header}");
                found(&problem, "write header = 1024")
            }
        };
    }
    if head.number(0).is_some_and(|mark| LLMC_OTHERS.contains(&mark)) {
        return found("is a file of llm.c, but not of tokens", "use its files of tokens");
    }
    if let Some(numpy) = NumpyHeader::parse(&head.bytes).filter(|numpy| numpy.is_row()) {
        return match numpy.bytes {
            bytes if bytes != header => found(
                &format!("is a NumPy file (.npy) with a header of {bytes} bytes, but header = {header}"),
                &format!("write header = {bytes} and format = \"{}\"", numpy.number),
            ),
            _ if numpy.number != width.name() => Ok(declares(numpy.number, "its header")),
            _ => Ok(miscounted(numpy.shape[0])),
        };
    }
    if let Some(format) = known::format(head) {
        return found(&format!("is {}", format.name), &format.help(path, Wanted::Tokens));
    }
    if let Some(number) = megatron_number(path)? {
        // Token ids are not negative.
        let number = if number == "i32" { "u32" } else { number };
        return Ok(declares(number, "the .idx file beside it").filter(|_| number != width.name()));
    }
    let numbers = &head.bytes[header.min(head.bytes.len())..];
    if is_text(numbers) {
        return found("is text, not tokens", "use data.text, with jsonl if each line is a JSON object");
    }
    Ok(other_number(numbers, width).map(|number| {
        let problem = match number {
            "u16" => "has numbers beyond any vocabulary as u32".to_owned(),
            "u32" => "has a small number after every u16 number: its numbers have 4 bytes".to_owned(),
            _ => format!("has a 0 after every {} number: its numbers have 8 bytes", width.name()),
        };
        (problem, format_help(path, number, header))
    }))
}

/// How to read a file with such numbers.
fn format_help(path: &Path, number: &str, header: usize) -> String {
    if ["u16", "u32"].contains(&number) {
        return format!("write format = \"{number}\"");
    }
    let dtype = NUMPY_TYPES.iter().find(|(name, _)| *name == number).map_or(number, |(_, dtype)| dtype);
    format!(
        "convert it with Python: import numpy; f = {:?}; numpy.fromfile(f, {dtype:?}, offset={header}).astype(\"uint32\").tofile(f + \".u32\"), for format = \"u32\"",
        path.display().to_string()
    )
}

/// The number type that the index of a Megatron data set beside its file of tokens declares.
fn megatron_number(path: &Path) -> Result<Option<&'static str>, DataError> {
    let index = path.with_extension("idx");
    if path.extension() != Some(OsStr::new("bin")) || !index.is_file() {
        return Ok(None);
    }
    let head = Head::read(&index).map_err(|error| DataError::Unreadable { path: index, error })?;
    // The mark, the version (u64) and the code.
    let code = head.bytes.get(17).filter(|_| head.bytes.starts_with(b"MMIDIDX\0\0"));
    Ok(code.and_then(|code| MEGATRON_TYPES.get(usize::from(*code).checked_sub(1)?).copied()))
}

/// The header of a NumPy file.
struct NumpyHeader {
    /// Its size.
    bytes: usize,
    /// The type of the numbers; empty for other numbers than integers.
    number: &'static str,
    shape: Vec<u64>,
}

impl NumpyHeader {
    fn parse(head: &[u8]) -> Option<NumpyHeader> {
        let rest = head.strip_prefix(b"\x93NUMPY")?;
        let (length, begin): (usize, usize) = match rest.first()? {
            1 => (usize::from(u16::from_le_bytes(*rest.get(2..)?.first_chunk()?)), 10),
            _ => (u32::from_le_bytes(*rest.get(2..)?.first_chunk()?) as usize, 12),
        };
        let text = String::from_utf8_lossy(head.get(begin..begin.checked_add(length)?)?).replace(' ', "");
        // Token ids are not negative.
        let numbers = [("<u2", "u16"), ("<u4", "u32"), ("<i4", "u32")];
        let number = numbers.iter().find(|(descr, _)| text.contains(&format!("'descr':'{descr}'")));
        let (_, shape) = text.split_once("'shape':(")?;
        let (shape, _) = shape.split_once(')')?;
        let sizes = shape.split(',').filter(|size| !size.is_empty());
        let shape = sizes.map(|size| size.parse().ok()).collect::<Option<_>>()?;
        Some(NumpyHeader { bytes: begin + length, number: number.map_or("", |(_, name)| name), shape })
    }

    /// Whether the file is one row of numbers that can be read in place.
    fn is_row(&self) -> bool {
        self.shape.len() == 1 && !self.number.is_empty()
    }
}

/// Whether bytes are text in ASCII, UTF-8 or an encoding of Latin letters, which numbers of two or four bytes are not by
/// chance.
fn is_text(bytes: &[u8]) -> bool {
    // The end of the head may cut a character.
    let valid = str::from_utf8(bytes).map_or_else(|error| error.error_len().is_none(), |_| true);
    let is_control = |byte: &&u8| byte.is_ascii_control() && !b"\t\n\r\x0c".contains(byte);
    let others = bytes.iter().filter(|byte| !byte.is_ascii()).count();
    bytes.len() >= LEAST_NUMBERS
        && !bytes.iter().any(|byte| is_control(&byte))
        && (valid || others < bytes.len() / 8)
}

/// The type of the numbers in these bytes, if it is evidently not of this width. Of numbers that are read in halves, each
/// second half is at most 15, for ids have at most 20 bits; others that are too large are two numbers each.
fn other_number(bytes: &[u8], width: TokenWidth) -> Option<&'static str> {
    let numbers: Vec<u32> = width.numbers(bytes).take(MOST_NUMBERS).collect();
    if numbers.len() < LEAST_NUMBERS {
        return None;
    }
    let is_made_of = |halves: usize| {
        let (lower, upper): (Vec<_>, Vec<_>) =
            numbers.iter().enumerate().partition(|(at, _)| at % halves == 0);
        let below =
            |least: u32, of: &[(usize, &u32)]| of.iter().filter(|(_, number)| **number < least).count();
        let small = halves == 2 && below(16, &upper) == upper.len() && below(16, &lower) < lower.len() / 2;
        small || below(1, &upper) == upper.len() && below(1, &lower) < lower.len() / 4
    };
    let too_large = numbers.iter().filter(|number| u64::from(**number) > MOST_TOKENS).count();
    match width {
        TokenWidth::U8 => None,
        TokenWidth::U16 if is_made_of(4) => Some("i64"),
        TokenWidth::U16 => is_made_of(2).then_some("u32"),
        TokenWidth::U32 if numbers.iter().skip(1).step_by(2).all(|upper| *upper == 0) => {
            is_made_of(2).then_some("i64")
        }
        TokenWidth::U32 => (too_large > numbers.len() / 2).then_some("u16"),
    }
}

#[cfg(test)]
mod tests;
