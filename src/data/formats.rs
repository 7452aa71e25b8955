//! Recognises files that are not what a data set reads them as: compressed files, tables, images and token files with
//! another header or number size. Read as text or tokens, they would be trained on without a word.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{DataError, TokenWidth};
use base::regular;

/// Bytes of a file's beginning that are examined.
const HEAD: usize = 4096;

/// A file format: its name, its first bytes, and how to make a file that can be read.
struct Format {
    name: &'static str,
    begins: &'static [u8],
    help: &'static str,
}

const DECOMPRESS: &str = "decompress it";
const EXTRACT: &str = "extract its files";
const JSONL: &str = "write its texts to a file in JSON Lines, one object such as {\"text\": \"...\"} per document, and set jsonl";
const TOKENS: &str = "write its numbers to a flat file of u16 or u32, without a header, for data.tokens";
const TEXT: &str = "extract its text to a file";
const UTF8: &str = "convert it to UTF-8: iconv -f UTF-16 -t UTF-8";
const OTHER: &str = "use a file of text, or of tokens";

const FORMATS: &[Format] = &[
    // Deflate is the only method, and five flags are defined.
    Format { name: "a gzip file", begins: b"\x1f\x8b\x08", help: DECOMPRESS },
    Format { name: "a Zstandard file", begins: b"\x28\xb5\x2f\xfd", help: DECOMPRESS },
    Format { name: "an xz file", begins: b"\xfd7zXZ\0", help: DECOMPRESS },
    Format { name: "an LZ4 file", begins: b"\x04\x22\x4d\x18", help: DECOMPRESS },
    Format { name: "a 7z archive", begins: b"7z\xbc\xaf\x27\x1c", help: EXTRACT },
    Format { name: "a zip archive (as .npz, .pt and .docx are)", begins: b"PK\x03\x04", help: EXTRACT },
    Format { name: "an Arrow file", begins: b"ARROW1\0\0", help: JSONL },
    Format { name: "an Avro file", begins: b"Obj\x01", help: JSONL },
    Format { name: "an SQLite database", begins: b"SQLite format 3\0", help: JSONL },
    Format { name: "a NumPy file (.npy)", begins: b"\x93NUMPY", help: TOKENS },
    Format { name: "an HDF5 file", begins: b"\x89HDF\r\n\x1a\n", help: TOKENS },
    Format {
        name: "the index of a Megatron data set",
        begins: b"MMIDIDX\0\0",
        help: "name the .bin file beside it",
    },
    Format { name: "a PDF file", begins: b"%PDF-", help: TEXT },
    Format {
        name: "an old Word, Excel or PowerPoint file",
        begins: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        help: TEXT,
    },
    Format { name: "a program (ELF)", begins: b"\x7fELF", help: OTHER },
    Format { name: "a PNG image", begins: b"\x89PNG\r\n\x1a\n", help: OTHER },
    Format { name: "a JPEG image", begins: b"\xff\xd8\xff\xe0", help: OTHER },
    Format { name: "a JPEG image", begins: b"\xff\xd8\xff\xe1", help: OTHER },
    Format { name: "a GIF image", begins: b"GIF89a", help: OTHER },
    Format { name: "a GIF image", begins: b"GIF87a", help: OTHER },
    Format { name: "a GGUF model", begins: b"GGUF\x03\0\0\0", help: OTHER },
    Format { name: "a GGUF model", begins: b"GGUF\x02\0\0\0", help: OTHER },
];

/// Texts in other encodings than UTF-8 begin with these bytes. Tokens may, too.
const TEXT_ENCODINGS: &[Format] = &[
    Format { name: "text in UTF-16", begins: b"\xff\xfe", help: UTF8 },
    Format { name: "text in UTF-16", begins: b"\xfe\xff", help: UTF8 },
];

/// The first integers of llm.c's token files: the mark, a version, and the number of tokens. The mark tells the size.
const LLMC_MARKS: [(u32, TokenWidth); 2] = [(20_240_520, TokenWidth::U16), (20_240_801, TokenWidth::U32)];
const LLMC_HEADER: usize = 1024;

