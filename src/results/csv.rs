//! Rows as CSV. [`Row`] is the only schema: header and cells are derived from it through serde, and each swept
//! key is one more column behind them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::Row;
use super::cell::{Cell, CellError};
use super::columns::{self, AXES, COLUMNS};
use super::foreign::Foreign;
use base::units::Bytes;
use base::{regular, temporary};

/// Stands before a swept key that is also the name of a column, such as `precision`.
const SWEPT: &str = "sweep.";

/// More than anybody's results take, and more columns than there are keys to sweep.
const LARGEST: Bytes = Bytes(1 << 30);
const MOST_COLUMNS: usize = 1000;

/// What is wrong with a file of results.
#[derive(Debug, thiserror::Error)]
pub enum CsvError {
    #[error("cannot read {}: {source}", file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", file.display())]
    Write { file: PathBuf, source: io::Error },
    #[error("{}, line {line}: {problem}", file.display())]
    Syntax { file: PathBuf, line: u64, problem: String },
    #[error("{} is not a table of results: the column `{column}` is missing", file.display())]
    MissingColumn { file: PathBuf, column: String },
    #[error("{}, line 1: the column `{column}` is there twice", file.display())]
    RepeatedColumn { file: PathBuf, column: String },
    #[error("{}, line {line}, column `{column}`: {problem}", file.display())]
    Cell { file: PathBuf, line: u64, column: String, problem: String },
}

/// Writes the rows under a header; `axes` says in which order the swept keys follow the fixed columns. A cell
/// is empty where the value is unknown, or the row does not lie on that axis. Numbers that are not finite
/// cannot be told from unknown ones, as in JSON.
pub fn write(rows: &[Row], axes: &[String], to: impl Write) -> io::Result<()> {
    write_records(rows, &COLUMNS, axes, to)
}

/// Replaces the file by these rows: whoever reads it sees the old table or the new one, never half of one.
pub fn write_file(file: &Path, rows: &[Row], axes: &[String]) -> Result<(), CsvError> {
    temporary::replace(file, |to| write(rows, axes, to))
        .map_err(|source| CsvError::Write { file: file.to_path_buf(), source })
}

/// Reads rows back. Columns that [`Row`] does not have are swept keys. A table of another program needs no more than the column
/// `strategy` and a figure, such as `peak_bytes` or `tokens_per_s`: the rows of a strategy are its repeats, and they have no
/// experiment and no run.
pub fn read(file: &Path) -> Result<Vec<Row>, CsvError> {
    let text = regular::open_up_to(file, LARGEST)
        .map_err(|source| CsvError::Read { file: file.to_path_buf(), source })?;
    let mut reader = csv::Reader::from_reader(io::BufReader::new(text));
    let at = |error: csv::Error| syntax(file, error);
    let columns = reader.headers().map_err(at)?;
    if columns.len() > MOST_COLUMNS {
        let problem = format!("{} columns; no table of results has more than {MOST_COLUMNS}", columns.len());
        return Err(CsvError::Syntax { file: file.to_path_buf(), line: 1, problem });
    }
    let header: Vec<String> = columns.iter().map(str::to_string).collect();
    if let Some(column) = header.iter().enumerate().find(|(at, name)| header[..*at].contains(name)) {
        return Err(CsvError::RepeatedColumn { file: file.to_path_buf(), column: column.1.clone() });
    }
    if !header.iter().any(|column| COLUMNS.contains(column)) {
        let column = COLUMNS[0].clone();
        return Err(CsvError::MissingColumn { file: file.to_path_buf(), column });
    }
    let mut foreign = Foreign::has_made(&header).then(Foreign::default);
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(at)?;
        let line = record.position().map_or(0, csv::Position::line);
        let given: Vec<&str> = record.iter().map(plain).collect();
        let lacking = foreign.as_mut().map(|foreign| foreign.lacking(&header, &given)).unwrap_or_default();
        let (fixed, swept): (Vec<_>, Vec<_>) =
            header.iter().zip(given).partition(|(column, _)| COLUMNS.contains(column));
        let cells = fixed.into_iter().map(|(column, text)| (column.clone(), Cell(text)));
        let cells = cells.chain(lacking.iter().map(|(column, text)| (column.clone(), Cell(text))));
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
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            CsvError::Syntax { file, line, problem: format!("{len} cells under a header of {expected_len}") }
        }
        other => CsvError::Syntax { file, line, problem: format!("{other:?}") },
    }
}

/// Anything with these columns whose field `axes` holds swept keys, as CSV.
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
            swept.iter().find(|(key, _)| key == axis).map(|(_, value)| inert(value)).unwrap_or_default()
        });
        writer.write_record(fixed.chain(swept))?;
    }
    writer.flush()
}

/// Stands before text that a spreadsheet would take for a formula, or for text that is marked like this.
const MARK: char = '\'';

fn is_taken_for_more(text: &str) -> bool {
    text.starts_with(['=', '+', '-', '@', '\t', '\r', MARK])
}

/// A cell that every program takes for what it says. Numbers do so.
fn inert(text: &str) -> String {
    if is_taken_for_more(text) && text.parse::<f64>().is_err() {
        format!("{MARK}{text}")
    } else {
        text.to_owned()
    }
}

/// What was written as an inert cell.
fn plain(cell: &str) -> &str {
    cell.strip_prefix(MARK).filter(|text| is_taken_for_more(text)).unwrap_or(cell)
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
        Value::String(text) => inert(text),
        other => other.to_string(),
    }
}
