//! The documents of files: each file is one, or each of its lines.

use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::DataError;
use crate::digest::{self, FileDigest};
use base::regular;
use base::units::Bytes;

/// A text that belongs together.
pub(super) struct Document<'a> {
    pub(super) path: &'a Path,
    /// Where it is one of several in its file, counted from 1.
    pub(super) line: Option<usize>,
    pub(super) text: Vec<u8>,
}

/// Hands on the documents of a file, which holds what it was digested as.
///
/// # Errors
/// The file cannot be read or is another by now, a line is no object with that field, or what `each` says.
pub(super) fn of_file<'a>(
    path: &'a Path,
    digest: &FileDigest,
    jsonl: Option<&str>,
    mut each: impl FnMut(Document<'a>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let unreadable = |error| DataError::Unreadable { path: path.to_owned(), error };
    let found = match jsonl {
        None => {
            let text = regular::read(path, Bytes(u64::MAX)).map_err(unreadable)?;
            let found = digest::of_bytes(&text);
            each(Document { path, line: None, text })?;
            found
        }
        Some(field) => {
            let mut file = BufReader::new(regular::open(path).map_err(unreadable)?);
            let (mut hash, mut bytes, mut text) = (Sha256::new(), 0, Vec::new());
            for line in 1.. {
                text.clear();
                let read = file.read_until(b'\n', &mut text).map_err(unreadable)?;
                if read == 0 {
                    break;
                }
                hash.update(&text);
                bytes += read as u64;
                if !text.trim_ascii().is_empty() {
                    let text = field_of(&text, field).map_err(|(message, help)| DataError::Line {
                        path: path.to_owned(),
                        line,
                        message,
                        help,
                    })?;
                    each(Document { path, line: Some(line), text: text.into_bytes() })?;
                }
            }
            FileDigest { bytes, sha256: digest::hex(&hash.finalize()) }
        }
    };
    if found == *digest { Ok(()) } else { Err(DataError::Changed { path: path.to_owned() }) }
}

/// The text in a field of an object in JSON; what is wrong, and what would work, where there is none.
fn field_of(line: &[u8], field: &str) -> Result<String, (String, String)> {
    let mut object: Map<String, Value> = serde_json::from_slice(line).map_err(|error| {
        let help =
            "each line is to be an object such as {\"text\": \"...\"}; without jsonl, a file is one text";
        (format!("it is no object in JSON: {error}"), help.to_owned())
    })?;
    match object.remove(field) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => {
            let texts: Vec<&str> = texts_of(&object).collect();
            let kind = match other {
                Value::Null => "null",
                Value::Bool(_) => "true or false",
                Value::Number(_) => "a number",
                Value::Array(_) => "a list",
                _ => "an object",
            };
            Err((format!("its `{field}` is {kind}, not text"), name_one_of(&texts)))
        }
        None => {
            let texts: Vec<&str> = texts_of(&object).collect();
            Err((format!("it has no `{field}`"), name_one_of(&texts)))
        }
    }
}

fn texts_of(object: &Map<String, Value>) -> impl Iterator<Item = &str> {
    object.iter().filter(|(_, value)| value.is_string()).map(|(name, _)| name.as_str())
}

fn name_one_of(texts: &[&str]) -> String {
    match texts {
        [] => "name a field that has text in every line".to_owned(),
        texts => format!("fields with text there are `{}`", texts.join("`, `")),
    }
}
