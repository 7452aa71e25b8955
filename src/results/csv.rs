//! Rows as CSV. [`Row`] is the only schema: header and cells are derived from it through serde, followed by one column
//! per swept key.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use csv::StringRecord;
use serde::Serialize;
use serde::ser::Error as _;
use serde_json::{Map, Value};

use super::Row;
use super::cell::{Cell, CellError};
use super::columns::{self, COLUMNS, Holder};
use super::foreign::Foreign;
use super::header;
use base::units::Bytes;
use base::{parallel, regular, temporary};
use spec::{OtherFile, Wanted, other_file};

/// The prefix of a swept key that is also the name of a column, such as `precision`.
const SWEPT: &str = "sweep.";

/// Limits that no table of results reaches.
const LARGEST: Bytes = Bytes(1 << 30);
const MOST_COLUMNS: usize = 1000;

/// Rows that are converted at once, in parallel: enough work for each thread, little memory.
const BATCH: usize = 4096;

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
    write_cells(rows, &COLUMNS, axes, columns::flat, |row| &row.axes, to)
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
    let header: Vec<(Option<Holder>, String)> =
        header.into_iter().map(|column| (columns::holder(&column), column)).collect();
    let mut rows = Vec::new();
    let mut records = reader.records();
    loop {
        let (mut batch, mut failed) = (Vec::with_capacity(BATCH), None);
        for record in records.by_ref().take(BATCH) {
            match record {
                Ok(record) => {
                    let missing = foreign.as_mut().map(|foreign| foreign.missing(&header, &record));
                    batch.push((record, missing.unwrap_or_default()));
                }
                Err(error) => {
                    failed = Some(at(error));
                    break;
                }
            }
        }
        let is_last = batch.len() < BATCH;
        for row in parallel::map(batch, |(record, missing)| read_row(file, &header, &record, &missing)) {
            rows.push(row?);
        }
        match failed {
            Some(error) => return Err(error),
            None if is_last => return Ok(rows),
            None => {}
        }
    }
}

/// Reads a record; `missing` are columns that the table lacks, with their values.
fn read_row(
    file: &Path,
    header: &[(Option<Holder>, String)],
    record: &StringRecord,
    missing: &[(String, String)],
) -> Result<Row, CsvError> {
    let line = record.position().map_or(0, csv::Position::line);
    let cells = || header.iter().zip(record).map(|((holder, column), cell)| (holder, column, unescape(cell)));
    let fixed = cells().filter_map(|(holder, column, text)| Some(((*holder)?, column.as_str(), Cell(text))));
    let missing = missing
        .iter()
        .filter_map(|(column, text)| Some((columns::holder(column)?, column.as_str(), Cell(text))));
    let mut row = columns::row(fixed.chain(missing)).map_err(|error| match error.source {
        CellError::Missing(column) => {
            CsvError::MissingColumn { file: file.to_path_buf(), column: column.to_string() }
        }
        CellError::Problem(problem) => {
            let column = error.column.unwrap_or_default();
            CsvError::Cell { file: file.to_path_buf(), line, column, problem }
        }
    })?;
    row.axes = cells()
        .filter(|(holder, _, value)| holder.is_none() && !value.is_empty())
        .map(|(_, column, value)| (column.strip_prefix(SWEPT).unwrap_or(column).into(), value.into()))
        .collect();
    Ok(row)
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

/// Writes records with these columns as CSV, followed by their `swept` keys.
pub fn write_records<T: Serialize + Sync>(
    records: &[T],
    fixed: &[String],
    axes: &[String],
    swept: impl Fn(&T) -> &[(String, String)] + Sync,
    to: impl Write,
) -> io::Result<()> {
    let fields = |record: &T| match serde_json::to_value(record)? {
        Value::Object(fields) => Ok(fields),
        _ => Err(serde_json::Error::custom("a record is a struct")),
    };
    write_cells(records, fixed, axes, fields, swept, to)
}

fn write_cells<T: Sync>(
    records: &[T],
    fixed: &[String],
    axes: &[String],
    fields: impl Fn(&T) -> serde_json::Result<Map<String, Value>> + Sync,
    swept: impl Fn(&T) -> &[(String, String)] + Sync,
    to: impl Write,
) -> io::Result<()> {
    let mut axes = axes.to_vec();
    for (axis, _) in records.iter().flat_map(&swept) {
        if !axes.contains(axis) {
            axes.push(axis.clone());
        }
    }
    let mut writer = csv::Writer::from_writer(to);
    let swept_columns = axes.iter().map(|axis| swept_column(axis, fixed));
    writer.write_record(fixed.iter().cloned().chain(swept_columns))?;
    let cells = |record: &T| {
        let fields = fields(record)?;
        let fixed = fixed.iter().map(|column| text(fields.get(column).unwrap_or(&Value::Null)));
        let of_axis = |axis| swept(record).iter().find(|(key, _)| key == axis);
        let swept = axes.iter().map(|axis| of_axis(axis).map(|(_, value)| escape(value)).unwrap_or_default());
        Ok::<StringRecord, io::Error>(fixed.chain(swept).collect())
    };
    for batch in records.chunks(BATCH) {
        for record in parallel::map(batch.iter().collect(), cells) {
            writer.write_record(&record?)?;
        }
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
