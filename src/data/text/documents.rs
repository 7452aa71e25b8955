//! Reads documents: one per file, or one per line of JSON Lines.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::examine::TextFile;
use super::json_field;
use super::reader::TextReader;
use crate::DataError;
use base::units::Bytes;

/// Maximum length of a line, which is read completely.
const LONGEST_LINE: Bytes = Bytes(64 << 20);

pub(super) struct Document<'a> {
    pub(super) path: &'a Path,
    /// Its line, from 1, in JSON Lines.
    pub(super) line: Option<usize>,
    pub(super) text: Vec<u8>,
}

/// Passes the documents of a file to `each`, and checks the file against its digest.
///
/// # Errors
/// The file is unreadable or has changed, is a document of more than `longest` bytes, a line is too long or not a JSON
/// object with that field, or `each` fails.
pub(super) fn read_file<'a>(
    file: &'a TextFile,
    jsonl: Option<&str>,
    longest: Bytes,
    mut each: impl FnMut(Document<'a>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let path = file.path.as_path();
    let mut reader = BufReader::new(TextReader::open(path)?);
    match jsonl {
        None => {
            if file.text.bytes > longest.0 {
                let (path, bytes) = (path.to_owned(), Bytes(file.text.bytes));
                return Err(DataError::TooLong { path, line: None, bytes, most: longest });
            }
            let mut text = Vec::new();
            let read = (&mut reader).take(longest.0 + 1).read_to_end(&mut text);
            read.map_err(|error| reader.get_ref().failed(error))?;
            each(Document { path, line: None, text })?;
        }
        Some(field) => {
            let mut text = Vec::new();
            for line in 1.. {
                text.clear();
                let bad_line =
                    |(message, help)| DataError::Line { path: path.to_owned(), line, message, help };
                let read = (&mut reader).take(LONGEST_LINE.0 + 1).read_until(b'\n', &mut text);
                let read = read.map_err(|error| reader.get_ref().failed(error))?;
                if read == 0 {
                    break;
                }
                if read as u64 > LONGEST_LINE.0 {
                    let help =
                        "write one JSON object per line and document; without jsonl, a file is one text";
                    return Err(bad_line((format!("it is longer than {LONGEST_LINE}"), help.to_owned())));
                }
                if !text.trim_ascii().is_empty() {
                    let text = json_field::read(&text, field).map_err(bad_line)?;
                    each(Document { path, line: Some(line), text: text.into_bytes() })?;
                }
            }
        }
    }
    match reader.into_inner().digest()? == file.digest {
        true => Ok(()),
        false => Err(DataError::Changed { path: path.to_owned() }),
    }
}
