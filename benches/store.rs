//! Times the store of results with 100,000 results, and the comparison of 300,000 rows: `cargo bench -p benches --bench
//! store`. It prints seconds and asserts nothing. The operating system has the new files in memory.
#![allow(clippy::print_stdout)]

#[allow(dead_code)] // planning has more cases
#[path = "planning/setup.rs"]
mod setup;

use std::fs;
use std::time::Instant;

use compare::{Format, Options};
use device::DeviceKind;
use plan::{Plan, Purpose};
use results::{Row, Store, csv};

const RESULTS: usize = 100_000;
const ROWS: usize = 300_000;

fn main() {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let seeds: Vec<usize> = (0..RESULTS.div_ceil(setup::strategies().len())).collect();
    let experiment = setup::experiment(&[format!("sweep.grid.\"train.seed\"={seeds:?}")]);
    let target = setup::target(DeviceKind::Cuda);
    let planned = || plan::plan(experiment, &target, Purpose::Train, &|_| Some("data".to_owned()));
    let plan = timed("plan", planned).expect("the shipped experiment can be planned");
    timed("write synthetic results", || fill(&Store::at(folder.path(), &plan.experiment), &plan));

    let new = || Store::at(folder.path(), &plan.experiment);
    let mut store = new();
    timed("find and remove leftovers", || store.clean());
    let rows = timed("list: read every result", || store.rows(&plan)).expect("it was written here");
    println!("{:>40} {}", "results", rows.len());
    timed("list again", || store.rows(&plan)).expect("it was written here");
    timed("resume: find the runs without a result", || {
        plan.runs.iter().filter(|run| !matches!(store.finished(&run.id, 1), Ok(Some(_)))).count()
    });
    timed("claims", || new().claims()).expect("it was written here");
    let table = folder.path().join("table.csv");
    timed("write the table", || csv::write_file(&table, &rows, &plan.axes)).expect("there is room");
    timed("read the table", || csv::read(&table)).expect("it was written here");
    timed("collect", || results::collect(&[folder.path().to_owned()])).expect("it was written here");

    let repeat = |repeat| rows.iter().map(move |row| Row { repeat, ..row.clone() });
    let rows: Vec<Row> = (1..=ROWS.div_ceil(rows.len())).flat_map(repeat).take(ROWS).collect();
    csv::write_file(&table, &rows, &plan.axes).expect("there is room");
    drop(rows);
    timed("compare 300,000 rows", || {
        let rows = csv::read(&table).expect("it was written here");
        compare::render(&rows, &Options::default(), Format::Table).expect("the rows can be compared")
    });
}

/// Prints the time of some work.
fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    println!("{what:>40} {:.1} s", begun.elapsed().as_secs_f64());
    done
}

/// Writes a result of each run, without syncing.
fn fill(store: &Store, plan: &Plan) {
    for run in plan.runs.iter().filter(|run| run.config.is_ok()) {
        let mut row = results::planned_row(plan, run, 1);
        row.measured.peak_bytes = row.predicted_peak_bytes;
        row.measured.tokens_per_s = Some(1e5 + (run.id.len() * 7 % 13) as f64);
        let folder = store.repeat_folder(&run.id, 1);
        fs::create_dir_all(&folder).expect("there is room");
        let text = serde_json::to_vec_pretty(&row).expect("a row is plain data");
        fs::write(folder.join("result.json"), text).expect("there is room");
    }
}
