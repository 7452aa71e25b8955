//! Records of JSON files: lines with one object each, or the elements of an array. Fields are named by paths such as
//! `data.text` or `choices.0.text`.

use std::io::{self, BufRead, Read};

use serde_json::Value;

use base::units::Bytes;

/// Maximum length of a record, which is read completely.
const LONGEST: Bytes = Bytes(64 << 20);

/// Maximum number of fields in an error's help, and their depth.
const MOST_NAMED: usize = 8;
const DEEPEST_NAMED: usize = 3;

/// An error message and its help.
pub(super) type Problem = (String, String);

const SHAPE: &str = "each line must be an object such as {\"text\": \"...\"}, or the file an array of such objects; without jsonl, a file is one text";

/// The records of a file, in order.
pub(super) struct Records<R> {
    from: R,
    /// The line of the next byte, from 1.
    line: usize,
    /// Whether the file is one array.
    is_array: bool,
    begun: bool,
}

/// Why there is no next record.
pub(super) enum RecordError {
    File(io::Error),
    Record(usize, Problem),
}

impl<R: BufRead> Records<R> {
    pub(super) fn new(from: R) -> Records<R> {
        Records { from, line: 1, is_array: false, begun: false }
    }

    pub(super) fn into_inner(self) -> R {
        self.from
    }

    pub(super) fn get_ref(&self) -> &R {
        &self.from
    }

    /// Reads the next record; returns its line. `None` at the end.
    pub(super) fn next(&mut self, record: &mut Vec<u8>) -> Result<Option<usize>, RecordError> {
        record.clear();
        if !self.begun {
            self.begun = true;
            self.is_array = self.peek()? == Some(b'[');
            if self.is_array {
                self.from.consume(1);
            }
        }
        match self.is_array {
            true => self.element(record),
            false => self.row(record),
        }
    }

    /// The next line that is not empty.
    fn row(&mut self, record: &mut Vec<u8>) -> Result<Option<usize>, RecordError> {
        loop {
            record.clear();
            let read = (&mut self.from).take(LONGEST.0 + 1).read_until(b'\n', record);
            if read.map_err(RecordError::File)? == 0 {
                return Ok(None);
            }
            let line = self.line;
            self.line += 1;
            check_length(record, line)?;
            if !record.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }

    /// The next element of the array.
    fn element(&mut self, record: &mut Vec<u8>) -> Result<Option<usize>, RecordError> {
        let mut next = self.peek()?;
        if next == Some(b',') {
            self.from.consume(1);
            next = self.peek()?;
        }
        let begin = self.line;
        if next == Some(b']') {
            self.from.consume(1);
            return match self.peek()? {
                None => Ok(None),
                Some(_) => Err(record_error(self.line, "text follows the array")),
            };
        }
        let (mut depth, mut in_text, mut escaped) = (0usize, false, false);
        loop {
            let bytes = self.from.fill_buf().map_err(RecordError::File)?;
            if bytes.is_empty() {
                return Err(record_error(self.line, "the array is not closed"));
            }
            let mut taken = bytes.len();
            for (at, &byte) in bytes.iter().enumerate() {
                match byte {
                    b'\n' => self.line += 1,
                    _ if escaped => escaped = false,
                    b'\\' if in_text => escaped = true,
                    b'"' => in_text = !in_text,
                    _ if in_text => {}
                    b'{' | b'[' => depth += 1,
                    b',' | b']' if depth == 0 => {
                        taken = at;
                        break;
                    }
                    b'}' | b']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
            let is_complete = taken < bytes.len();
            record.extend_from_slice(&bytes[..taken]);
            self.from.consume(taken);
            check_length(record, begin)?;
            if is_complete {
                return Ok(Some(begin));
            }
        }
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Result<Option<u8>, RecordError> {
        loop {
            let bytes = self.from.fill_buf().map_err(RecordError::File)?;
            let Some(&byte) = bytes.first() else { return Ok(None) };
            if !byte.is_ascii_whitespace() {
                return Ok(Some(byte));
            }
            self.line += usize::from(byte == b'\n');
            self.from.consume(1);
        }
    }
}

fn record_error(line: usize, message: &str) -> RecordError {
    RecordError::Record(line, (message.to_owned(), SHAPE.to_owned()))
}

fn check_length(record: &[u8], line: usize) -> Result<(), RecordError> {
    match record.len() as u64 > LONGEST.0 {
        true => Err(record_error(line, &format!("it is longer than {LONGEST}"))),
        false => Ok(()),
    }
}

/// Parses a record, which must be an object.
pub(super) fn parse(record: &[u8]) -> Result<Value, Problem> {
    let problem = |reason: String| (format!("it is not a JSON object: {reason}"), SHAPE.to_owned());
    match serde_json::from_slice(record) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(other) => Err(problem(format!("it is {}", kind(&other)))),
        Err(error) => Err(problem(error.to_string())),
    }
}

/// The field at a path. A field whose name is the path, or begins it, comes first.
pub(super) fn find<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let own = match value {
        Value::Object(fields) => fields.get(path),
        Value::Array(elements) => path.parse().ok().and_then(|index: usize| elements.get(index)),
        _ => None,
    };
    own.or_else(|| {
        let (first, rest) = path.split_once('.')?;
        find(find(value, first)?, rest)
    })
}

/// The field at a path, which must exist.
pub(super) fn field<'a>(record: &'a Value, path: &str) -> Result<&'a Value, Problem> {
    find(record, path).ok_or_else(|| (format!("it has no field `{path}`"), names(record)))
}

