//! Repeats, their order, seeds, filters and tasks of a sweep.

use std::collections::BTreeSet;
use std::fs;

use crate::test_folder::TestFolder;

/// A column of the experiment's table, as pairs of strategy and value.
fn column(dir: &TestFolder, name: &str) -> Vec<(String, String)> {
    let mut table = csv::Reader::from_path(dir.path("results/tiny.csv")).unwrap();
    let headers = table.headers().unwrap().clone();
    let at = |name: &str| headers.iter().position(|other| other == name).unwrap();
    let (strategy, column) = (at("strategy"), at(name));
    table
        .records()
        .map(Result::unwrap)
        .map(|row| (row[strategy].to_owned(), row[column].to_owned()))
        .collect()
}

fn values(dir: &TestFolder, name: &str) -> BTreeSet<String> {
    column(dir, name).into_iter().map(|(_, value)| value).collect()
}

/// Each round has another order than the one before; the second is reversed.
#[test]
fn rounds_are_interleaved_in_varying_order() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let sweep = dir.sweep(&[&file, "--repeats", "3"]).ended_with(0);
    let order: Vec<&str> = sweep
        .err
        .lines()
        .filter_map(|line| line.split_once("] tiny ")?.1.split_once(':'))
        .map(|(label, _)| label)
        .collect();
    let forward = ["plain #1", "recompute #1", "accumulate #1"];
    let backward = ["accumulate #2", "recompute #2", "plain #2"];
    let rotated = ["recompute #3", "accumulate #3", "plain #3"];
    assert_eq!(order, [forward, backward, rotated].concat(), "{}", sweep.err);
}

/// Rows that were measured interleaved have the same sweep id; rows added later have another.
#[test]
fn rows_record_their_sweep() {
    let dir = TestFolder::new();
    let file = dir.changed("tiny", "[strategies.accumulate]\naccumulate = 2", "");
    dir.sweep(&[&file]).ended_with(0);
    assert_eq!(values(&dir, "sweep").len(), 1);
    let file = dir.experiment("tiny", 1);
    let sweep = dir.sweep(&[&file]).ended_with(0);
    let mut sweeps = column(&dir, "sweep");
    sweeps.retain(|(strategy, _)| strategy == "accumulate" || strategy == "plain");
    let of = |wanted: &str| -> BTreeSet<&String> {
        sweeps.iter().filter(|(strategy, _)| strategy == wanted).map(|(_, sweep)| sweep).collect()
    };
    assert_eq!((of("plain").len(), of("accumulate").len()), (1, 1));
    assert_ne!(of("plain"), of("accumulate"));
    assert!(sweep.out.contains("accumulate was not interleaved with the baseline"), "{}", sweep.out);
    assert!(values(&dir, "looks").contains(""), "there was nothing to look at");
}

/// No speed is known to a thousandth after nine rounds; with at most eight rounds, precision is never checked.
#[test]
fn repeats_stop_at_precision_or_limit() {
    let dir = TestFolder::new();
    let file = dir.changed("tiny", "repeats = 2", "repeats = { until = 0.001, most = 9 }");
    let sweep = dir.sweep(&[&file]).ended_with(0);
    assert_eq!(dir.results("tiny").len(), 27, "{}", sweep.err);
    assert_eq!(values(&dir, "looks"), ["2".to_owned()].into());
    let again = dir.sweep(&[&file]).ended_with(0);
    assert!(again.err.contains("24 of 24 runs have a result already"), "{}", again.err);
    assert_eq!(dir.results("tiny").len(), 27);

    let eight = dir.changed("tiny", "repeats = 2", "repeats = { until = 0.5, most = 8 }");
    dir.sweep(&[&eight, "--fresh"]).ended_with(0);
    assert_eq!(dir.results("tiny").len(), 24);
    assert_eq!(values(&dir, "looks"), [String::new()].into());
    // A number on the command line replaces the adaptive repeats.
    dir.sweep(&[&eight, "--fresh", "--repeats", "1"]).ended_with(0);
    assert_eq!(dir.results("tiny").len(), 3);
}

