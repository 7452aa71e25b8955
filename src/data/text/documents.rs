//! Reads documents: one per file, or one per record of a JSON file.

use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::Path;

use serde_json::Value;

use super::chat::{self, ChatTemplate};
use super::examine::TextFile;
use super::json::{self, Problem, RecordError, Records};
use super::reader::TextReader;
use crate::DataError;
use base::units::Bytes;

/// The label of tokens that are not learnt, as other trainers write it.
const IGNORED: i64 = -100;

/// What a document is in a record of a JSON file.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordFormat {
    /// The text of a field.
    Text(String),
    /// The token ids of a field; those with the label -100 are no targets.
    Ids(String),
    /// The messages of a conversation, joined by a template.
    Chat {
        /// The field with the messages; `None`: recognised.
        field: Option<String>,
        template: ChatTemplate,
        /// Whether only answers are targets.
        masks_prompt: bool,
    },
}

pub(super) struct Document<'a> {
    pub(super) path: &'a Path,
    /// Its line, from 1, in a JSON file.
    pub(super) line: Option<usize>,
    /// UTF-8 or, for token ids, u32 in little-endian order.
    pub(super) text: Vec<u8>,
    /// The ranges of the text, or of token ids, that are targets; `None`: all.
    pub(super) targets: Option<Vec<Range<usize>>>,
}

/// Passes the documents of a file to `each`, and checks the file against its digest.
///
/// # Errors
/// The file is unreadable or has changed, is a document of more than `longest` bytes, a record is too long or has no such
/// document, or `each` fails.
pub(super) fn read_file<'a>(
    file: &'a TextFile,
    records: Option<&RecordFormat>,
    longest: Bytes,
    mut each: impl FnMut(Document<'a>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let path = file.path.as_path();
    let mut reader = BufReader::new(TextReader::open(path)?);
    let Some(format) = records else {
        if file.text.bytes > longest.0 {
            let (path, bytes) = (path.to_owned(), Bytes(file.text.bytes));
            return Err(DataError::TooLong { path, line: None, bytes, most: longest });
        }
        let mut text = Vec::new();
        let read = (&mut reader).take(longest.0 + 1).read_to_end(&mut text);
        read.map_err(|error| reader.get_ref().failed(error))?;
        each(Document { path, line: None, text, targets: None })?;
        return check(file, reader.into_inner());
    };
    let mut records = Records::new(reader);
    let mut record = Vec::new();
    loop {
        let bad_line = |line, (message, help)| DataError::Line { path: path.to_owned(), line, message, help };
        let line = match records.next(&mut record) {
            Ok(Some(line)) => line,
            Ok(None) => return check(file, records.into_inner().into_inner()),
            Err(RecordError::Record(line, problem)) => return Err(bad_line(line, problem)),
            Err(RecordError::File(error)) => return Err(records.get_ref().get_ref().failed(error)),
        };
        let document = json::parse(&record).and_then(|record| format.document(&record));
        let (text, targets) = document.map_err(|problem| bad_line(line, problem))?;
        each(Document { path, line: Some(line), text, targets })?;
    }
}

fn check(file: &TextFile, read: TextReader) -> Result<(), DataError> {
    match read.digest()? == file.digest {
        true => Ok(()),
        false => Err(DataError::Changed { path: file.path.clone() }),
    }
}

/// A document's text and targets.
type TextAndTargets = (Vec<u8>, Option<Vec<Range<usize>>>);

impl RecordFormat {
    fn document(&self, record: &Value) -> Result<TextAndTargets, Problem> {
        match self {
            RecordFormat::Text(field) => Ok((json::text(record, field)?.as_bytes().to_vec(), None)),
            RecordFormat::Ids(field) => ids(record, field),
            RecordFormat::Chat { field, template, masks_prompt } => {
                let joined = chat::join(record, field.as_deref(), template)?;
                Ok((joined.text.into_bytes(), masks_prompt.then_some(joined.answers)))
            }
        }
    }
}

/// The token ids of a field, with the `labels` and the `attention_mask` beside it, if there are any. Ids whose mask is 0 are
/// padding and left out.
fn ids(record: &Value, field: &str) -> Result<TextAndTargets, Problem> {
    let beside = |name: &str| match field.rsplit_once('.') {
        Some((parent, _)) => format!("{parent}.{name}"),
        None => name.to_owned(),
    };
    let found = json::numbers(record, field, 0)?;
    let like_ids = |name: &str, least| {
        let name = beside(name);
        if json::find(record, &name).is_none() {
            return Ok(None);
        }
        let numbers = json::numbers(record, &name, least)?;
        match numbers.len() == found.len() {
            true => Ok(Some(numbers)),
            false => Err((
                format!("its `{name}` has {} elements, but `{field}` has {}", numbers.len(), found.len()),
                "make both lists equally long".to_owned(),
            )),
        }
    };
    let (labels, mask) = (like_ids("labels", IGNORED)?, like_ids("attention_mask", 0)?);
    let (mut text, mut targets) = (Vec::with_capacity(4 * found.len()), Vec::new());
    for (index, id) in found.iter().enumerate() {
        if mask.as_ref().is_some_and(|mask| mask[index] == 0) {
            continue;
        }
        let at = text.len() / 4;
        text.extend((*id as u32).to_le_bytes());
        match labels.as_ref().map(|labels| labels[index]) {
            Some(IGNORED) | None => {}
            Some(label) if label == *id => targets.push(at..at + 1),
            Some(label) => {
                let help =
                    "labels are the ids at the same positions, or -100; the loss shifts them".to_owned();
                return Err((format!("its label {index} is {label}, but the id is {id}"), help));
            }
        }
    }
    Ok((text, labels.map(|_| targets)))
}
