//! `runner sweep` in mixed precision: overflowing steps, keys without effect on a CPU, and invalid points.

use std::path::Path;

use crate::test_folder::{TestFolder, Tiny};
use device::Role;
use results::{Row, Status, csv};

const MORE: &str = r#"
clip_norm = 1.0
optimizer.adamw.weight_decay = 0.1

[measure]
warmup_steps = 1
steps = 3

[strategies.plain]
[strategies.tf32]
precision = "tf32"
[strategies.graph]
graph = true
[strategies.overflow]
precision = "fp16"
loss_scale.dynamic = { initial = 1073741824, backoff = 0.00006103515625, interval = 2 }
[strategies.static]
precision = "fp16"
loss_scale = 128
[strategies.unscaled]
precision = "fp16"
loss_scale = "off"
[strategies.scaled]
loss_scale = 128
sweep.precision = ["fp16", "bf16"]
"#;

/// A column of the run's `steps.csv`.
fn column(dir: &TestFolder, row: &Row, name: &str) -> Vec<String> {
    let file = dir.path(&format!("results/small/{}/{}/1/steps.csv", &row.run_id[..2], row.run_id));
    let text = std::fs::read_to_string(file).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    let index = lines.next().unwrap().iter().position(|heading| heading == name).expect("a column");
    lines.map(|mut line| line.swap_remove(index)).collect()
}

#[test]
fn rows_record_loss_scale() {
    let dir = TestFolder::new();
    dir.write("small.toml", Tiny { d_model: 32, ..Tiny::default() }.with(MORE));
    dir.runner(&["sweep", "small.toml", "--device", "cpu"]);
    let rows = dir.rows_by_strategy("results/small.csv");
    assert_eq!(rows.len(), 8);

    let overflow = &rows["overflow"];
    assert_eq!((overflow.status, overflow.skipped_steps), (Status::Ok, Some(1)), "{}", overflow.message);
    assert!(overflow.effects.contains("1 step skipped"), "{}", overflow.effects);
    // Lowered from 2^30 to 2^16, and doubled after two finite steps.
    assert_eq!(column(&dir, overflow, "loss_scale"), ["65536", "65536", "131072", "131072"]);
    assert_eq!(overflow.loss_scale, Some(131_072.0));
    let norms: Vec<f32> =
        column(&dir, overflow, "grad_norm").iter().map(|norm| norm.parse().unwrap()).collect();
    let finite: Vec<bool> = norms.iter().map(|norm| norm.is_finite()).collect();
    assert_eq!(finite, [false, true, true, true], "{norms:?}");

    assert_eq!((rows["static"].skipped_steps, rows["static"].loss_scale), (Some(0), Some(128.0)));
    for unscaled in ["plain", "unscaled"] {
        assert_eq!((rows[unscaled].skipped_steps, rows[unscaled].loss_scale), (None, None), "{unscaled}");
        assert!(column(&dir, &rows[unscaled], "loss_scale").iter().all(String::is_empty));
    }

    // The CPU computes in f32 if only a GPU has units for the type.
    assert_eq!((rows["plain"].emulated, rows["tf32"].emulated), (false, false));
    assert!(rows["static"].emulated, "no processor multiplies fp16 by itself");
    for (strategy, key) in [("tf32", "precision"), ("graph", "graph")] {
        assert_eq!(rows[strategy].no_effect, key);
        assert_eq!(rows[strategy].digest, rows["plain"].digest, "{strategy}");
    }

    let skipped = &rows["scaled/precision=bf16"];
    assert_eq!(skipped.status, Status::Skipped);
    let reason = "loss_scale prevents underflow of fp16 gradients; it has no effect with precision = \"bf16\"; \
                  use precision = \"fp16\" or loss_scale = \"off\"";
    assert_eq!(skipped.message, reason);
}

#[test]
fn tables_from_before_mixed_precision_can_be_read() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/before_mixed_precision.csv");
    for row in csv::read(&file).unwrap() {
        assert_eq!((row.precision.as_str(), row.emulated, row.loss_scale), ("fp32", false, None));
        assert_eq!(row.live[Role::Cast], None, "parameters were charged with casts then");
        assert!(row.live[Role::Parameter].is_some());
    }
}
