//! Reading of `result.json`.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde_json::Value;

use super::error::StoreError;
use super::{LARGEST, RESULT_FILE};
use crate::Row;
use crate::columns::{self, AXES, ColumnError};
use base::regular;

/// Whether a folder holds a final result. An invalid result is not final: a valid one replaces it.
///
/// # Errors
///
/// The result is unreadable, and may be final.
pub(super) fn is_final(folder: &Path) -> Result<bool, StoreError> {
    match read_result(folder) {
        Ok(row) => Ok(row.is_some_and(|row| row.status.is_final())),
        Err(StoreError::Corrupt { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn read_result(folder: &Path) -> Result<Option<Row>, StoreError> {
    let file = folder.join(RESULT_FILE);
    let text = match regular::read(&file, LARGEST) {
        Ok(text) => text,
        // A result may be replaced at any time.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::Read { path: file, error }),
    };
    match parse_row(&text) {
        Ok(row) => Ok(Some(row)),
        Err(problem) => Err(StoreError::Corrupt { file, folder: folder.to_path_buf(), problem }),
    }
}

/// Parses a result; errors mention the column and line.
fn parse_row(text: &[u8]) -> Result<Row, String> {
    let fields: BTreeMap<String, Value> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let with_line = |column: &str, problem: &str| match line_of(column, text) {
        Some(line) => format!("`{column}`: {problem} at line {line}"),
        None => format!("`{column}`: {problem}"),
    };
    if let Some(unknown) = fields.keys().find(|key| *key != AXES && columns::holder(key).is_none()) {
        return Err(with_line(unknown, "unknown column"));
    }
    columns::row_of_json(&fields).map_err(|ColumnError { column, source }| {
        column.map_or(source.to_string(), |column| with_line(&column, &source.to_string()))
    })
}

/// The line of a column, or of the column of an element such as `axes[0]`.
fn line_of(path: &str, text: &[u8]) -> Option<usize> {
    let text = str::from_utf8(text).ok()?;
    let column = path.split('[').next()?;
    let at = find_key(path, text).or_else(|| find_key(column, text))?;
    Some(text[..at].matches('\n').count() + 1)
}

/// The offset of a JSON key. Inside strings, its quotes would be escaped.
fn find_key(name: &str, text: &str) -> Option<usize> {
    let quoted = Value::from(name).to_string();
    let is_key = |at: &usize| text[at + quoted.len()..].trim_start().starts_with(':');
    text.match_indices(&quoted).map(|(at, _)| at).find(is_key)
}