/// Numbers of a token file whose size is examined, at least and at most.
const LEAST_NUMBERS: usize = 32;
const MOST_NUMBERS: usize = 1024;

/// The beginning of a file.
struct Head {
    bytes: Vec<u8>,
    length: u64,
}

impl Head {
    fn read(path: &Path) -> io::Result<Head> {
        let file = regular::open(path)?;
        let length = file.metadata()?.len();
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(HEAD).min(HEAD)];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(Head { bytes, length })
    }

    fn number(&self, index: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.bytes.get(4 * index..)?.first_chunk()?))
    }

    /// The text encoding that it has, with help.
    fn encoding(&self) -> Option<(&'static str, &'static str)> {
        let found = TEXT_ENCODINGS.iter().find(|format| self.bytes.starts_with(format.begins))?;
        Some((found.name, found.help))
    }

    /// The known format that it has, with help.
    fn format(&self) -> Option<(&'static str, &'static str)> {
        let begins = |format: &&Format| self.bytes.starts_with(format.begins);
        if let Some(format) = FORMATS.iter().find(begins) {
            return Some((format.name, format.help));
        }
        let at =
            |offset: usize, text: &[u8]| self.bytes.get(offset..).is_some_and(|rest| rest.starts_with(text));
        let big_endian = |offset: usize| Some(u32::from_be_bytes(*self.bytes.get(offset..)?.first_chunk()?));
        match () {
            () if at(0, b"BZh") && at(4, b"1AY&SY") => Some(("a bzip2 file", DECOMPRESS)),
            // The page header of the first column follows: a Thrift structure.
            () if at(0, b"PAR1\x15") => Some(("a Parquet file", JSONL)),
            () if at(257, b"ustar") => Some(("a tar archive", EXTRACT)),
            // Before a message, its length: a multiple of 8.
            () if at(0, b"\xff\xff\xff\xff")
                && self.number(1).is_some_and(|length| length % 8 == 0 && (8..1 << 24).contains(&length)) =>
            {
                Some(("an Arrow stream", JSONL))
            }
            () if at(8, b"{\"") && self.number(1) == Some(0) && self.number(0) < Some(100_000_000) => {
                Some(("a safetensors file", "to load it as parameters, set `weights` of the model"))
            }
            () if at(8, b"WAVE") && at(0, b"RIFF") || at(8, b"WEBP") && at(0, b"RIFF") => {
                Some(("a WAV or WebP file", OTHER))
            }
            () if at(0, b"\x80") && at(2, b"\x95") && self.bytes[1] < 6 => Some(("a Python pickle", OTHER)),
            // MP4: the length of the first box and its type.
            () if at(4, b"ftyp") && big_endian(0).is_some_and(|length| length < 256) => {
                Some(("an MP4 file", OTHER))
            }
            () => None,
        }
    }
}

/// The format of a file that begins so, with help: a binary one, or text in another encoding than UTF-8.
pub fn file_format(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let head = Head { bytes: head.to_vec(), length: head.len() as u64 };
    head.format().or_else(|| head.encoding())
}

/// Checks that a file can be text.
pub(super) fn check_text(path: &Path) -> Result<(), DataError> {
    let head = Head::read(path).map_err(|error| DataError::Unreadable { path: path.to_owned(), error })?;
    match head.format().or_else(|| head.encoding()) {
        Some((format, help)) => Err(DataError::OtherFormat { path: path.to_owned(), format, help }),
        None => Ok(()),
    }
}

