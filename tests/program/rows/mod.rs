//! Result rows for tests: fixed and random ones.
#![allow(dead_code, unreachable_pub)] // each test file uses its part

use device::{ByRole, Role};
use execute::Measured;
use proptest::prelude::*;
use results::{Row, Status};
use serde_json::{Value, json};

pub const MIB: u64 = 1 << 20;

/// A finished run of the experiment `gpt-mini`: two threads, 200 MiB, 4,000 tokens per second.
pub fn row(strategy: &str) -> Row {
    let mut measured = Measured {
        host_peak_bytes: Some(MIB),
        data_wait_ms: Some(0.05),
        loss_first: Some(5.6),
        loss_last: Some(3.1),
        loss_eval: Some(3.2),
        recompute_flops: Some(0),
        host_reserved_peak_bytes: Some(MIB),
        hardware_flops: Some(1_000_000_000),
        micro_batches: Some(1),
        load: Some(0.1),
        clock_mhz: Some(2400.0),
        startup_ms: Some(20.0),
        product_flops_per_s: Some(3e11),
        copy_bytes_per_s: Some(6e10),
        ..Measured::default()
    };
    measured.live = ByRole::<u64>::default().map(Some);
    measured.live[Role::Parameter] = Some(43_200_000);
    measured.live[Role::Gradient] = Some(43_200_000);
    measured.live[Role::Optimizer] = Some(86_400_000);
    measured.live[Role::Input] = Some(16_384);
    measured.live[Role::Workspace] = Some(MIB);
    let mut row = Row {
        experiment: "gpt-mini".into(),
        run_id: format!("{strategy}-id"),
        strategy: strategy.into(),
        device: "AMD EPYC 9V74".into(),
        model: "transformer 6x384 heads 6 T 256".into(),
        parameters: Some(10_800_000),
        batch_size: Some(8),
        micro_batch: Some(8),
        precision: "fp32".into(),
        version: "0.1.0".into(),
        warmup_steps: Some(3),
        steps: Some(20),
        limit_bytes: Some(8 << 30),
        fits_micro_batch: Some(37),
        model_flops: Some(1_000_000_000),
        threads: Some(2),
        measured,
        ..Row::default()
    };
    row.set_memory(200.0);
    row.set_speed(4000.0);
    row
}

/// `rounds` repeats of each row on a machine that slows down by 1 % per round, with up to 0.4 % of jitter.
pub fn repeated(rows: &[Row], rounds: usize) -> Vec<Row> {
    let of_round = |round: usize| {
        rows.iter().enumerate().map(move |(at, row)| {
            let mut row = row.clone();
            row.repeat = round;
            let jitter = [0.0, 0.002, -0.001, 0.001, -0.002][(3 * round + at) % 5];
            if let Some(speed) = row.tokens_per_s {
                row.set_speed(speed * 0.99_f64.powi(round as i32) * (1.0 + jitter));
            }
            row
        })
    };
    (1..=rounds).flat_map(of_round).collect()
}

/// Changes the memory or the speed of a row consistently in all its columns.
pub trait SetFigures {
    fn set_memory(&mut self, mib: f64);
    fn set_speed(&mut self, tokens_per_s: f64);
}

impl SetFigures for Row {
    fn set_memory(&mut self, mib: f64) {
        let bytes = Some((mib * MIB as f64) as u64);
        self.predicted_peak_bytes = bytes;
        self.peak_bytes = bytes;
        self.reserved_peak_bytes = bytes;
        self.predicted_reserved_peak_bytes = bytes;
        self.external_peak_bytes = bytes.map(|bytes| bytes + MIB + 100_000);
        // Parameters are allocated at start-up.
        self.start_peak_bytes = bytes.map(|bytes| (bytes / 2).max(43_200_000).min(bytes));
        self.evaluation_peak_bytes = bytes.map(|bytes| bytes / 3);
        self.forward_peak_bytes = bytes.map(|bytes| bytes / 2);
        self.backward_peak_bytes = bytes;
        self.update_peak_bytes = bytes.map(|bytes| bytes / 2);
        self.live[Role::Activation] = bytes.map(|bytes| bytes.saturating_sub(173_865_984 + MIB));
    }

    fn set_speed(&mut self, tokens_per_s: f64) {
        let ms = 8.0 * 256.0 / tokens_per_s * 1e3;
        self.tokens_per_s = Some(tokens_per_s);
        self.samples_per_s = Some(tokens_per_s / 256.0);
        self.step_ms_median = Some(ms);
        self.step_ms_p90 = Some(ms * 1.02);
        self.step_ms_min = Some(ms * 0.98);
        self.step_ms_ci95 = Some(ms * 0.008);
    }
}

pub fn status() -> impl Strategy<Value = Status> {
    prop::sample::select(vec![
        Status::Ok,
        Status::Ok,
        Status::Ok,
        Status::Oom,
        Status::Diverged,
        Status::Skipped,
        Status::Timeout,
        Status::Failed,
        Status::Interrupted,
    ])
}

prop_compose! {
    /// Any row that a file can hold, plausible or not.
    pub fn any_row()(
        columns in any_columns(),
        status in status(),
        repeat in 0usize..3,
        strategy in "[ab]{1,2}|[a-zé界/=0-9-]{1,60}",
        axes in prop::option::of((prop::sample::select(vec!["train.batch_size", "precision"]), "[1-3]")),
    ) -> Row {
        let row: Row = serde_json::from_value(columns).expect("each column has what it may hold");
        Row {
            experiment: "random".into(), precision: "fp32".into(), configuration: String::new(), strategy, repeat,
            status, axes: axes.into_iter().map(|(key, value)| (key.to_string(), value)).collect(), ..row
        }
    }
}

/// A random value for every column of `Row`.
fn any_columns() -> impl Strategy<Value = Value> {
    let empty = serde_json::to_value(Row::default()).expect("a row can be written");
    let columns: Vec<String> = empty.as_object().expect("a row is flat").keys().cloned().collect();
    let holds = |column: &str, value: Value| {
        let mut row = empty.clone();
        row[column] = value;
        serde_json::from_value::<Row>(row).is_ok()
    };
    let cell = |column: &String| {
        let mut cell = match column.as_str() {
            "status" | "axes" => Just(empty[column].clone()).boxed(),
            text if holds(text, json!("text")) => match text.strip_prefix("oom_") {
                Some(_) => "[a-z .0-9]{1,30}".prop_map(Value::from).boxed(),
                None => any_text().prop_map(Value::from).boxed(),
            },
            flag if holds(flag, json!(true)) => any::<bool>().prop_map(Value::from).boxed(),
            number if holds(number, json!(0.5)) => any_number().prop_map(Value::from).boxed(),
            size if size.ends_with("_bytes") || size.ends_with("_flops") => {
                any_size().prop_map(Value::from).boxed()
            }
            _ => (0usize..100_000).prop_map(Value::from).boxed(),
        };
        if holds(column, Value::Null) {
            cell = prop_oneof![Just(Value::Null), cell].boxed();
        }
        cell
    };
    let cells: Vec<_> = columns.iter().map(cell).collect();
    cells.prop_map(move |cells| columns.iter().cloned().zip(cells).collect())
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just("one".to_string()), "[a-zA-Z0-9 ,;\"'|é界\n%+-]{0,60}"]
}

fn any_size() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..4096, 0u64..(64 << 30), any::<u64>()]
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![0.0f64..10.0, 0.0f64..1e6, prop::num::f64::NORMAL | prop::num::f64::ZERO]
}
