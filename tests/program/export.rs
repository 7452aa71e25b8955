//! `export`: the script of a run, its predicted requests, and what has no script.

use std::fs;

use crate::test_folder::{TestFolder, Tiny};

fn folder() -> TestFolder {
    let dir = TestFolder::new();
    let strategies = "[strategies.plain]\n[strategies.graph]\ngraph = true\n";
    dir.write("a.toml", "name = \"a\"\n".to_owned() + &Tiny::default().with(strategies));
    dir
}

#[test]
fn script_and_its_requests_are_written() {
    let dir = folder();
    let arguments = ["export", "a.toml", "--run", "plain", "--target", "a100-80gb", "--out", "train.py"];
    let output = dir.program(&arguments).args(["--requests", "requests.txt"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let script = fs::read_to_string(dir.path("train.py")).unwrap();
    let printed = dir.program(&arguments[..6]).output().unwrap();
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), script);
    assert!(script.contains("class Network(nn.Module):") && script.ends_with("main()\n"), "{script}");
    // The script prints its peaks beside the predicted ones.
    let predicted = script.lines().find_map(|line| line.strip_prefix("PREDICTED = ")).unwrap();
    let peaks: Vec<(u64, u64)> = predicted
        .trim_matches(['[', ']'])
        .split("), ")
        .map(|pair| pair.trim_matches(['(', ')']).split_once(", ").unwrap())
        .map(|(allocated, reserved)| (allocated.parse().unwrap(), reserved.parse().unwrap()))
        .collect();
    assert!(
        peaks.len() >= 2 && peaks.iter().all(|(allocated, reserved)| 0 < *allocated && allocated <= reserved)
    );

    let requests = fs::read_to_string(dir.path("requests.txt")).unwrap();
    let mut live = vec![];
    for line in requests.lines() {
        match line.split_at(1) {
            ("+", bytes) => live.push(Some(bytes.parse::<u64>().unwrap())),
            ("-", request) => {
                let released = live[request.parse::<usize>().unwrap()].take();
                assert!(released.is_some(), "{request} is released twice");
            }
            _ => panic!("{line}"),
        }
    }
    assert!(live.len() > 100 && live.iter().any(Option::is_some), "parameters stay");
}

#[test]
fn errors_state_the_way_out() {
    let dir = folder();
    let error = |arguments: &[&str]| {
        let output = dir.program(&["export", "a.toml"]).args(arguments).output().unwrap();
        assert!(output.stdout.is_empty());
        let text = String::from_utf8(output.stderr).unwrap();
        format!("{} {}", output.status.code().unwrap(), text)
    };
    let of = |run| ["--run", run, "--target", "a100-80gb"];
    let no_card = error(&["--run", "plain", "--device", "cpu"]);
    assert!(no_card.starts_with("2 error: PyTorch's memory is not predicted for "), "{no_card}");
    assert!(no_card.contains("give `--target` with a card that `devices --targets` lists"), "{no_card}");
    assert_eq!(
        error(&of("graph")),
        "2 error: the run graph has no PyTorch script: CUDA graphs (graph = true)\n"
    );
    let unwritable = error(&[&of("plain")[..], &["--out", "none/train.py"]].concat());
    assert!(unwritable.contains("cannot write none/train.py: No such file or directory"), "{unwritable}");
}