/// Checks that a file can be tokens of this size behind a header of this many bytes.
pub(super) fn check_tokens(path: &Path, width: TokenWidth, header: usize) -> Result<(), DataError> {
    let head = Head::read(path).map_err(|error| DataError::Unreadable { path: path.to_owned(), error })?;
    let path = || path.to_owned();
    let declared =
        |found: &str| DataError::Declared { path: path(), found: found.to_owned(), format: width.name() };
    if let Some((_, marked)) = LLMC_MARKS.iter().find(|(mark, _)| head.number(0) == Some(*mark)) {
        if header != LLMC_HEADER {
            return Err(DataError::Header { path: path(), header });
        }
        if *marked != width {
            return Err(declared(marked.name()));
        }
        let count = head.length.saturating_sub(header as u64) / width.bytes() as u64;
        // A count of 0 was not filled in.
        return match head.number(2) {
            Some(listed) if listed != 0 && u64::from(listed) != count => {
                Err(DataError::OtherCount { path: path(), listed: listed.into(), found: count })
            }
            _ => Ok(()),
        };
    }
    if let Some((_, number)) = numpy_header(&head.bytes).filter(|(begin, _)| *begin == header) {
        return if number == width.name() { Ok(()) } else { Err(declared(number)) };
    }
    if let Some((format, help)) = head.format() {
        return Err(DataError::OtherFormat { path: path(), format, help });
    }
    match wider(&head.bytes[header.min(head.bytes.len())..], width) {
        true => Err(DataError::Wider { path: path(), format: width.name(), bytes: 2 * width.bytes() }),
        false => Ok(()),
    }
}

/// The size of the header of a NumPy file, and the type of its numbers.
fn numpy_header(head: &[u8]) -> Option<(usize, &'static str)> {
    let rest = head.strip_prefix(b"\x93NUMPY")?;
    let (length, begin): (usize, usize) = match rest.first()? {
        1 => (usize::from(u16::from_le_bytes(*rest.get(2..)?.first_chunk()?)), 10),
        _ => (u32::from_le_bytes(*rest.get(2..)?.first_chunk()?) as usize, 12),
    };
    let text = String::from_utf8_lossy(head.get(begin..begin.checked_add(length)?)?).replace(' ', "");
    let numbers =
        [("<u2", "u16"), ("<u4", "u32"), ("<i4", "u32"), ("|u1", "u8"), ("<i8", "i64"), ("<u8", "u64")];
    let number = numbers.iter().find(|(descr, _)| text.contains(&format!("'descr':'{descr}'")));
    Some((begin + length, number.map_or("other numbers", |(_, name)| name)))
}

