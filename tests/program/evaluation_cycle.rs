//! The evaluation cycle of a run, as its child process reports it: predictions follow the same order.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use crate::test_folder::{TestFolder, Tiny, said};

const MORE: &str = r#"
[evaluation]
every = 3
batches = 2

[measure]
warmup_steps = 1
steps = 6

[strategies.plain]
"#;

/// The steps and evaluations that a run reports, in order.
fn reported_steps(dir: &TestFolder, run: &Path) -> Vec<(String, u64)> {
    let mut command = dir.program(&["execute-run", "--folder"]);
    // The child ends when its standard input closes.
    let mut child = command.arg(run).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut reported = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let message: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        let event = message["event"].as_str().unwrap();
        if ["step", "evaluation"].contains(&event) {
            reported.push((event.to_owned(), message["step"].as_u64().unwrap()));
        }
    }
    assert!(child.wait().unwrap().success());
    reported
}

#[test]
fn evaluations_follow_cycle_and_last_step() {
    let dir = TestFolder::new();
    dir.write("tiny.toml", Tiny::default().with(MORE));
    dir.runner(&["sweep", "--device", "cpu", "--out", "kept", "tiny.toml"]);

    let run = dir.find("kept/tiny/*/*/*/run.toml").remove(0);
    let reported = reported_steps(&dir, run.parent().unwrap());
    let mut expected: Vec<(String, u64)> = (1..=7).map(|step| ("step".to_owned(), step)).collect();
    for step in [7, 6, 3] {
        expected.insert(step, ("evaluation".to_owned(), step as u64));
    }
    assert_eq!(reported, expected);
}

#[test]
fn each_evaluation_is_stored() {
    let dir = TestFolder::new();
    dir.write("tiny.toml", Tiny::default().with(MORE));
    dir.write(
        "never.toml",
        Tiny::default().with(&MORE.replace("[evaluation]\nevery = 3\nbatches = 2\n", "")),
    );
    dir.runner(&["sweep", "--device", "cpu", "--out", "kept", "tiny.toml", "never.toml"]);

    let file = dir.find("kept/tiny/*/*/*/evaluations.csv").remove(0);
    let kept: Vec<(usize, f64, Option<f64>)> =
        csv::Reader::from_path(&file).unwrap().deserialize().collect::<Result<_, _>>().unwrap();
    assert_eq!(
        kept.iter().map(|(step, _, accuracy)| (*step, *accuracy)).collect::<Vec<_>>(),
        [3, 6, 7].map(|step| (step, None)),
        "language models have no accuracy"
    );
    let row: serde_json::Value =
        serde_json::from_slice(&std::fs::read(file.with_file_name("result.json")).unwrap()).unwrap();
    assert_eq!(row["loss_eval"].as_f64(), Some(kept[2].1));
    assert!(kept[0].1 > kept[1].1, "it learns: {kept:?}");
    assert!(dir.find("kept/never/*/*/*/evaluations.csv").is_empty());
}

/// The plan has the collected bytes, and `explain` lists them and suggests the host, as a line of a strategy.
#[test]
fn collected_outputs_are_planned_and_explained() {
    let dir = TestFolder::new();
    let more = MORE.replace("batches = 2", "batches = 500\ncollect = \"logits\"");
    let told = |more: &str, args: &[&str]| {
        dir.write("tiny.toml", Tiny::default().with(more));
        said(&dir.runner(&[args, &["tiny.toml", "--device", "cpu"]].concat()))
    };
    let plan = ["plan", "--format", "csv"];
    assert!(told(&more, &plan).contains("collected per evaluation"));
    let explained = told(&more, &["explain", "--run", "plain"]);
    assert!(explained.contains("collected before"), "{explained}");
    let remedy = r#"set."evaluation.collect" = { what = "logits", to = "host", concatenate = false }"#;
    assert!(explained.contains(remedy), "{explained}");
    assert!(told(&format!("{more}{remedy}\n"), &plan).contains("collected per evaluation on the host"));
}