/// The text at a path.
pub(super) fn text<'a>(record: &'a Value, path: &str) -> Result<&'a str, Problem> {
    let found = field(record, path)?;
    found.as_str().ok_or_else(|| (format!("its `{path}` is {}, not text", kind(found)), names(record)))
}

/// A list of token ids or labels at a path; the smallest is `least`.
pub(super) fn numbers(record: &Value, path: &str, least: i64) -> Result<Vec<i64>, Problem> {
    let found = field(record, path)?;
    let not_ids = |found: &Value, of: String| {
        (
            format!("its `{of}` is {}, not a token id", kind(found)),
            "ids are whole numbers below 2^31".to_owned(),
        )
    };
    let Value::Array(elements) = found else {
        let help = "with tokens = \"ids\", the field is a list of token ids".to_owned();
        return Err((format!("its `{path}` is {}, not a list", kind(found)), help));
    };
    let number = |(index, element): (usize, &Value)| {
        let number = element.as_i64().filter(|number| (least..1 << 31).contains(number));
        number.ok_or_else(|| not_ids(element, format!("{path}.{index}")))
    };
    elements.iter().enumerate().map(number).collect()
}

/// The fields that exist, for help.
pub(super) fn names(record: &Value) -> String {
    let mut texts = Vec::new();
    list_texts(record, "", DEEPEST_NAMED, &mut texts);
    let others = || record.as_object().into_iter().flatten().map(|(name, _)| name.clone()).take(MOST_NAMED);
    match (texts.as_slice(), others().collect::<Vec<_>>().as_slice()) {
        ([], []) => "use a field that has text in every line".to_owned(),
        ([], others) => format!("its fields are `{}`", others.join("`, `")),
        (texts, _) => format!("its fields with text are `{}`", texts.join("`, `")),
    }
}

fn list_texts(value: &Value, prefix: &str, depth: usize, texts: &mut Vec<String>) {
    let mut visit = |name: &str, value: &Value| {
        if texts.len() < MOST_NAMED && value.is_string() {
            texts.push(format!("{prefix}{name}"));
        } else if depth > 1 {
            list_texts(value, &format!("{prefix}{name}."), depth - 1, texts);
        }
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| visit(name, value)),
        Value::Array(elements) => elements.first().into_iter().for_each(|value| visit("0", value)),
        _ => {}
    }
}

/// "a number"
pub(super) fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "true or false".to_owned(),
        Value::Number(number) => match number.as_i64() {
            Some(number) if number < 0 => format!("the number {number}"),
            _ => "a number".to_owned(),
        },
        Value::String(_) => "text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
