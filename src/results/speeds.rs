//! Device rates from the results of earlier runs on the same device.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::csv::{self, CsvError};
use super::{Row, Status, Store};
use base::regular;
use base::statistics;
use base::units::Bytes;
use device::{Factors, Pool, Target};
use execute::MEMORY_FILE;
use memory::Bottleneck;
use plan::{Calibration, DeviceRates, RatesOrigin};
use spec::{KeywordEnum as _, Precision};

/// Maximum number of runs whose operations are read: more add little.
const MOST_RUNS: usize = 64;

/// Maximum size of a table of operations: a few million lines.
const LARGEST: Bytes = Bytes(256 << 20);

/// The columns of `memory.csv` that rates are derived from.
#[derive(Debug, Deserialize)]
struct Operation {
    operation: String,
    /// Where it ran: `device` or `host`.
    device: String,
    ms: f64,
    times_per_step: u64,
    flops: u64,
    moved_bytes: u64,
    /// Live bytes after the operation.
    live_bytes: u64,
}

/// Rates of the target from the tables in a folder of results, and the errors of unreadable tables. Without a run on
/// this target, the rates are unknown.
pub fn learned(out: &Path, target: &Target) -> (DeviceRates, Vec<CsvError>) {
    let (mut rows, mut errors) = (Vec::new(), Vec::new());
    for table in tables(out) {
        match csv::read(&table) {
            Ok(read) => rows.extend(read.into_iter().filter(|row| ran_on(row, target))),
            Err(error) => errors.push(error),
        }
    }
    (from_rows(out, &rows), errors)
}

/// The tables of experiments, sorted by name.
fn tables(out: &Path) -> Vec<PathBuf> {
    let entries = out.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let mut tables: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "csv")).collect();
    tables.sort();
    tables
}

fn ran_on(row: &Row, target: &Target) -> bool {
    row.device == target.name
        && row.threads == Some(target.threads)
        && row.ranks.is_none()
        && row.status == Status::Ok
        && !row.run_id.is_empty()
}

fn from_rows(out: &Path, rows: &[Row]) -> DeviceRates {
    let mut products: HashMap<Factors, Vec<f64>> = HashMap::new();
    for row in rows {
        if let (Some(precision), Some(rate)) = (precision(row), row.product_flops_per_s.filter(is_positive)) {
            products.entry(factors(precision)).or_default().push(rate);
        }
    }
    let copies: Vec<f64> = rows.iter().filter_map(|row| row.copy_bytes_per_s.filter(is_positive)).collect();
    let products: HashMap<Factors, f64> = products
        .into_iter()
        .filter_map(|(factors, rates)| Some((factors, statistics::median(&rates)?)))
        .collect();
    if products.is_empty() {
        return DeviceRates::default();
    }
    // One repeat per run is enough.
    let mut seen = HashSet::new();
    let runs: Vec<&Row> = rows.iter().filter(|row| seen.insert(&row.run_id)).collect();
    let mut speeds = DeviceRates {
        products,
        memory: statistics::median(&copies),
        origin: RatesOrigin::Runs(runs.len()),
        ..DeviceRates::default()
    };
    let stride = runs.len().div_ceil(MOST_RUNS).max(1);
    let mut times = OperationTimes::default();
    for row in runs.into_iter().step_by(stride) {
        let folder = Store::at(out, &row.experiment).repeat_folder(&row.run_id, row.repeat);
        // Skip files that were removed, or written by another version.
        if let (Some(precision), Ok(lines)) = (precision(row), operations(&folder.join(MEMORY_FILE))) {
            times.add(row, lines, precision, &speeds);
        }
    }
    times.write_to(&mut speeds);
    speeds
}

/// Filters zeros, negative and non-finite numbers, which a table may hold.
fn is_positive(number: &f64) -> bool {
    number.is_finite() && *number > 0.0
}

type ByOperation = HashMap<(String, Precision), BTreeMap<Bottleneck, [f64; 2]>>;

/// Measured and roofline seconds of operations.
#[derive(Default)]
struct OperationTimes {
    all: ByOperation,
    by_model: HashMap<String, ByOperation>,
    /// For each run, seconds of allocating and freeing per allocated byte.
    per_allocated_byte: Vec<f64>,
}

