//! Rows as CSV. [`Row`] is the only schema: header and cells are derived from it through serde, followed by one column
//! per swept key.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::Row;
use super::cell::{Cell, CellError};
use super::columns::{self, AXES, COLUMNS};
use super::foreign::Foreign;
use super::header;
use base::units::Bytes;
use base::{regular, temporary};
use spec::{OtherFile, Wanted, other_file};

/// The prefix of a swept key that is also the name of a column, such as `precision`.
const SWEPT: &str = "sweep.";

/// Limits that no table of results reaches.
const LARGEST: Bytes = Bytes(1 << 30);
const MOST_COLUMNS: usize = 1000;

/// An unreadable, unwritable or invalid CSV file.
#[derive(Debug, thiserror::Error)]
pub enum CsvError {
    #[error("cannot read {}: {}", file.display(), regular::reason(source))]
    Read { file: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", file.display())]
    Write { file: PathBuf, source: io::Error },
    #[error("{}, line {line}: {problem}", file.display())]
    Syntax { file: PathBuf, line: u64, problem: String },
    #[error("{} is not a table of results: the column `{column}` is missing", file.display())]
    MissingColumn { file: PathBuf, column: String },
    #[error("{} is not a table of results: it has neither our columns, nor `strategy` and a figure\n = help: a table of \
             another program needs the column `strategy` and one of {figures}", file.display())]
    NoTable { file: PathBuf, figures: String },
    #[error("{}, line 1: {problem}\n = help: {help}", file.display())]
    Header { file: PathBuf, problem: String, help: String },
    #[error("{}\n = help: {}", other.message(file, Wanted::Table), other.help)]
    OtherFile { file: PathBuf, other: OtherFile },
    #[error("{}, line 1: duplicate column `{column}`", file.display())]
    RepeatedColumn { file: PathBuf, column: String },
    #[error("{}, line {line}, column `{column}`: {problem}", file.display())]
    Cell { file: PathBuf, line: u64, column: String, problem: String },
}

/// Writes a header and the rows. `axes` is the order of the swept keys after the fixed columns. A cell is empty if the
/// value is unknown or the row has no value of that swept key. Non-finite numbers become empty cells, as they become
/// null in JSON.
pub fn write(rows: &[Row], axes: &[String], to: impl Write) -> io::Result<()> {
    write_records(rows, &COLUMNS, axes, to)
}

/// Replaces the file atomically by a table of these rows.
pub fn write_file(file: &Path, rows: &[Row], axes: &[String]) -> Result<(), CsvError> {
    temporary::replace(file, |to| write(rows, axes, to))
        .map_err(|source| CsvError::Write { file: file.to_path_buf(), source })
}

/// Reads rows. Columns that [`Row`] does not have are swept keys. A table of another program needs only the column
/// `strategy` and one measurement, such as `peak_bytes` or `tokens_per_s`. Its rows of one strategy are repeats,
/// without experiment and run id.
pub fn read(file: &Path) -> Result<Vec<Row>, CsvError> {
    let instead = |error: CsvError| match other_file(file, Wanted::Table) {
        Some(other) => CsvError::OtherFile { file: file.to_path_buf(), other },
        None => error,
    };
    if let Ok(true) = regular::is_folder(file) {
        let source = io::ErrorKind::IsADirectory.into();
        return Err(instead(CsvError::Read { file: file.to_path_buf(), source }));
    }
    let text = regular::open_up_to(file, LARGEST)
        .map_err(|source| CsvError::Read { file: file.to_path_buf(), source })?;
    let mut reader = csv::Reader::from_reader(io::BufReader::new(text));
    let at = |error: csv::Error| syntax(file, error);
    let columns = reader.headers().map_err(|error| instead(at(error)))?;
    if columns.len() > MOST_COLUMNS {
        let problem = format!("{} columns; the maximum is {MOST_COLUMNS}", columns.len());
        return Err(CsvError::Syntax { file: file.to_path_buf(), line: 1, problem });
    }
    let header: Vec<String> = columns.iter().map(str::to_string).collect();
    if let Some(column) = header.iter().enumerate().find(|(at, name)| header[..*at].contains(name)) {
        return Err(CsvError::RepeatedColumn { file: file.to_path_buf(), column: column.1.clone() });
    }
    header::check(file, &header)?;
    let mut foreign = Foreign::matches(&header).then(Foreign::default);
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(at)?;
        let line = record.position().map_or(0, csv::Position::line);
        let cells: Vec<&str> = record.iter().map(unescape).collect();
        let missing = foreign.as_mut().map(|foreign| foreign.missing(&header, &cells)).unwrap_or_default();
        let (fixed, swept): (Vec<_>, Vec<_>) =
            header.iter().zip(cells).partition(|(column, _)| COLUMNS.contains(column));
        let cells = fixed.into_iter().map(|(column, text)| (column.clone(), Cell(text)));
        let cells = cells.chain(missing.iter().map(|(column, text)| (column.clone(), Cell(text))));
        let mut row = columns::row(cells).map_err(|error| match error.source {
            CellError::Missing(column) => {
                CsvError::MissingColumn { file: file.to_path_buf(), column: column.to_string() }
            }
            CellError::Problem(problem) => {
                let column = error.column.unwrap_or_default();
                CsvError::Cell { file: file.to_path_buf(), line, column, problem }
            }
        })?;
        row.axes = swept
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(column, value)| (column.strip_prefix(SWEPT).unwrap_or(column).into(), value.into()))
            .collect();
        rows.push(row);
    }
    Ok(rows)
}

