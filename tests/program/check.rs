//! Output of `runner check` for valid experiments.

use std::process::Command;

const EXPERIMENT: &str = r#"
[model.transformer]
layers = 2
d_model = 64
heads = 2
context = 32

[data.text]
paths = ["/corpus/*.txt"]

[train]
batch_size = 8
optimizer.adamw = { lr = 3e-4 }

[measure]
repeats = 3

[strategies.plain]

[strategies.lean]
recompute = "block"
sweep.accumulate = [1, 2]

[sweep.grid]
"train.batch_size" = [1, 8]
"#;

fn check(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder for the test");
    for name in ["a.toml", "b.toml"] {
        let text = match arguments {
            [.., "--resolved"] => EXPERIMENT.to_owned(),
            _ => EXPERIMENT.replace("/corpus/", ""),
        };
        std::fs::write(folder.path().join(name), text).expect("a file for the test");
    }
    std::fs::write(folder.path().join("corpus.txt"), "0123456789".repeat(100)).expect("a file for the test");
    let output = Command::new(env!("CARGO_BIN_EXE_runner"))
        .current_dir(folder.path())
        .arg("check")
        .args(arguments)
        .output()
        .expect("the program starts");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn one_line_for_each_file() {
    insta::assert_snapshot!("check_lines", check(&["a.toml", "[ab].toml"]));
}

#[test]
fn resolved_runs_are_experiments() {
    insta::assert_snapshot!("check_resolved", check(&["a.toml", "--resolved"]));
}
