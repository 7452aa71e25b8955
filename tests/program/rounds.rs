//! How often and in which order runs are measured, and which of them.

use std::collections::BTreeSet;
use std::fs;

use crate::place::Place;

/// A column of an experiment's table, as `strategy value`.
fn column(place: &Place, name: &str) -> Vec<(String, String)> {
    let mut table = csv::Reader::from_path(place.path("results/tiny.csv")).unwrap();
    let headers = table.headers().unwrap().clone();
    let at = |name: &str| headers.iter().position(|other| other == name).unwrap();
    let (strategy, column) = (at("strategy"), at(name));
    table
        .records()
        .map(Result::unwrap)
        .map(|row| (row[strategy].to_owned(), row[column].to_owned()))
        .collect()
}

fn values(place: &Place, name: &str) -> BTreeSet<String> {
    column(place, name).into_iter().map(|(_, value)| value).collect()
}

/// Each round has another order than the one before it, backwards first.
#[test]
fn rounds_are_measured_in_turns() {
    let place = Place::new();
    let file = place.experiment("tiny", 1);
    let sweep = place.sweep(&[&file, "--repeats", "3"]).ended_with(0);
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

/// What was measured in turns bears its sweep's name, and what was added later another.
#[test]
fn rows_name_the_sweep_that_measured_them() {
    let place = Place::new();
    let file = place.changed("tiny", "[strategies.accumulate]\naccumulate = 2", "");
    place.sweep(&[&file]).ended_with(0);
    assert_eq!(values(&place, "sweep").len(), 1);
    let file = place.experiment("tiny", 1);
    let sweep = place.sweep(&[&file]).ended_with(0);
    let mut sweeps = column(&place, "sweep");
    sweeps.retain(|(strategy, _)| strategy == "accumulate" || strategy == "plain");
    let of = |wanted: &str| -> BTreeSet<&String> {
        sweeps.iter().filter(|(strategy, _)| strategy == wanted).map(|(_, sweep)| sweep).collect()
    };
    assert_eq!((of("plain").len(), of("accumulate").len()), (1, 1));
    assert_ne!(of("plain"), of("accumulate"));
    assert!(sweep.out.contains("accumulate was not interleaved with the baseline"), "{}", sweep.out);
    assert!(values(&place, "looks").contains(""), "there was nothing to look at");
}

/// Nobody's speeds are known to a thousandth after nine rounds; where there may be no more than eight it is not looked at.
#[test]
fn repeats_end_when_it_is_known_well_or_there_are_most() {
    let place = Place::new();
    let file = place.changed("tiny", "repeats = 2", "repeats = { until = 0.001, most = 9 }");
    let sweep = place.sweep(&[&file]).ended_with(0);
    assert_eq!(place.results("tiny").len(), 27, "{}", sweep.err);
    assert_eq!(values(&place, "looks"), ["2".to_owned()].into());
    let again = place.sweep(&[&file]).ended_with(0);
    assert!(again.err.contains("24 of 24 runs have a result already"), "{}", again.err);
    assert_eq!(place.results("tiny").len(), 27);

    let eight = place.changed("tiny", "repeats = 2", "repeats = { until = 0.5, most = 8 }");
    place.sweep(&[&eight, "--fresh"]).ended_with(0);
    assert_eq!(place.results("tiny").len(), 24);
    assert_eq!(values(&place, "looks"), [String::new()].into());
    // A number on the command line is just that.
    place.sweep(&[&eight, "--fresh", "--repeats", "1"]).ended_with(0);
    assert_eq!(place.results("tiny").len(), 3);
}

/// Repeats of the same seed learn the same, those of others do not; the first is the same in both.
#[test]
fn seeds_vary_where_they_are_to() {
    let place = Place::new();
    let file = place.experiment("tiny", 3);
    place.sweep(&[&file, "--filter", "plain"]).ended_with(0);
    let (same, seeds) = (column(&place, "loss_last"), values(&place, "seed"));
    assert_eq!((same[0].1 == same[1].1, seeds), (true, ["0".to_owned()].into()));

    let vary = ["--set", "measure.seeds=vary", "--filter", "plain", "--out", "vary"];
    place.sweep(&[&[file.as_str()], &vary[..]].concat()).ended_with(0);
    fs::rename(place.path("vary/tiny.csv"), place.path("results/tiny.csv")).unwrap();
    let varied = column(&place, "loss_last");
    assert_eq!(varied[0].1, same[0].1);
    assert_ne!(varied[1].1, same[0].1);
    assert_eq!(values(&place, "seed"), ["0".to_owned(), "1".to_owned()].into());
    let of_second = place.find("vary/tiny/*/2/run.toml");
    let run = fs::read_to_string(&of_second[0]).unwrap();
    assert!(run.contains("seed = 1") && run.contains("seeds = \"same\""), "{run}");
}

#[test]
fn filters_are_names_points_and_ids() {
    let place = Place::new();
    let file = place.experiment("tiny", 1);
    let text = fs::read_to_string(place.path(&file)).unwrap();
    place.write(&file, text + "\n[sweep.grid]\n\"train.batch_size\" = [2, 4]\n");
    let planned = |filters: &[&str]| {
        let filters: Vec<&str> = filters.iter().flat_map(|filter| ["--filter", filter]).collect();
        let args = [&["plan", &file, "--device", "cpu", "--format", "csv"], &filters[..]].concat();
        let output = place.program(&args).output().unwrap();
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
    // Whatever it is compared with is there, too.
    assert_eq!(planned(&["batch_size=4", "again"]), of(&["plain", "again"], &[4]));
    let refused = |args: &[&str], says: &[&str]| {
        let args = [&["plan", &file, "--device", "cpu"], args].concat();
        let output = place.program(&args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        says.iter().for_each(|part| assert!(said.contains(part), "{said}"));
    };
    refused(
        &["--filter", "plain,batch_size=8"],
        &["no strategy matches --filter batch_size=8", "train.batch_size=2"],
    );
    refused(&["--filter", "plain", "--filter", "again"], &["no run matches every --filter"]);
    refused(&["--run", "zzzz"], &["no run's id begins with zzzz"]);
    refused(&["--columns", "sped"], &["unknown column `sped`", "speed"]);
}

/// Tasks at the same time: each does its part, whoever is last writes all of the table, and nothing is left or done twice.
#[test]
fn tasks_share_a_sweep() {
    let place = Place::new();
    let file = place.experiment("tiny", 1);
    let tasks: Vec<_> = ["1/3", "2/3", "3/3"]
        .map(|only| place.start(&[&file, "--only", only, "--repeats", "4"]))
        .into_iter()
        .map(|task| task.wait_with_output().unwrap())
        .collect();
    let runs = |output: &std::process::Output| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        said.lines().filter(|line| line.contains("] tiny ")).count()
    };
    assert!(tasks.iter().all(|task| task.status.success()), "{tasks:?}");
    assert_eq!(tasks.iter().map(runs).collect::<Vec<_>>(), [4, 4, 4], "three runs, four times");
    assert_eq!(place.results("tiny").len(), 12);
    let whole = place.sweep(&[&file, "--repeats", "4"]).ended_with(0);
    assert!(whole.err.contains("12 of 12 runs have a result already"), "{}", whole.err);
    assert_eq!(column(&place, "status").len(), 16, "four labels");
    let refused = |args: &[&str], says: &str| {
        let sweep = place.sweep(&[&[file.as_str()], args].concat()).ended_with(2);
        assert!(sweep.err.contains(says), "{}", sweep.err);
    };
    refused(&["--only", "4/3"], "use NUMBER/TASKS");
    refused(&["--only", "slurm"], "this is not a task of a Slurm array");
    refused(&["--only", "1/3", "--fresh"], "cannot be used with");
    refused(&["--only", "1/3", "--set", "measure.repeats={until=0.02}"], "add --repeats N");
}