fn syntax(file: &Path, error: csv::Error) -> CsvError {
    let line = error.position().map_or(1, csv::Position::line);
    let file = file.to_path_buf();
    match error.into_kind() {
        csv::ErrorKind::Io(source) => CsvError::Read { file, source },
        csv::ErrorKind::Utf8 { .. } => {
            CsvError::Syntax { file, line, problem: "the text is not UTF-8".into() }
        }
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => CsvError::Syntax {
            file,
            line,
            problem: format!("{len} cells, but the header has {expected_len}"),
        },
        other => CsvError::Syntax { file, line, problem: format!("{other:?}") },
    }
}

/// Writes records with these columns as CSV. Their field `axes`, if present, holds swept keys.
pub fn write_records<T: Serialize>(
    records: &[T],
    fixed: &[String],
    axes: &[String],
    to: impl Write,
) -> io::Result<()> {
    let mut axes = axes.to_vec();
    let mut cells = Vec::with_capacity(records.len());
    for record in records {
        let Value::Object(mut fields) = serde_json::to_value(record)? else {
            return Err(io::Error::other("a record is a struct"));
        };
        let swept: Vec<(String, String)> = match fields.remove(AXES) {
            Some(swept) => serde_json::from_value(swept)?,
            None => Vec::new(),
        };
        for (axis, _) in &swept {
            if !axes.contains(axis) {
                axes.push(axis.clone());
            }
        }
        cells.push((fields, swept));
    }
    let mut writer = csv::Writer::from_writer(to);
    let swept_columns = axes.iter().map(|axis| swept_column(axis, fixed));
    writer.write_record(fixed.iter().cloned().chain(swept_columns))?;
    for (fields, swept) in &cells {
        let fixed = fixed.iter().map(|column| text(fields.get(column).unwrap_or(&Value::Null)));
        let swept = axes.iter().map(|axis| {
            swept.iter().find(|(key, _)| key == axis).map(|(_, value)| escape(value)).unwrap_or_default()
        });
        writer.write_record(fixed.chain(swept))?;
    }
    writer.flush()
}

/// The escape before text that a spreadsheet would read as a formula, or as escaped text.
const MARK: char = '\'';

fn needs_escape(text: &str) -> bool {
    text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', MARK])
}

/// Escapes a cell against interpretation as a formula. Negative numbers need no escape.
fn escape(text: &str) -> String {
    let digits = text.strip_prefix('-').unwrap_or_default();
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit()) && digits.parse::<f64>().is_ok();
    if needs_escape(text) && !is_number { format!("{MARK}{text}") } else { text.to_owned() }
}

/// The inverse of [`escape`].
fn unescape(cell: &str) -> &str {
    cell.strip_prefix(MARK).filter(|text| needs_escape(text)).unwrap_or(cell)
}

fn swept_column(axis: &str, fixed: &[String]) -> String {
    if fixed.iter().any(|column| column == axis) || axis.starts_with(SWEPT) {
        format!("{SWEPT}{axis}")
    } else {
        axis.to_string()
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => escape(text),
        other => other.to_string(),
    }
}
