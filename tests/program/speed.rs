//! The speed columns of a row against its `steps.csv`.

use std::path::Path;
use std::time::Instant;

use crate::test_folder::{TestFolder, Tiny};
use results::Row;

const BATCH_SIZE: usize = 6;
const CONTEXT: usize = 24;

const SAMPLES: f64 = BATCH_SIZE as f64;
const TOKENS: f64 = (BATCH_SIZE * CONTEXT) as f64;

const MORE: &str = r#"
[measure]
warmup_steps = 2
steps = 7

[strategies.plain]

[strategies.accumulate]
accumulate = 3
"#;

/// The timed steps in `steps.csv`.
struct Steps {
    columns: Vec<String>,
    lines: Vec<Vec<String>>,
}

impl Steps {
    fn read(file: &Path, warmup_steps: usize) -> Steps {
        let mut table = csv::Reader::from_path(file).unwrap();
        let columns = table.headers().unwrap().iter().map(str::to_owned).collect();
        let lines = table.records().map(|line| line.unwrap().iter().map(str::to_owned).collect());
        Steps { columns, lines: lines.skip(warmup_steps).collect() }
    }

    fn values(&self, column: &str) -> Vec<f64> {
        let index = self.columns.iter().position(|other| other == column).unwrap();
        self.lines.iter().map(|line| line[index].parse().unwrap()).collect()
    }

    /// The median of an odd number of steps.
    fn median(&self, column: &str) -> f64 {
        let mut values = self.values(column);
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }
}

/// Milliseconds are written with three decimals.
fn assert_close(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() <= 1e-3 * expected.abs() + 1e-3, "{what}: {found}, not {expected}");
}

#[test]
fn row_matches_step_times() {
    let dir = TestFolder::new();
    let tiny = Tiny { d_model: 32, context: CONTEXT, batch_size: BATCH_SIZE, ..Tiny::default() };
    dir.write("a.toml", tiny.with(MORE));
    let began = Instant::now();
    dir.runner(&["sweep", "a.toml", "--device", "cpu"]);
    let elapsed_ms = began.elapsed().as_secs_f64() * 1e3;

    let rows = dir.rows("results/a.csv");
    assert_eq!(rows.len(), 2);
    let mut all_ms = 0.0;
    for row in &rows {
        let file =
            dir.path(&format!("results/a/{}/{}/{}/steps.csv", &row.run_id[..2], row.run_id, row.repeat));
        let steps = Steps::read(&file, 2);
        assert_eq!(steps.lines.len(), 7);
        all_ms += Steps::read(&file, 0).values("ms").iter().sum::<f64>();
        agrees(row, &steps);
    }
    assert!(all_ms < elapsed_ms, "steps of {all_ms} ms within {elapsed_ms} ms");
}

fn agrees(row: &Row, steps: &Steps) {
    let (ms, figure) = (steps.median("ms"), |figure: Option<f64>| figure.unwrap());
    assert_close(figure(row.step_ms_median), ms, "step_ms_median");
    assert_close(
        figure(row.step_ms_min),
        steps.values("ms").into_iter().fold(f64::MAX, f64::min),
        "step_ms_min",
    );
    assert_close(figure(row.data_wait_ms), steps.median("data_wait_ms"), "data_wait_ms");
    // Computed from the sizes in the experiment file, not from the program's own counts.
    assert_close(figure(row.tokens_per_s), TOKENS / figure(row.step_ms_median) * 1e3, "tokens_per_s");
    assert_close(figure(row.samples_per_s), SAMPLES / figure(row.step_ms_median) * 1e3, "samples_per_s");
    for (rate, ms) in steps.values("tokens_per_s").into_iter().zip(steps.values("ms")) {
        // The tolerance is half of the last written digit of the milliseconds.
        assert!((rate - TOKENS / ms * 1e3).abs() <= rate * (0.000_51 / ms) + 0.1, "{rate} at {ms} ms");
    }
    assert_eq!(row.loss_last.map(|loss| loss as f32), steps.values("loss").last().map(|loss| *loss as f32));
}
