//! `runner collect`: the results of several folders in one table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use results::{Row, Status};

use crate::sweeps::Sweep;
use crate::test_folder::TestFolder;

fn collect(dir: &TestFolder, folders: &[&str]) -> (Vec<Row>, String) {
    let args = [&["collect", "--out", "all.csv"], folders].concat();
    let collected = Sweep::of(dir.program(&args).output().unwrap()).ended_with(0);
    (dir.rows("all.csv"), collected.out + &collected.err)
}

/// Copies a folder of results.
fn copy(dir: &TestFolder, from: &str, to: &str) {
    assert!(Command::new("cp").arg("-r").args([dir.path(from), dir.path(to)]).status().unwrap().success());
}

/// Changes a cell of the first result of a strategy in a folder. Returns the file.
fn change(dir: &TestFolder, folder: &str, strategy: &str, column: &str, value: &str) -> String {
    let files = dir.find(&format!("{folder}/tiny/*/*/1/result.json"));
    let read = |file: &Path| serde_json::from_slice::<serde_json::Value>(&fs::read(file).unwrap()).unwrap();
    let file = files.into_iter().find(|file| read(file)["strategy"] == strategy).unwrap();
    let mut row = read(&file);
    row[column] = value.into();
    fs::write(&file, row.to_string()).unwrap();
    file.strip_prefix(dir.path("")).unwrap().display().to_string()
}

#[test]
fn same_runs_on_different_targets_are_told_apart() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let sweep =
        |out, memory| dir.sweep(&[&file, "--out", out, "--memory", memory, "--repeats", "1"]).ended_with(0);
    sweep("one", "4MiB");
    sweep("two", "5MiB");
    let (rows, said) = collect(&dir, &["one", "two"]);
    assert!(said.starts_with("wrote all.csv: 8 rows of 1 experiment on 1 device\n"), "{said}");
    let labels: Vec<&str> = rows.iter().map(|row| row.strategy.as_str()).collect();
    let expected = ["plain", "plain", "recompute", "recompute", "accumulate", "accumulate", "again", "again"];
    assert_eq!(labels, expected, "in the order of the file, with both labels of one run");
    let mut targets: BTreeMap<Option<u64>, BTreeSet<&str>> = BTreeMap::new();
    for row in &rows {
        targets.entry(row.limit_bytes).or_default().insert(&row.run_id);
    }
    assert_eq!(targets.values().map(BTreeSet::len).collect::<Vec<_>>(), [3, 3]);
    let compared = dir.runner(&["compare", "all.csv"]);
    let compared = String::from_utf8(compared.stdout).unwrap();
    assert!(compared.contains("limited to 4 MiB") && compared.contains("limited to 5 MiB"), "{compared}");
}

#[test]
fn labels_are_those_of_the_last_sweep_of_the_first_folder() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let text = fs::read_to_string(dir.path(&file)).unwrap();
    let sweep =
        |out, memory| dir.sweep(&[&file, "--out", out, "--memory", memory, "--repeats", "1"]).ended_with(0);
    sweep("one", "4MiB");
    sweep("two", "5MiB");
    copy(&dir, "one", "old");
    let edited = text
        .replace("[strategies.plain]", "[strategies.renamed]")
        .replace(
            "[strategies.again]",
            "[strategies.again]\nupdate = \"in_backward\"\nsweep.accumulate = [1, 2]",
        )
        .replace("name = \"tiny\"", "name = \"tiny\"\nbaseline = \"recompute\"");
    dir.write(&file, edited);
    sweep("one", "4MiB");
    let table = dir.rows("one/tiny.csv");
    assert!(table.iter().any(|row| row.status == Status::Skipped) && table[0].strategy == "renamed");
    assert!(table.iter().all(|row| row.baseline == "recompute"));

    // The table of one folder is the sweep's, and standard output has it as well.
    assert_eq!(collect(&dir, &["one"]).0, table);
    assert_eq!(dir.runner(&["collect", "one"]).stdout, fs::read(dir.path("all.csv")).unwrap());
    // A folder with older labels adds nothing; results of another target get the new ones.
    assert_eq!(collect(&dir, &["one", "old"]).0, table);
    let (rows, _) = collect(&dir, &["one", "two"]);
    let labels: Vec<&str> = rows.iter().map(|row| row.strategy.as_str()).collect();
    let expected = ["renamed", "renamed", "recompute", "recompute", "accumulate", "accumulate"];
    assert_eq!(labels[..6], expected);
    assert_eq!(labels[6..], ["again/accumulate=1", "again/accumulate=2"]);
    assert!(rows.iter().all(|row| row.baseline == "recompute"));
}

#[test]
fn results_in_several_folders_are_merged() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let sweep = |out| dir.sweep(&[&file, "--out", out, "--memory", "4MiB", "--repeats", "1"]).ended_with(0);
    sweep("one");
    copy(&dir, "one", "copy");
    let (rows, said) = collect(&dir, &["one", "copy"]);
    assert_eq!(rows, collect(&dir, &["one"]).0, "each once");
    assert!(said.contains("several folders hold the same 3 results: the table holds each once"), "{said}");

    // A failure gives way to a result, in either order.
    change(&dir, "copy", "plain", "status", "failed");
    for folders in [["one", "copy"], ["copy", "one"]] {
        assert!(collect(&dir, &folders).0.iter().all(|row| row.status == Status::Ok), "{folders:?}");
    }

    // Measured twice on equal targets: two rows, which `compare` takes for two rounds.
    sweep("two");
    let (rows, said) = collect(&dir, &["one", "two"]);
    assert_eq!(rows.len(), 8);
    assert_eq!(rows.iter().map(|row| &row.sweep).collect::<BTreeSet<_>>().len(), 2);
    assert!(
        said.contains("3 further measurements of repeats on equal targets: the table holds each"),
        "{said}"
    );
    let compared = dir.runner(&["compare", "all.csv"]);
    let compared = String::from_utf8(compared.stdout).unwrap();
    assert!(compared.contains("2 repeats"), "{compared}");
}

#[test]
fn contradicting_results_are_refused() {
    for (column, value) in [("digest", "another"), ("status", "oom"), ("configuration", "0123456789abcdef")] {
        let dir = TestFolder::new();
        let file = dir.experiment("tiny", 1);
        dir.sweep(&[&file, "--out", "one", "--filter", "plain", "--repeats", "1"]).ended_with(0);
        copy(&dir, "one", "two");
        let changed = change(&dir, "two", "plain", column, value);
        let args = ["collect", "one", "two", "--out", "all.csv"];
        let refused = Sweep::of(dir.program(&args).output().unwrap()).ended_with(2);
        let said = format!("contradict each other in `{column}`: ");
        let (one, two) = (changed.replacen("two", "one", 1), changed);
        assert!(refused.err.contains(&said) && refused.err.contains(value), "{}", refused.err);
        assert!(refused.err.contains(&one) && refused.err.contains(&two), "{}", refused.err);
        assert!(!dir.path("all.csv").exists());
        // Another version of the program may need other memory, or compute other parameters.
        change(&dir, "two", "plain", "version", "0.0.1");
        if column != "configuration" {
            assert_eq!(collect(&dir, &["one", "two"]).0.len(), 2, "{column}");
        }
    }
}
