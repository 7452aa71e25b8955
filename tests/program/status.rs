//! `runner status`: the states of runs in a folder of results, and of an experiment's runs on this machine.

use std::fs;
use std::process::Output;

use crate::sweeps::Sweep;
use crate::test_folder::{TestFolder, piped, wait_for};

/// The output, with single spaces between words.
fn status(dir: &TestFolder, args: &[&str]) -> String {
    let output: Output = dir.program(&[&["status"], args].concat()).output().unwrap();
    Sweep::of(output).ended_with(0).out.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn missing_runs_are_those_that_the_sweep_expects() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 2);
    dir.sweep(&[&file, "--filter", "plain"]).ended_with(0);
    let folder = status(&dir, &["results"]);
    assert!(folder.starts_with("tiny (results): 2 of 6 repeats done, 4 missing"), "{folder}");
    for line in [" missing recompute 2 repeats", " missing accumulate 2 repeats"] {
        assert!(folder.contains(line), "{folder}");
    }
    assert!(!folder.contains(" left"), "no time of these runs was measured: {folder}");
    assert!(!folder.contains("again"), "it is the same run: {folder}");

    // On this machine, with other repeats.
    let set = ["--device", "cpu", "--set", "measure.repeats=3"];
    let planned = status(&dir, &[&[file.as_str()], &set[..]].concat());
    assert!(planned.starts_with("tiny (results): 2 of 9 repeats done, 7 missing; about "), "{planned}");

    // With a result, each run's time is known.
    dir.sweep(&[&file]).ended_with(0);
    assert_eq!(status(&dir, &["results"]), "tiny (results): 6 of 6 repeats done");
    let planned = status(&dir, &[&[file.as_str()], &set[..]].concat());
    assert!(planned.contains("3 missing; about 0 s of training left"), "{planned}");
    // The runs of an edited file.
    let edited = fs::read_to_string(dir.path(&file)).unwrap().replace("lr = 1e-3", "lr = 2e-3");
    dir.write(&file, edited);
    let planned = status(&dir, &[&file, "--device", "cpu"]);
    assert!(planned.starts_with("tiny (results): 0 of 6 repeats done, 6 missing"), "{planned}");
    assert!(planned.contains("; 6 further results"), "{planned}");
}

#[test]
fn running_sweep_is_shown_with_its_process_and_killed_sweep_as_stopped() {
    let dir = TestFolder::new();
    let file = dir.experiment("slow", 100_000);
    let mut sweep = dir.start(&[&file]);
    wait_for("a run", || dir.child().is_some());
    let running = status(&dir, &["results"]);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let by = format!("{}, process {}, for ", host.trim(), sweep.id());
    assert!(running.starts_with("slow (results): 0 of 6 repeats done, 1 running, 5 missing"), "{running}");
    assert!(running.contains(" running ") && running.contains(&by), "{running}");

    sweep.kill().unwrap();
    sweep.wait().unwrap();
    wait_for("its child to end", || dir.child().is_none());
    let stopped = status(&dir, &["results"]);
    assert!(stopped.starts_with("slow (results): 0 of 6 repeats done, 6 missing"), "{stopped}");
    let by = by.replace("for ", "began ");
    assert!(
        stopped.contains(" stopped ") && stopped.contains(&by) && stopped.contains("is gone"),
        "{stopped}"
    );

    // On another machine: its locks may be local.
    let private = dir.find("results/slow/*/*/.*-*").remove(0);
    let (kept, random) = (private.to_str().unwrap().rsplit_once('-').unwrap().0, "0123456789abcdef");
    let elsewhere = format!("{}{}-{random}", &kept[..kept.len() - 32], "f".repeat(32));
    fs::rename(&private, &elsewhere).unwrap();
    let claim = fs::read_to_string(format!("{elsewhere}/claim.json")).unwrap();
    fs::write(format!("{elsewhere}/claim.json"), claim.replace(host.trim(), "node7")).unwrap();
    let unchecked = status(&dir, &["results"]);
    assert!(unchecked.contains("node7, process ") && unchecked.contains("not checked"), "{unchecked}");

    // A second claim on the repeat, with a damaged file.
    let copy = elsewhere.replace(random, "0123456789abcde0");
    fs::create_dir(&copy).unwrap();
    let damaged = r#"{ "host": "node8\n", "process": 1, "job": null, "since": 18446744073709551615 }"#;
    fs::write(format!("{copy}/claim.json"), damaged).unwrap();
    let both = status(&dir, &["results"]);
    assert!(both.starts_with("slow (results): 0 of 6 repeats done, 1 running, 5 missing"), "{both}");
    assert!(both.contains("node7, process ") && both.contains("node8␊, process 1, for 0 s"), "{both}");
}