/// Whether every second number is 0, and the others are not: these are numbers of twice the size.
fn wider(bytes: &[u8], width: TokenWidth) -> bool {
    let numbers: Vec<u32> = width.numbers(bytes).take(MOST_NUMBERS).collect();
    let zeros = |first: usize| numbers.iter().skip(first).step_by(2).filter(|number| **number == 0).count();
    numbers.len() >= LEAST_NUMBERS && zeros(1) == numbers.len() / 2 && zeros(0) < numbers.len() / 8
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn told(contents: &[u8], check: impl Fn(&Path) -> Result<(), DataError>) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, contents).unwrap();
        check(&path).err().map(|error| error.to_string().replace(&path.display().to_string(), "FILE"))
    }

    #[test]
    fn other_formats_are_named_in_text_and_tokens() {
        let deflated = b"\x1f\x8b\x08\0\0\0\0\0\0\x03";
        let safetensors = b"\x10\0\0\0\0\0\0\0{\"a\": 1}        ";
        let stream = b"\xff\xff\xff\xff\xe8\0\0\0\x10\0\0\0";
        for (contents, name) in [
            (&deflated[..], "a gzip file"),
            (b"BZh91AY&SY\0", "a bzip2 file"),
            (b"PAR1\x15\x04\x15", "a Parquet file"),
            (b"PK\x03\x04\x14\0", "a zip archive (as .npz, .pt and .docx are)"),
            (b"%PDF-1.7\n", "a PDF file"),
            (&safetensors[..], "a safetensors file"),
            (&stream[..], "an Arrow stream"),
            (b"MMIDIDX\0\0\x01", "the index of a Megatron data set"),
            (b"\x80\x04\x95\x10\0\0\0", "a Python pickle"),
        ] {
            let expected = Some(format!("FILE is {name}"));
            assert_eq!(told(contents, check_text), expected);
            assert_eq!(told(contents, |path| check_tokens(path, TokenWidth::U16, 0)), expected);
        }
        let mut tar = vec![b'a'; 512];
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(told(&tar, check_text).unwrap(), "FILE is a tar archive");
        assert_eq!(told(b"\xff\xfea\0b\0", check_text).unwrap(), "FILE is text in UTF-16");
        for text in [
            &b""[..],
            b"P",
            b"PAR1 is a club",
            b"\xef\xbb\xbfwith a mark",
            b"GIF8",
            b"BZh9",
            b"{\"text\": 1}",
        ] {
            assert_eq!(told(text, check_text), None);
        }
        // Tokens may begin with a byte order mark.
        assert_eq!(told(b"\xff\xfea\0b\0", |path| check_tokens(path, TokenWidth::U16, 0)), None);
    }

    fn bytes(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    #[test]
    fn headers_declare_size_and_number_of_tokens() {
        let file = |mark: u32, listed: u32, numbers: &[u32]| {
            let mut file = bytes(&[mark, 7, listed]);
            file.resize(LLMC_HEADER, 0);
            file.extend(bytes(numbers));
            file
        };
        let llama = file(20_240_801, 3, &[1, 2, 3]);
        let check = |file: &[u8], width, header| told(file, |path| check_tokens(path, width, header));
        assert_eq!(check(&llama, TokenWidth::U32, 1024), None);
        let expected = "FILE declares u32 in its header, but format = \"u16\"";
        assert_eq!(check(&llama, TokenWidth::U16, 1024).unwrap(), expected);
        let expected = "FILE begins with llm.c's header of 1,024 bytes, but header = 0";
        assert_eq!(check(&llama, TokenWidth::U32, 0).unwrap(), expected);
        let expected = "FILE declares 5 tokens in its header, but has 3";
        assert_eq!(check(&file(20_240_801, 5, &[1, 2, 3]), TokenWidth::U32, 1024).unwrap(), expected);
        let expected = "FILE declares u16 in its header, but format = \"u32\"";
        assert_eq!(check(&file(20_240_520, 6, &[1, 2, 3]), TokenWidth::U32, 1024).unwrap(), expected);

        let mut numpy =
            b"\x93NUMPY\x01\0\x76\0{'descr': '<u2', 'fortran_order': False, 'shape': (4000,), }".to_vec();
        numpy.resize(128, b' ');
        numpy.extend([5, 0, 6, 0]);
        assert_eq!(check(&numpy, TokenWidth::U16, 0).unwrap(), "FILE is a NumPy file (.npy)");
        assert_eq!(check(&numpy, TokenWidth::U16, 128), None);
        let expected = "FILE declares u16 in its header, but format = \"u32\"";
        assert_eq!(check(&numpy, TokenWidth::U32, 128).unwrap(), expected);
    }

    /// Megatron's files have no header.
    #[test]
    fn numbers_of_twice_the_size_are_recognised() {
        let numbers: Vec<u32> = (0..3400).map(|number| number * 14).collect();
        let check = |width, file: &[u8]| told(file, |path| check_tokens(path, width, 0));
        let expected = "FILE has a 0 after every u16 number: its numbers have 4 bytes";
        assert_eq!(check(TokenWidth::U16, &bytes(&numbers)).unwrap(), expected);
        assert_eq!(check(TokenWidth::U32, &bytes(&numbers)), None);
        let long: Vec<u8> = numbers.iter().flat_map(|number| u64::from(*number).to_le_bytes()).collect();
        let expected = "FILE has a 0 after every u32 number: its numbers have 8 bytes";
        assert_eq!(check(TokenWidth::U32, &long).unwrap(), expected);
        assert_eq!(check(TokenWidth::U16, &[0; 4096]), None);
    }
}