/// Repeats with the same seed have the same loss, repeats with other seeds do not; the first repeat is the same in
/// both.
#[test]
fn seeds_vary_if_requested() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 3);
    dir.sweep(&[&file, "--filter", "plain"]).ended_with(0);
    let (same, seeds) = (column(&dir, "loss_last"), values(&dir, "seed"));
    assert_eq!((same[0].1 == same[1].1, seeds), (true, ["0".to_owned()].into()));

    let vary = ["--set", "measure.seeds=vary", "--filter", "plain", "--out", "vary"];
    dir.sweep(&[&[file.as_str()], &vary[..]].concat()).ended_with(0);
    fs::rename(dir.path("vary/tiny.csv"), dir.path("results/tiny.csv")).unwrap();
    let varied = column(&dir, "loss_last");
    assert_eq!(varied[0].1, same[0].1);
    assert_ne!(varied[1].1, same[0].1);
    assert_eq!(values(&dir, "seed"), ["0".to_owned(), "1".to_owned()].into());
    let of_second = dir.find("vary/tiny/*/*/2/run.toml");
    let run = fs::read_to_string(&of_second[0]).unwrap();
    assert!(run.contains("seed = 1") && run.contains("seeds = \"same\""), "{run}");
}

#[test]
fn filters_match_names_points_and_ids() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let text = fs::read_to_string(dir.path(&file)).unwrap();
    dir.write(&file, text + "\n[sweep.grid]\n\"train.batch_size\" = [2, 4]\n");
    let planned = |filters: &[&str]| {
        let filters: Vec<&str> = filters.iter().flat_map(|filter| ["--filter", filter]).collect();
        let args = [&["plan", &file, "--device", "cpu", "--format", "csv"], &filters[..]].concat();
        let output = dir.program(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let mut table = csv::Reader::from_reader(output.stdout.as_slice());
        let row = |row: csv::StringRecord| format!("{} {}", &row[2], &row[1]);
        table.records().map(Result::unwrap).map(row).collect::<Vec<_>>()
    };
    let of = |names: &[&str], batches: &[u32]| -> Vec<String> {
        batches
            .iter()
            .flat_map(|batch| names.iter().map(move |name| format!("{name} batch {batch}")))
            .collect()
    };
    let all = ["plain", "recompute", "accumulate", "again"];
    assert_eq!(planned(&[]), of(&all, &[2, 4]));
    assert_eq!(planned(&["plain,acc*"]), of(&["plain", "accumulate"], &[2, 4]));
    assert_eq!(planned(&["train.batch_size=4"]), of(&all, &[4]));
    // The baseline of the comparison is included too.
    assert_eq!(planned(&["batch_size=4", "again"]), of(&["plain", "again"], &[4]));
    let refused = |args: &[&str], says: &[&str]| {
        let args = [&["plan", &file, "--device", "cpu"], args].concat();
        let output = dir.program(&args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        says.iter().for_each(|part| assert!(said.contains(part), "{said}"));
    };
    refused(
        &["--filter", "plain,batch_size=8"],
        &["no strategy matches --filter batch_size=8", "train.batch_size=2"],
    );
    refused(&["--filter", "plain", "--filter", "again"], &["no run matches every --filter"]);
    refused(&["--run", "zzzz"], &["unknown run `zzzz`; use a strategy's name, a number from 1 to"]);
    refused(&["--columns", "sped"], &["unknown column `sped`", "speed"]);
}

/// Concurrent tasks: each measures its share, the last one writes the whole table, and no run is left out or measured
/// twice.
#[test]
fn tasks_share_a_sweep() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let tasks: Vec<_> = ["1/3", "2/3", "3/3"]
        .map(|only| dir.start(&[&file, "--only", only, "--repeats", "4"]))
        .into_iter()
        .map(|task| task.wait_with_output().unwrap())
        .collect();
    let runs = |output: &std::process::Output| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        said.lines().filter(|line| line.contains("] tiny ")).count()
    };
    assert!(tasks.iter().all(|task| task.status.success()), "{tasks:?}");
    assert_eq!(tasks.iter().map(runs).collect::<Vec<_>>(), [4, 4, 4], "three runs, four times");
    assert_eq!(dir.results("tiny").len(), 12);
    let whole = dir.sweep(&[&file, "--repeats", "4"]).ended_with(0);
    assert!(whole.err.contains("12 of 12 runs have a result already"), "{}", whole.err);
    assert_eq!(column(&dir, "status").len(), 16, "four labels");
    let refused = |args: &[&str], says: &str| {
        let sweep = dir.sweep(&[&[file.as_str()], args].concat()).ended_with(2);
        assert!(sweep.err.contains(says), "{}", sweep.err);
    };
    refused(&["--only", "4/3"], "use NUMBER/TASKS");
    refused(&["--only", "auto/3"], "this is not a task of an array");
    refused(&["--only", "1/3", "--fresh"], "cannot be used with");
    refused(&["--only", "1/3", "--set", "measure.repeats={until=0.02}"], "add --repeats N");
}
