//! The external reading against the ledger: the resident set of real runs.

use crate::test_folder::{TestFolder, Tiny};
use results::{Row, Status};

/// A model large enough for its resident set to be compared with the ledger.
const LARGE: Tiny = Tiny { layers: 4, d_model: 256, heads: 4, context: 256, batch_size: 8, lr: 1e-3 };

/// Strategies with different memory layouts.
const MORE: &str = r#"
clip_norm = 1.0
optimizer.adamw.weight_decay = 0.1

[evaluation]
every = 1
batches = 1

[measure]
warmup_steps = 1
steps = 1

[strategies.plain]

[strategies.direct]
allocator = "direct"

[strategies.recompute]
recompute = "block"

[strategies.recompute-direct]
extends = "recompute"
allocator = "direct"

[strategies.accumulate]
accumulate = 4
gradients = "zero"
release = "step"

[strategies.accumulate-direct]
extends = "accumulate"
allocator = "direct"
evaluation_pass = "grad"

[strategies.wide]                 # parameters of 8 MiB in one piece
set."train.batch_size" = 2
set."model.transformer.vocabulary" = 8192

[strategies.collect-host]         # logits of 4 MiB a batch
set."evaluation.batches" = 6
set."evaluation.batch_size" = 16
set."evaluation.collect" = { what = "logits", to = "host", concatenate = true }

[strategies.ranks]
parallel.data = 2
set."train.batch_size" = 16

[strategies.collect-direct]
allocator = "direct"
set."evaluation.batches" = 20
set."evaluation.batch_size" = 16
set."evaluation.collect" = { what = "logits", concatenate = true }
"#;

/// The rows of a sweep, which executes each run in its own process.
fn rows() -> Vec<Row> {
    let dir = TestFolder::new();
    dir.write("text.txt", "0123456789".repeat(10_000));
    dir.write("external.toml", LARGE.with(MORE));
    dir.runner(&["sweep", "external.toml", "--device", "cpu"]);
    dir.rows("results/external.csv")
}

/// The largest live peak of all phases.
fn live_peak(row: &Row) -> u64 {
    let phases = [
        row.start_peak_bytes,
        row.forward_peak_bytes,
        row.backward_peak_bytes,
        row.update_peak_bytes,
        row.evaluation_peak_bytes,
    ];
    phases.into_iter().flatten().max().unwrap()
}

#[test]
fn external_reading_agrees_with_ledger_and_prediction() {
    let rows = rows();
    assert_eq!(rows.len(), 10);
    for row in rows {
        let name = &row.strategy;
        assert_eq!(row.status, Status::Ok, "{name}: {}", row.message);
        let (device, reserved) = (row.reserved_peak_bytes.unwrap(), row.all_reserved_peak_bytes.unwrap());
        assert!(reserved >= 64 << 20, "{name}: {reserved} bytes are too few to compare");
        let external = row.external_peak_bytes.unwrap();
        assert!(
            execute::agrees(reserved, external),
            "{name}: the ledger has {reserved} bytes, the external reading {external}"
        );

        // Reserved memory must match live memory too: a value that is not counted as live shows up here.
        let live = live_peak(&row);
        let gaps = if name.ends_with("direct") { 0 } else { live / 20 };
        assert!((live..=live + gaps).contains(&device), "{name}: {live} bytes are live in {device}");

        assert_eq!(row.peak_bytes, row.predicted_peak_bytes, "{name}");
        assert_eq!(row.reserved_peak_bytes, row.predicted_reserved_peak_bytes, "{name}");
        let roles: Vec<u64> = row.live.iter().filter_map(|(_, bytes)| bytes).collect();
        assert_eq!(roles.iter().sum::<u64>(), row.peak_bytes.unwrap(), "{name}: {roles:?}");
    }
}
