//! How fast a device is, by what was measured on it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::csv::{self, CsvError};
use super::{Row, Status, Store};
use crate::device::{Factors, Target};
use crate::execute::MEMORY_FILE;
use crate::memory::Size;
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
    /// Afterwards.
    live_bytes: u64,
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
    let mut times = Times::default();
    for row in runs.into_iter().step_by(apart) {
        let folder = Store::at(out, &row.experiment).repeat_folder(&row.run_id, row.repeat);
        // Who keeps results for their figures may have thrown it away, or another version may have written it.
        if let (Some(precision), Ok(lines)) = (precision(row), operations(&folder.join(MEMORY_FILE))) {
            times.add(lines, precision, &speeds);
        }
    }
    times.give(&mut speeds);
    speeds
}

/// What operations took, and what the rates allow them, in seconds.
#[derive(Default)]
struct Times {
    by_operation: HashMap<(String, Precision), BTreeMap<Size, [f64; 2]>>,
    /// Of the run that pays the most for it: one that asks for each value.
    per_asked_byte: f64,
}

impl Times {
    fn add(&mut self, lines: Vec<Operation>, precision: Precision, speeds: &Speeds) {
        let (mut asking, mut asked, mut live_before) = (0.0, 0, 0);
        for line in lines {
            let Operation { operation, ms, times_per_step, flops, moved_bytes, live_bytes } = line;
            let (took, times) = (times_per_step as f64 * ms / 1e3, times_per_step as f64);
            let grown = live_bytes.saturating_sub(live_before);
            live_before = live_bytes;
            match operation.as_str() {
                "allocate" => (asking, asked) = (asking + took, asked + times_per_step.saturating_mul(grown)),
                "free" => asking += took,
                _ => {
                    let dtype = precision.dtype();
                    let at_best = speeds.roofline_seconds(dtype, flops, moved_bytes, precision);
                    let name = operation.strip_suffix(" again").unwrap_or(&operation).to_owned();
                    let by_size = self.by_operation.entry((name, precision)).or_default();
                    let [all_took, allowed] = by_size.entry(Size::of(moved_bytes)).or_default();
                    *all_took += took;
                    *allowed += times * at_best.unwrap_or(0.0);
                }
            }
        }
        if asked > 0 {
            self.per_asked_byte = self.per_asked_byte.max(asking / asked as f64);
        }
    }

    fn give(self, speeds: &mut Speeds) {
        let slowness = |by_size: BTreeMap<Size, [f64; 2]>| -> BTreeMap<Size, f64> {
            let known = by_size.into_iter().filter(|(_, [took, allowed])| *took > 0.0 && *allowed > 0.0);
            known.map(|(size, [took, allowed])| (size, took / allowed)).collect()
        };
        let by_operation = self.by_operation.into_iter();
        speeds.slowness = by_operation.map(|(operation, by_size)| (operation, slowness(by_size))).collect();
        speeds.seconds_per_asked_byte = self.per_asked_byte;
    }
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