impl OperationTimes {
    fn add(&mut self, row: &Row, lines: Vec<Operation>, precision: Precision, speeds: &DeviceRates) {
        let of_model = self.by_model.entry(row.model.clone()).or_default();
        let (mut allocator_seconds, mut allocated, mut live_before) = (0.0, 0, 0);
        for line in lines {
            let Operation { operation, device, ms, times_per_step, flops, moved_bytes, live_bytes } = line;
            let (took, times) = (times_per_step as f64 * ms / 1e3, times_per_step as f64);
            let grown = live_bytes.saturating_sub(live_before);
            live_before = live_bytes;
            match operation.as_str() {
                "allocate" => {
                    allocator_seconds += took;
                    allocated = times_per_step.saturating_mul(grown).saturating_add(allocated);
                }
                "free" => allocator_seconds += took,
                // The rates are the card's, and not its host's.
                _ if row.context_bytes.is_some() && device == Pool::Host.name() => {}
                _ => {
                    let dtype = precision.dtype();
                    let roofline = speeds.roofline_seconds(dtype, flops, moved_bytes, precision);
                    let name = operation.strip_suffix(" again").unwrap_or(&operation).to_owned();
                    for by_operation in [&mut self.all, &mut *of_model] {
                        let by_load = by_operation.entry((name.clone(), precision)).or_default();
                        let [measured, bound] =
                            by_load.entry(Bottleneck::of(flops, moved_bytes)).or_default();
                        *measured += took;
                        *bound += times * roofline.unwrap_or(0.0);
                    }
                }
            }
        }
        self.per_allocated_byte.push(allocator_seconds / allocated as f64);
    }

    fn write_to(self, speeds: &mut DeviceRates) {
        speeds.calibration = calibration(self.all);
        speeds.of_model =
            self.by_model.into_iter().map(|(model, times)| (model, calibration(times))).collect();
        speeds.seconds_per_asked_byte = direct_allocation_cost(self.per_allocated_byte);
    }
}

/// The cost per byte, in seconds, of allocating each value from the system. Only runs that do so count: those with at
/// least 0.4 of the highest cost. Most runs allocate one arena, at almost no cost per value.
fn direct_allocation_cost(mut per_byte: Vec<f64>) -> f64 {
    const LEAST_SHARE: f64 = 0.4;
    per_byte.retain(is_positive);
    let most = per_byte.iter().copied().fold(0.0, f64::max);
    per_byte.retain(|cost| *cost >= LEAST_SHARE * most);
    statistics::median(&per_byte).unwrap_or(0.0)
}

fn calibration(times: ByOperation) -> Calibration {
    let ratios = |by_load: BTreeMap<Bottleneck, [f64; 2]>| {
        let known = by_load.into_iter().filter(|(_, times)| times.iter().all(is_positive));
        known.map(|(load, [measured, bound])| (load, measured / bound)).collect()
    };
    times.into_iter().map(|(operation, by_load)| (operation, ratios(by_load))).collect()
}

fn operations(file: &Path) -> Result<Vec<Operation>, ::csv::Error> {
    let opened = regular::open_up_to(file, LARGEST)?;
    ::csv::Reader::from_reader(io::BufReader::new(opened)).deserialize().collect()
}

fn precision(row: &Row) -> Option<Precision> {
    Precision::ALL.iter().copied().find(|precision| precision.keyword() == row.precision)
}

