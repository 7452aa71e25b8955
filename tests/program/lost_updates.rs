//! 16-bit parameters whose updates are rounded away, in `runner sweep` and `compare`.

use crate::test_folder::{TestFolder, Tiny};
use results::Status;

const STRATEGIES: &str = r#"
[measure]
warmup_steps = 1
steps = 4

[strategies.fp32]
[strategies.copy]
params = "bf16"
[strategies.half]
params = "bf16"
master_weights = false
[strategies.random]
extends = "half"
rounding = "stochastic"
[strategies.fast]
extends = "half"
set."train.optimizer.adamw.lr" = 1e-2
[strategies.late]
extends = "half"
init = "lazy"
[strategies.diverges]
params = "fp16"
master_weights = false
optimizer_state = "fp32"
set."train.optimizer.adamw.lr" = 1e30
[strategies.skips]
params = "fp16"
master_weights = false
loss_scale = 1e38
"#;

#[test]
fn rounded_updates_are_reported() {
    let dir = TestFolder::new();
    dir.write("lost.toml", Tiny { d_model: 64, lr: 1e-6, ..Tiny::default() }.with(STRATEGIES));
    dir.runner(&["sweep", "lost.toml", "--device", "cpu"]);
    let rows = dir.rows_by_strategy("results/lost.csv");

    // An update of 1e-6 is smaller than half a ULP of values above 5e-4, which nearly all weights are.
    let unchanged = |strategy: &str| rows[strategy].unchanged_parameters;
    assert!(unchanged("half").is_some_and(|share| (0.9..1.0).contains(&share)), "{:?}", unchanged("half"));
    assert_eq!(unchanged("late"), unchanged("half"));
    assert!(unchanged("fast").is_some_and(|share| share < 0.1), "{:?}", unchanged("fast"));
    for strategy in ["fp32", "copy", "random"] {
        assert_eq!(unchanged(strategy), None, "{strategy} loses nothing");
    }
    // Skipped steps are reported separately.
    assert_eq!((rows["skips"].status, rows["skips"].skipped_steps), (Status::Ok, Some(5)));
    assert_eq!(unchanged("skips"), None);
    // NaN parameters do not change either, but are not counted as lost updates.
    assert_eq!((rows["diverges"].status, unchanged("diverges")), (Status::Diverged, None));

    let output = dir.runner(&["compare", "results/lost.csv", "--format", "markdown"]);
    let table = String::from_utf8(output.stdout).unwrap();
    for (strategy, is_named) in [("half", true), ("late", true), ("fast", false), ("random", false)] {
        let line = table.lines().find(|line| line.split_whitespace().any(|word| word == strategy)).unwrap();
        assert_eq!(line.contains("UPDATES LOST: "), is_named, "{line}");
    }
    let verdict = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        verdict.contains("learn next to nothing: updates smaller than half a ULP are rounded away"),
        "{table}"
    );
}