#[test]
fn claim_of_lost_node_ends_with_the_result_of_its_repeat() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    dir.sweep(&[&file]).ended_with(0);
    let result = dir.find("results/tiny/*/*/1").remove(0);
    let lost = result.with_file_name(format!(".1.runner-{}-{}", "f".repeat(32), "0".repeat(16)));
    fs::create_dir(&lost).unwrap();
    fs::write(lost.join("claim.json"), r#"{ "host": "node7", "process": 1, "job": null, "since": 0 }"#)
        .unwrap();
    assert_eq!(status(&dir, &["results"]), "tiny (results): 6 of 6 repeats done");
    // Without a result, its process may run.
    fs::remove_dir_all(result).unwrap();
    let unchecked = status(&dir, &["results"]);
    assert!(unchecked.starts_with("tiny (results): 5 of 6 repeats done, 1 running "), "{unchecked}");
}

#[test]
fn runs_of_several_targets_are_shown_with_their_target() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    for memory in ["4MiB", "5MiB"] {
        dir.sweep(&[&file, "--memory", memory, "--filter", "plain"]).ended_with(0);
    }
    let both = status(&dir, &["results"]);
    assert!(both.starts_with("tiny (results): 4 of 12 repeats done, 8 missing"), "{both}");
    for memory in ["4.00 MiB", "5.00 MiB"] {
        let line = format!(" limited to {memory} 2 repeats");
        assert_eq!(both.matches(&line).count(), 2, "{both}");
    }
    assert!(both.contains(" missing recompute on "), "{both}");
}

#[test]
fn failed_runs_are_shown_with_their_messages() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    dir.sweep(&[&file, "--timeout", "1ms", "--repeats", "1"]).ended_with(1);
    let failed = status(&dir, &["results"]);
    assert!(failed.starts_with("tiny (results): 0 of 3 repeats done, 3 failed"), "{failed}");
    let line = " failed recompute #1 timeout: not finished after 1ms, the --timeout";
    assert!(failed.contains(line), "{failed}");
}

#[test]
fn long_lists_are_cut_unless_all_is_requested() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let text = fs::read_to_string(dir.path(&file)).unwrap();
    let seeds: Vec<usize> = (0..10).collect();
    dir.write(&file, format!("{text}\n[sweep.grid]\n\"train.seed\" = {seeds:?}\n"));
    let short = status(&dir, &[&file, "--device", "cpu"]);
    assert!(short.ends_with(" and 10 more missing; --all lists them"), "{short}");
    assert_eq!(status(&dir, &[&file, "--device", "cpu", "--all"]).matches("2 repeats").count(), 30);
}

#[test]
fn watch_ends_with_the_sweep() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 50);
    fs::create_dir_all(dir.path("results/.slurm")).unwrap();
    let watch = piped(dir.program(&["status", "results", "--watch=50ms"]));
    let sweep = dir.start(&[&file]);
    Sweep::of(sweep.wait_with_output().unwrap()).ended_with(0);
    let shown = Sweep::of(watch.wait_with_output().unwrap()).ended_with(0).out;
    assert!(shown.ends_with("tiny (results): 6 of 6 repeats done\n"), "{shown}");
}

#[test]
fn folders_without_results_are_refused() {
    let dir = TestFolder::new();
    fs::create_dir_all(dir.path("results/published/m1")).unwrap();
    for command in ["status", "collect"] {
        let refused = Sweep::of(dir.program(&[command, "results"]).output().unwrap()).ended_with(2);
        assert!(refused.err.starts_with("error: results holds no results\n = help: "), "{}", refused.err);
    }
    // After `submit`.
    fs::create_dir(dir.path("results/.slurm")).unwrap();
    let begun = status(&dir, &["results"]);
    assert_eq!(begun, "results: no task of `runner submit` has begun; logs: results/.slurm");
}