fn factors(precision: Precision) -> Factors {
    Factors { dtype: precision.dtype(), tf32: precision == Precision::Tf32 }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use execute::Measured;
    use testing::target;

    fn row(run_id: &str, precision: &str, rate: Option<f64>) -> Row {
        let target = target();
        Row {
            experiment: "a".into(),
            run_id: run_id.into(),
            strategy: "plain".into(),
            repeat: 1,
            device: target.name,
            threads: Some(target.threads),
            precision: precision.into(),
            measured: Measured {
                product_flops_per_s: rate,
                copy_bytes_per_s: rate.map(|_| 1e9),
                ..Measured::default()
            },
            ..Row::default()
        }
    }

    fn folder(rows: &[Row]) -> tempfile::TempDir {
        let out = tempfile::tempdir().unwrap();
        csv::write_file(&out.path().join("a.csv"), rows, &[]).unwrap();
        out
    }

    fn factor(speeds: &DeviceRates, operation: &str, load: Bottleneck) -> f64 {
        speeds.calibration[&(operation.to_owned(), Precision::Fp32)][&load]
    }

    #[test]
    fn operation_times_are_relative_to_roofline() {
        let out = folder(&[row("one", "fp32", Some(1e9))]);
        let run = Store::at(out.path(), "a").repeat_folder("one", 1);
        fs::create_dir_all(&run).unwrap();
        // Roofline times: 4 ms for each of two matmuls, 1 ms for the norm. One allocation of 1000 bytes. `normal` is
        // part of no step.
        let lines = "operation,device,ms,times_per_step,flops,moved_bytes,live_bytes\n\
                     allocate,device,0.25,1,0,0,1000\n\
                     linear,device,6,1,4000000,1024,1000\n\
                     linear again,device,10,1,4000000,1024,1000\n\
                     layer-norm,device,0.5,1,0,1000000,1000\n\
                     free,device,0.75,1,0,0,0\n\
                     normal,device,9,0,0,1000,0\n";
        fs::write(run.join(MEMORY_FILE), lines).unwrap();
        let (speeds, errors) = learned(out.path(), &target());
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!((speeds.origin, speeds.memory), (RatesOrigin::Runs(1), Some(1e9)));
        assert_eq!(factor(&speeds, "linear", Bottleneck::of(4_000_000, 1024)), 2.0);
        assert_eq!(factor(&speeds, "layer-norm", Bottleneck::of(0, 1_000_000)), 0.5);
        assert!((speeds.seconds_per_asked_byte - 1e-6).abs() < 1e-18, "{}", speeds.seconds_per_asked_byte);
        let of_start = &speeds.calibration[&("normal".to_owned(), Precision::Fp32)];
        assert!(of_start.is_empty(), "{of_start:?}");
    }

    /// An operation on a card's host says nothing about the card, and the same operation on the card nothing about the
    /// host. On a CPU both are one device.
    #[test]
    fn host_operations_do_not_calibrate_a_card() {
        let of_adamw = |context_bytes| {
            let out = folder(&[Row { context_bytes, ..row("one", "fp32", Some(1e9)) }]);
            let run = Store::at(out.path(), "a").repeat_folder("one", 1);
            fs::create_dir_all(&run).unwrap();
            let lines = "operation,device,ms,times_per_step,flops,moved_bytes,live_bytes\n\
                         adamw,device,2,1,0,1000000,1000\n\
                         adamw,host,100,1,0,1000000,1000\n";
            fs::write(run.join(MEMORY_FILE), lines).unwrap();
            let (speeds, _) = learned(out.path(), &target());
            factor(&speeds, "adamw", Bottleneck::of(0, 1_000_000))
        };
        assert_eq!(of_adamw(Some(1)), 2.0);
        assert_eq!(of_adamw(None), 51.0);
    }

    #[test]
    fn rates_are_medians_of_runs_on_same_device() {
        let mut other = row("four", "fp32", Some(9e9));
        other.device = "another".into();
        let mut threads = row("five", "fp32", Some(9e9));
        threads.threads = Some(64);
        let rows = [
            row("one", "fp32", Some(1e9)),
            row("two", "fp32", Some(3e9)),
            row("three", "fp32", Some(2e9)),
            row("three", "bf16", None),
            other,
            threads,
        ];
        let (speeds, _) = learned(folder(&rows).path(), &target());
        assert_eq!(speeds.products, HashMap::from([(Factors::F32, 2e9)]));
        let (speeds, _) = learned(folder(&rows[4..]).path(), &target());
        assert_eq!(speeds.origin, RatesOrigin::Unknown);
    }

    #[test]
    fn allocation_cost_ignores_runs_with_one_arena() {
        assert_eq!(direct_allocation_cost(vec![1e-12, 4e-10, f64::NAN, 5e-10, 9e-10, 0.0, 3e-10]), 5e-10);
        assert_eq!(direct_allocation_cost(Vec::new()), 0.0);
    }

    #[test]
    fn unreadable_table_is_reported() {
        let out = folder(&[row("one", "fp32", Some(1e9))]);
        fs::write(out.path().join("b.csv"), "what\n").unwrap();
        let (speeds, errors) = learned(out.path(), &target());
        assert_eq!((speeds.origin, errors.len()), (RatesOrigin::Runs(1), 1));
        assert!(errors[0].to_string().contains("b.csv"), "{}", errors[0]);
    }
}
