//! How fast a device is, by what was measured on it.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::csv::{self, CsvError};
use super::{Row, Status, Store};
use crate::device::{Factors, Target};
use crate::execute::MEMORY_FILE;
use crate::plan::{Origin, Speeds};
use crate::regular;
use crate::spec::{Precision, Words as _};
use crate::statistics;
use crate::units::Bytes;

/// Runs whose operations are looked at, at the most: more say the same.
const MOST_RUNS: usize = 64;

/// Of a table of operations: some million lines.
const LARGEST: Bytes = Bytes(256 << 20);

/// A line of `memory.csv`, as far as it is needed here.
#[derive(Debug, Deserialize)]
struct Operation {
    operation: String,
    ms: f64,
    times_per_step: u64,
    flops: u64,
    moved_bytes: u64,
}

/// What the tables in a folder of results say of a device, and what is wrong with those that cannot be read. Without any run of it
/// nothing is known.
pub fn learned(out: &Path, target: &Target) -> (Speeds, Vec<CsvError>) {
    let (mut rows, mut errors) = (Vec::new(), Vec::new());
    for table in tables(out) {
        match csv::read(&table) {
            Ok(read) => rows.extend(read.into_iter().filter(|row| is_of(row, target))),
            Err(error) => errors.push(error),
        }
    }
    (of_rows(out, &rows), errors)
}

/// The tables of experiments, in the order of their names.
fn tables(out: &Path) -> Vec<PathBuf> {
    let entries = out.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let mut tables: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "csv")).collect();
    tables.sort();
    tables
}

fn is_of(row: &Row, target: &Target) -> bool {
    row.device == target.name
        && row.threads == Some(target.threads)
        && row.status == Status::Ok
        && !row.run_id.is_empty()
}

fn of_rows(out: &Path, rows: &[Row]) -> Speeds {
    let mut products: HashMap<Factors, Vec<f64>> = HashMap::new();
    for row in rows {
        if let (Some(precision), Some(rate)) = (precision(row), row.product_flops_per_s) {
            products.entry(factors(precision)).or_default().push(rate);
        }
    }
    let copies: Vec<f64> = rows.iter().filter_map(|row| row.copy_bytes_per_s).collect();
    let products: HashMap<Factors, f64> = products
        .into_iter()
        .filter_map(|(factors, rates)| Some((factors, statistics::median(&rates)?)))
        .collect();
    if products.is_empty() {
        return Speeds::default();
    }
    let mut runs: Vec<&Row> = Vec::new();
    for row in rows {
        // Of repeats one is enough.
        if !runs.iter().any(|known| known.run_id == row.run_id) {
            runs.push(row);
        }
    }
    let mut speeds = Speeds {
        products,
        memory: statistics::median(&copies),
        origin: Origin::Runs(runs.len()),
        ..Speeds::default()
    };
    let apart = runs.len().div_ceil(MOST_RUNS).max(1);
    speeds.slowness = slowness(out, runs.into_iter().step_by(apart), &speeds);
    speeds
}

/// By operation and precision: the time that it took over what the rates allow.
fn slowness<'a>(
    out: &Path,
    runs: impl Iterator<Item = &'a Row>,
    speeds: &Speeds,
) -> HashMap<(String, Precision), f64> {
    let mut seconds: HashMap<(String, Precision), [f64; 2]> = HashMap::new();
    for row in runs {
        let Some(precision) = precision(row) else { continue };
        let folder = Store::at(out, &row.experiment).repeat_folder(&row.run_id, row.repeat);
        // Who keeps results for their figures may have thrown it away, or another version may have written it.
        for line in operations(&folder.join(MEMORY_FILE)).unwrap_or_default() {
            let Operation { operation, ms, times_per_step, flops, moved_bytes } = line;
            let dtype = precision.dtype();
            let Some(at_best) = speeds.roofline_seconds(dtype, flops, moved_bytes, precision) else {
                continue;
            };
            let name = operation.strip_suffix(" again").unwrap_or(&operation).to_owned();
            let times = times_per_step as f64;
            let [took, allowed] = seconds.entry((name, precision)).or_default();
            *took += times * ms / 1e3;
            *allowed += times * at_best;
        }
    }
    let known = seconds.into_iter().filter(|(_, [took, allowed])| *took > 0.0 && *allowed > 0.0);
    known.map(|(operation, [took, allowed])| (operation, took / allowed)).collect()
}

fn operations(file: &Path) -> Result<Vec<Operation>, ::csv::Error> {
    let opened = regular::open_up_to(file, LARGEST)?;
    ::csv::Reader::from_reader(io::BufReader::new(opened)).deserialize().collect()
}

fn precision(row: &Row) -> Option<Precision> {
    Precision::ALL.iter().copied().find(|precision| precision.word() == row.precision)
}

fn factors(precision: Precision) -> Factors {
    Factors { dtype: precision.dtype(), tf32: precision == Precision::Tf32 }
}
