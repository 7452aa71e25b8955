//! When a run is evaluated, as the process that trains it tells: predictions go through it in the same order.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use crate::place::{Place, Tiny};

const MORE: &str = r#"
[evaluation]
every = 3
batches = 2

[measure]
warmup_steps = 1
steps = 6

[strategies.plain]
"#;

/// What a run says of steps and evaluations, in order.
fn told(place: &Place, run: &Path) -> Vec<(String, u64)> {
    let mut command = place.program(&["execute-run", "--folder"]);
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
    let place = Place::new();
    place.write("tiny.toml", Tiny::default().with(MORE));
    place.runner(&["sweep", "--device", "cpu", "--out", "kept", "tiny.toml"]);

    let run = place.find("kept/tiny/*/*/run.toml").remove(0);
    let told = told(&place, run.parent().unwrap());
    let mut expected: Vec<(String, u64)> = (1..=7).map(|step| ("step".to_owned(), step)).collect();
    for step in [7, 6, 3] {
        expected.insert(step, ("evaluation".to_owned(), step as u64));
    }
    assert_eq!(told, expected);
}

#[test]
fn each_evaluation_is_kept() {
    let place = Place::new();
    place.write("tiny.toml", Tiny::default().with(MORE));
    place.write(
        "never.toml",
        Tiny::default().with(&MORE.replace("[evaluation]\nevery = 3\nbatches = 2\n", "")),
    );
    place.runner(&["sweep", "--device", "cpu", "--out", "kept", "tiny.toml", "never.toml"]);

    let file = place.find("kept/tiny/*/*/evaluations.csv").remove(0);
    let kept: Vec<(usize, f64)> =
        csv::Reader::from_path(&file).unwrap().deserialize().collect::<Result<_, _>>().unwrap();
    assert_eq!(kept.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [3, 6, 7]);
    let row: serde_json::Value =
        serde_json::from_slice(&std::fs::read(file.with_file_name("result.json")).unwrap()).unwrap();
    assert_eq!(row["loss_eval"].as_f64(), Some(kept[2].1));
    assert!(kept[0].1 > kept[1].1, "it learns: {kept:?}");
    assert!(place.find("kept/never/*/*/evaluations.csv").is_empty());
}
