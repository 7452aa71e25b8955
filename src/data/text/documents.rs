//! Reads documents: one per file, or one per line of JSON Lines.

use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::DataError;
use crate::digest::{self, FileDigest};
use base::regular;
use base::units::Bytes;

pub(super) struct Document<'a> {
    pub(super) path: &'a Path,
    /// Its line, from 1, in JSON Lines.
    pub(super) line: Option<usize>,
    pub(super) text: Vec<u8>,
}

/// Passes the documents of a file to `each`, and checks the file against its digest.
///
/// # Errors
/// The file is unreadable or has changed, a line is not a JSON object with that field, or `each` fails.
pub(super) fn read_file<'a>(
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
                    let text = text_field(&text, field).map_err(|(message, help)| DataError::Line {
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

/// The text in a field of a JSON object, or an error message with its help.
fn text_field(line: &[u8], field: &str) -> Result<String, (String, String)> {
    let mut object: Map<String, Value> = serde_json::from_slice(line).map_err(|error| {
        let help =
            "each line must be an object such as {\"text\": \"...\"}; without jsonl, a file is one text";
        (format!("it is not a JSON object: {error}"), help.to_owned())
    })?;
    match object.remove(field) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => {
            let texts: Vec<&str> = text_fields(&object).collect();
            let kind = match other {
                Value::Null => "null",
                Value::Bool(_) => "true or false",
                Value::Number(_) => "a number",
                Value::Array(_) => "a list",
                _ => "an object",
            };
            Err((format!("its `{field}` is {kind}, not text"), help_with_fields(&texts)))
        }
        None => {
            let texts: Vec<&str> = text_fields(&object).collect();
            Err((format!("it has no field `{field}`"), help_with_fields(&texts)))
        }
    }
}

fn text_fields(object: &Map<String, Value>) -> impl Iterator<Item = &str> {
    object.iter().filter(|(_, value)| value.is_string()).map(|(name, _)| name.as_str())
}

fn help_with_fields(texts: &[&str]) -> String {
    match texts {
        [] => "use a field that has text in every line".to_owned(),
        texts => format!("its fields with text are `{}`", texts.join("`, `")),
    }
}
