//! The witness beside the ledger: what the system says that real runs have resident.

use crate::place::{Place, Tiny};
use results::{Row, Status};

/// Runs whose resident set is judged: large ones.
const LARGE: Tiny = Tiny { layers: 4, d_model: 256, heads: 4, context: 256, batch_size: 8, lr: 1e-3 };

/// By strategies that lay memory out differently.
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
"#;

/// Each run in a process of its own, as users have them.
fn rows() -> Vec<Row> {
    let place = Place::new();
    place.write("text.txt", "0123456789".repeat(10_000));
    place.write("witness.toml", LARGE.with(MORE));
    place.runner(&["sweep", "witness.toml", "--device", "cpu"]);
    place.rows("results/witness.csv")
}

/// The most that is live in any phase.
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
fn the_witness_agrees_with_ledger_and_prediction() {
    let rows = rows();
    assert_eq!(rows.len(), 7);
    for row in rows {
        let name = &row.strategy;
        assert_eq!(row.status, Status::Ok, "{name}: {}", row.message);
        let (device, reserved) = (row.reserved_peak_bytes.unwrap(), row.all_reserved_peak_bytes.unwrap());
        assert!(reserved >= 64 << 20, "{name}: {reserved} bytes are too few to be judged");
        let witnessed = row.external_peak_bytes.unwrap();
        assert!(
            execute::agrees(reserved, witnessed),
            "{name}: the ledger has {reserved} bytes, the witness {witnessed}"
        );

        // What is live is judged, too: all of it, and nothing else, is what is reserved for. A value that is not counted
        // is missing here.
        let live = live_peak(&row);
        let gaps = if name.ends_with("direct") { 0 } else { live / 20 };
        assert!((live..=live + gaps).contains(&device), "{name}: {live} bytes are live in {device}");

        assert_eq!(row.peak_bytes, row.predicted_peak_bytes, "{name}");
        assert_eq!(row.reserved_peak_bytes, row.predicted_reserved_peak_bytes, "{name}");
        let roles: Vec<u64> = row.live.iter().filter_map(|(_, bytes)| bytes).collect();
        assert_eq!(roles.iter().sum::<u64>(), row.peak_bytes.unwrap(), "{name}: {roles:?}");
    }
}
