//! When a run is evaluated, as the process that trains it tells: predictions go through it in the same order.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const EXPERIMENT: &str = r#"
name = "tiny"

[model.transformer]
layers = 1
d_model = 8
heads = 1
context = 8

[data.text]
paths = ["text.txt"]
tokens = "bytes"
split = 0.8

[train]
batch_size = 2
optimizer.adamw = { lr = 1e-3 }

[evaluation]
every = 3
batches = 2

[measure]
warmup_steps = 1
steps = 6

[strategies.plain]
"#;

fn runner(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
    command.current_dir(folder).args(args);
    command
}

/// What a run says of steps and evaluations, in order.
fn told(folder: &Path, run: &Path) -> Vec<(String, u64)> {
    let mut command = runner(folder, &["execute-run", "--folder"]);
    // It ends when its standard input closes.
    let mut child = command.arg(run).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut told = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let message: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        for kind in ["step", "evaluation"] {
            told.extend(message[kind]["step"].as_u64().map(|step| (kind.to_owned(), step)));
        }
    }
    assert!(child.wait().unwrap().success());
    told
}

#[test]
fn a_run_is_evaluated_every_so_many_steps_and_after_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..2000).map(|number| format!("{number} ")).collect();
    fs::write(folder.path().join("text.txt"), text).unwrap();
    fs::write(folder.path().join("tiny.toml"), EXPERIMENT).unwrap();
    let swept =
        runner(folder.path(), &["sweep", "--device", "cpu", "--out", "kept", "tiny.toml"]).output().unwrap();
    assert!(swept.status.success(), "{}", String::from_utf8_lossy(&swept.stderr));

    let runs = folder.path().join("kept/tiny/*/*/run.toml");
    let run = glob::glob(runs.to_str().unwrap()).unwrap().next().unwrap().unwrap();
    let told = told(folder.path(), run.parent().unwrap());
    let mut expected: Vec<(String, u64)> = (1..=7).map(|step| ("step".to_owned(), step)).collect();
    for step in [7, 6, 3] {
        expected.insert(step, ("evaluation".to_owned(), step as u64));
    }
    assert_eq!(told, expected);
}
