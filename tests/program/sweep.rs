//! `runner sweep` as its user meets it: exit codes, what is said, and what is on the disk afterwards.

use std::fs;
use std::process::{Child, Command};
use std::time::Duration;

use crate::place::target::PROCESSOR;
use crate::place::{Place, piped, wait_for};
use crate::sweeps::Sweep;

#[test]
fn a_sweep_measures_everything_once() {
    let place = Place::new();
    let file = place.experiment("tiny", 2);
    let sweep = place.sweep(&[&file]).ended_with(0);
    assert!(sweep.out.starts_with("device: "), "{}", sweep.out);
    assert!(sweep.out.contains("wrote results/tiny.csv"), "{}", sweep.out);
    let first = place.results("tiny");
    assert_eq!(first.len(), 6, "three runs, twice: {first:?}");
    assert_eq!(place.table("tiny").len(), 8, "four labels, twice");
    assert!(place.table("tiny").iter().all(|(_, status)| status == "ok"));
    for name in ["run.toml", "target.toml", "data.digest", "log.txt"] {
        assert!(first[0].0.with_file_name(name).exists(), "{name}");
    }

    let again = place.sweep(&[&file]).ended_with(0);
    assert!(again.err.contains("6 of 6 runs have a result already"), "{}", again.err);
    assert_eq!(place.results("tiny"), first, "nothing was measured again");

    let more = place.sweep(&[&file, "--repeats", "3"]).ended_with(0);
    assert!(more.err.contains("[9/9]"), "{}", more.err);
    assert_eq!(place.results("tiny").len(), 9);

    place.sweep(&[&file, "--fresh"]).ended_with(0);
    let fresh = place.results("tiny");
    assert_eq!(fresh.len(), 6);
    assert!(fresh.iter().all(|result| !first.contains(result)));
}

/// The table has all rows; what is printed is about the strategies that were asked for, against the baseline.
#[test]
fn a_filter_is_for_what_is_said_too() {
    let place = Place::new();
    let file = place.changed("tiny", "accumulate = 2", "accumulate = 3");
    let text = fs::read_to_string(place.path(&file)).unwrap();
    place.write(&file, text + "\n[sweep.grid]\n\"train.batch_size\" = [2, 4]\n");
    let whole = place.sweep(&[&file]).ended_with(0);
    assert!(whole.out.contains("accumulate was skipped at batch 2"), "{}", whole.out);
    let part = place.sweep(&[&file, "--filter", "recompute"]).ended_with(0);
    assert!(!part.out.contains("accumulate") && !part.out.contains("again"), "{}", part.out);
    assert!(part.out.contains("base plain") && part.out.contains("recompute"), "{}", part.out);
    assert_eq!(place.table("tiny").iter().filter(|(strategy, _)| strategy == "accumulate").count(), 3);
}

#[test]
fn a_result_in_the_place_of_another_is_none() {
    let place = Place::new();
    let file = place.experiment("tiny", 1);
    place.sweep(&[&file, "--filter", "plain"]).ended_with(0);
    let first = place.results("tiny")[0].0.clone();
    let run = first.parent().and_then(|repeat| repeat.parent()).unwrap();
    let elsewhere = run.with_file_name("0123456789abcdef");
    fs::rename(run, &elsewhere).unwrap();
    let sweep = place.sweep(&[&file]).ended_with(2);
    let (misplaced, id) = (elsewhere.join("1/result.json"), run.file_name().unwrap().to_str().unwrap());
    let misplaced = misplaced.strip_prefix(place.path("")).unwrap().display().to_string();
    assert!(sweep.err.contains(&misplaced) && sweep.err.contains(id), "{}", sweep.err);
    fs::remove_dir_all(elsewhere).unwrap();

    // In its own place, it says that it is of another configuration.
    place.sweep(&[&file]).ended_with(0);
    let result = place.results("tiny")[0].0.clone();
    let mut row: serde_json::Value = serde_json::from_slice(&fs::read(&result).unwrap()).unwrap();
    row["configuration"] = "0123456789abcdef".into();
    fs::write(&result, row.to_string()).unwrap();
    let sweep = place.sweep(&[&file]).ended_with(2);
    let said = "result.json is the result of another configuration, 0123456789abcdef: remove ";
    assert!(sweep.err.contains(said), "{}", sweep.err);
    fs::remove_dir_all(result.parent().unwrap()).unwrap();
    place.sweep(&[&file]).ended_with(0);
}

#[test]
fn a_change_from_the_command_line_drops_no_rows() {
    let place = Place::new();
    let file = place.experiment("tiny", 2);
    let rows = |seed: &str| {
        let mut table = csv::Reader::from_path(place.path("results/tiny.csv")).unwrap();
        let column = table.headers().unwrap().iter().position(|name| name == "train.seed");
        let seed_of = |row: &csv::StringRecord| column.map_or("", |column| &row[column]).to_owned();
        table.records().filter(|row| seed_of(row.as_ref().unwrap()) == seed).count()
    };
    place.sweep(&[&file]).ended_with(0);
    assert_eq!(rows(""), 8);
    for seed in ["1", "2", "2"] {
        let set = format!("train.seed={seed}");
        let sweep = place.sweep(&[&file, "--set", &set, "--filter", "plain"]).ended_with(0);
        let others = if seed == "1" { 8 } else { 10 };
        let said = format!("wrote results/tiny.csv; --set kept its {others} other rows");
        assert!(sweep.out.contains(&said), "{}", sweep.out);
        assert_eq!((rows(""), rows(seed)), (8, 2));
    }
    assert_eq!(rows("1"), 2);

    // What runs as it did is the row that was there.
    let sweep = place.sweep(&[&file, "--set", "train.seed=0"]).ended_with(0);
    assert!(sweep.out.contains("kept its 4 other rows"), "{}", sweep.out);
    assert_eq!((rows(""), rows("0"), rows("1"), rows("2")), (8, 0, 2, 2));

    place.write("results/tiny.csv", "mine");
    let refused = place.sweep(&[&file, "--set", "train.seed=1"]).ended_with(2);
    assert!(
        refused.err.contains("results/tiny.csv") && refused.err.contains("move the file away"),
        "{}",
        refused.err
    );
    assert_eq!(fs::read(place.path("results/tiny.csv")).unwrap(), b"mine");
    // The experiment as it stands.
    place.sweep(&[&file]).ended_with(0);
    assert_eq!(rows(""), 8);
}

#[test]
fn repeats_are_interleaved() {
    let place = Place::new();
    let file = place.experiment("tiny", 1);
    let sweep = place.sweep(&[&file]).ended_with(0);
    let repeats: Vec<char> = sweep
        .err
        .lines()
        .filter_map(|line| line.split_once('#').and_then(|(_, rest)| rest.chars().next()))
        .collect();
    assert_eq!(repeats, ['1', '1', '1', '2', '2', '2'], "{}", sweep.err);
}

#[test]
fn a_dry_run_shows_the_grid_and_writes_nothing() {
    let place = Place::new();
    let file = place.experiment("tiny", 1);
    let grid = place.sweep(&[&file, "--dry-run"]).ended_with(0);
    assert!(grid.out.contains("same as") && grid.out.contains("6 to run"), "{}", grid.out);
    assert!(!place.path("results").exists());

    place.sweep(&[&file, "--filter", "pl*"]).ended_with(0);
    assert_eq!(place.results("tiny").len(), 2);
    let grid = place.sweep(&[&file, "--dry-run"]).ended_with(0);
    assert!(grid.out.contains("cached") && grid.out.contains("4 to run"), "{}", grid.out);
}

#[test]
fn an_interrupt_keeps_what_is_finished() {
    for signal in ["-INT", "-TERM"] {
        let place = Place::new();
        let file = place.experiment("slow", 1000);
        let child = place.start(&[&file]);
        wait_for("a first result", || !place.results("slow").is_empty());
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        let sweep = Sweep::of(child.wait_with_output().unwrap()).ended_with(130);
        assert!(sweep.err.contains("repeat the command to continue"), "{}", sweep.err);
        assert!(place.child().is_none());
        assert_eq!(place.private_folders("slow"), 0);
        assert!(place.table("slow").iter().any(|(_, status)| status == "ok"));
    }
}

#[test]
fn a_sweep_that_was_killed_is_finished_by_the_next() {
    let place = Place::new();
    let file = place.experiment("slow", 1000);
    let mut child = place.start(&[&file]);
    wait_for("a first result", || !place.results("slow").is_empty());
    wait_for("the next run", || place.child().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("its child to end", || place.child().is_none());
    let kept = place.results("slow");
    assert!(kept.len() < 6, "{kept:?}");

    place.sweep(&[&file]).ended_with(0);
    let all = place.results("slow");
    assert_eq!(all.len(), 6);
    assert!(kept.iter().all(|result| all.contains(result)), "what was done was done again");
    assert_eq!(place.private_folders("slow"), 0, "what was left behind is removed");
    assert_eq!(place.table("slow").len(), 8);
}

/// Two containers with one volume: neither sees the other's processes.
#[test]
fn a_sweep_elsewhere_takes_nothing_away_from_one_that_lives() {
    let unshare = ["-Ur", "-pf", "--mount-proc"];
    let allowed = Command::new("unshare").args(unshare).arg("true").output();
    assert!(
        allowed.as_ref().is_ok_and(|output| output.status.success()),
        "this test needs `unshare -Ur -pf --mount-proc`, which this machine refuses: {allowed:?}"
    );
    let place = Place::new();
    let file = place.experiment("slow", 2000);
    let living = place.start(&[&file, "--repeats", "1"]);
    wait_for("a first run", || place.child().is_some());
    let elsewhere = Command::new("unshare")
        .args(unshare)
        .args([env!("CARGO_BIN_EXE_runner"), "sweep", "--device", "cpu", &file])
        .args(["--repeats", "1", "--filter", "accumulate", "--timeout", "1ms"])
        .current_dir(place.path(""))
        .output()
        .unwrap();
    Sweep::of(elsewhere).ended_with(1);
    assert!(place.child().is_some(), "the sweep here ended before the one elsewhere");
    Sweep::of(living.wait_with_output().unwrap()).ended_with(0);
    assert_eq!(place.results("slow").len(), 3);
    assert_eq!(place.private_folders("slow"), 0);
}

#[test]
fn two_sweeps_at_once_both_end_well() {
    let place = Place::new();
    let file = place.experiment("tiny", 50);
    let children: Vec<Child> = (0..2).map(|_| place.start(&[&file])).collect();
    for child in children {
        Sweep::of(child.wait_with_output().unwrap()).ended_with(0);
    }
    assert_eq!(place.results("tiny").len(), 6);
    assert_eq!(place.private_folders("tiny"), 0);
    assert_eq!(place.table("tiny").len(), 8);
}

#[test]
fn a_run_that_takes_too_long_is_a_row_and_tried_again() {
    let place = Place::new();
    let file = place.experiment("slow", 100000);
    let sweep = place.sweep(&[&file, "--timeout", "300ms", "--repeats", "1"]).ended_with(1);
    assert!(sweep.err.contains("3 of 3 runs have no result"), "{}", sweep.err);
    let table = place.table("slow");
    assert!(table.len() == 4 && table.iter().all(|(_, status)| status == "timeout"), "{table:?}");
    let again = place.sweep(&[&file, "--dry-run", "--repeats", "1"]).ended_with(0);
    assert!(again.out.contains("3 to run"), "{}", again.out);
}

/// Nothing may have been written by a sweep whose input is wrong.
#[track_caller]
fn is_refused(place: &Place, args: &[&str], expected: &[&str]) {
    let sweep = place.sweep(args).ended_with(2);
    for text in expected {
        assert!(sweep.err.contains(text), "no `{text}` in: {}", sweep.err);
    }
    assert!(!place.path("results").exists());
}

#[test]
fn wrong_input_is_refused_before_anything_runs() {
    let place = Place::new();
    let good = place.experiment("good", 1);
    is_refused(&place, &[&good, "--filter", "x*"], &["no strategy matches --filter x*", "plain"]);
    is_refused(&place, &[&good, "--timeout", "5"], &["is not a duration"]);
    is_refused(&place, &[&good, "--memory", "5"], &["is not a size"]);
    is_refused(&place, &[&good, "--repeats", "0"], &["0 is not in 1.."]);

    // Two files of one name.
    fs::copy(place.path(&good), place.path("copy.toml")).unwrap();
    is_refused(&place, &[&good, "copy.toml"], &["the experiment in good.toml is also called `good`"]);

    // Every file's problems are told, and the good one is not run either.
    let short = place.changed("short", "context = 16", "context = 100000");
    let missing = place.changed("missing", "text.txt", "none.txt");
    is_refused(&place, &[&good, &missing, &short], &["none.txt`", "at least 100,001"]);
}

#[test]
fn data_that_cannot_be_used_is_blamed_on_its_key() {
    let place = Place::new();
    place.write("empty.txt", "");
    fs::create_dir(place.path("folder")).unwrap();
    let files = [
        place.changed("missing", "text.txt", "none.txt"),
        place.changed("no-match", "text.txt", "none/*.txt"),
        place.changed("a-folder", "text.txt", "folder"),
        place.changed("empty", "text.txt", "empty.txt"),
        place.changed("short", "context = 16", "context = 10000"),
        place.changed("split", "context = 16", "context = 1000"),
        place.changed("both", "context = 16", "context = 5000"),
    ];
    let mut errors = String::new();
    for file in &files {
        let text = fs::read_to_string(place.path(file)).unwrap();
        let evaluated = text.replace("[measure]", "[evaluation]\n[measure]");
        place.write(file, evaluated);
        errors.push_str(&place.sweep(&[file]).ended_with(2).err);
        errors.push('\n');
    }
    let folder = fs::canonicalize(place.path("")).unwrap();
    let errors = errors.replace(folder.to_str().unwrap(), "[folder]");
    insta::assert_snapshot!(errors);
}

#[test]
fn results_that_cannot_be_written_are_refused() {
    let place = Place::new();
    let file = place.experiment("tiny", 1);
    place.write("results-file", "");
    let sweep = place.sweep(&[&file, "--out", "results-file"]).ended_with(2);
    assert!(sweep.err.contains("cannot create the folder results-file"), "{}", sweep.err);
    assert_eq!(fs::read(place.path("results-file")).unwrap(), b"");
}

#[test]
fn a_result_that_makes_no_sense_is_named() {
    let place = Place::new();
    let file = place.experiment("tiny", 1);
    place.sweep(&[&file]).ended_with(0);
    let (broken, _) = place.results("tiny").remove(0);
    fs::write(&broken, "{").unwrap();
    let sweep = place.sweep(&[&file, "--repeats", "3"]).ended_with(2);
    let name = broken.strip_prefix(place.path("")).unwrap();
    assert!(sweep.err.contains(&format!("{} is not a result", name.display())), "{}", sweep.err);
    assert_eq!(place.results("tiny").len(), 6, "nothing was run");
    place.sweep(&[&file, "--fresh"]).ended_with(0);
}

#[test]
fn pipes_are_refused_and_not_waited_for() {
    let place = Place::new();
    let file = place.experiment("tiny", 1);
    place.sweep(&[&file]).ended_with(0);
    let result = place.results("tiny").remove(0).0;
    fs::remove_file(&result).unwrap();
    for pipe in [place.path("pipe"), result] {
        assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    }
    let commands: [&[&str]; 5] = [
        &["sweep", "--device", "cpu", &file],
        &["check", "pipe"],
        &["plan", "pipe"],
        &["plan", &file, "--target", "pipe"],
        &["compare", "pipe"],
    ];
    for command in commands {
        let mut child = piped(place.program(command));
        wait_for("a refusal", || child.try_wait().unwrap().is_some());
        let refused = Sweep::of(child.wait_with_output().unwrap()).ended_with(2);
        assert!(
            refused.err.contains("it is a pipe; only a file can be read"),
            "{command:?}: {}",
            refused.err
        );
    }
}

#[test]
fn a_table_that_cannot_be_written_is_found_before_anything_runs() {
    let place = Place::new();
    let file = place.experiment("tiny", 1);
    fs::create_dir_all(place.path("results/tiny.csv/in the way")).unwrap();
    let sweep = place.sweep(&[&file]).ended_with(2);
    assert!(sweep.err.contains("results/tiny.csv"), "{}", sweep.err);
    assert!(place.results("tiny").is_empty());
}

#[test]
fn digests_that_cannot_be_kept_are_named() {
    let place = Place::new();
    let file = place.experiment("tiny", 1);
    fs::create_dir_all(place.path("results/.digests.json")).unwrap();
    // Long ago, so that the digest is worth keeping; nobody can set when a file changed.
    std::thread::sleep(Duration::from_secs(3));
    let sweep = place.sweep(&[&file]).ended_with(1);
    assert!(sweep.err.contains("error: cannot write results/.digests.json: Is a directory"), "{}", sweep.err);
    assert!(place.results("tiny").is_empty());
}

#[test]
fn a_run_that_is_killed_is_a_row_and_the_others_go_on() {
    let place = Place::new();
    let file = place.experiment("slow", 1000);
    let sweep = place.start(&[&file, "--repeats", "1"]);
    wait_for("a child", || place.child().is_some());
    let child = place.child().unwrap();
    Command::new("kill").args(["-9", &child]).status().unwrap();
    let sweep = Sweep::of(sweep.wait_with_output().unwrap()).ended_with(1);
    assert!(sweep.err.contains("killed by signal 9; the system may have run out of memory"), "{}", sweep.err);
    assert!(sweep.err.contains("1 of 3 runs have no result"), "{}", sweep.err);
    let log = sweep.err.lines().find_map(|line| line.split_once("; see ")).unwrap().1;
    assert!(place.path(log).exists(), "{log}");
    let table = place.table("slow");
    assert_eq!(table.iter().filter(|(_, status)| status == "failed").count(), 1, "{table:?}");
    assert!(table.iter().any(|(_, status)| status == "ok"), "{table:?}");
}

/// Their ends are then nothing that a parent could wait for.
#[test]
fn a_sweep_hears_of_its_children_whatever_it_was_told_to_ignore() {
    let place = Place::new();
    let file = place.experiment("tiny", 1);
    let mut deaf = Command::new("env");
    deaf.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_runner"), "sweep", "--device", "cpu", &file]);
    deaf.current_dir(place.path(""));
    let mut sweep = piped(deaf);
    wait_for("the sweep to end", || sweep.try_wait().unwrap().is_some());
    Sweep::of(sweep.wait_with_output().unwrap()).ended_with(0);
    assert_eq!(place.results("tiny").len(), 6);
}

#[test]
fn data_that_changes_during_a_sweep_is_not_measured_under_the_old_name() {
    let place = Place::new();
    let file = place.experiment("slow", 1000);
    let sweep = place.start(&[&file, "--repeats", "1"]);
    wait_for("a first result", || !place.results("slow").is_empty());
    let text = fs::read_to_string(place.path("text.txt")).unwrap();
    // At once: a run that begins meanwhile must not meet half a file.
    place.write("new.txt", text.replace('1', "x"));
    fs::rename(place.path("new.txt"), place.path("text.txt")).unwrap();
    let sweep = Sweep::of(sweep.wait_with_output().unwrap()).ended_with(1);
    assert!(sweep.err.contains("changed while the sweep ran; sweep again"), "{}", sweep.err);
    // As it is advised to.
    place.sweep(&[&file, "--repeats", "1"]).ended_with(0);
    assert!(place.table("slow").iter().all(|(_, status)| status == "ok"), "{:?}", place.table("slow"));
}

#[test]
fn a_disk_without_room_is_refused() {
    let place = Place::new();
    let file = place.experiment("tiny", 1);
    fs::create_dir(place.path("results")).unwrap();
    let mount =
        "mount -t tmpfs -o size=1m tmpfs results && echo mounted && exec \"$0\" sweep --device cpu \"$1\"";
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", mount, env!("CARGO_BIN_EXE_runner"), &file])
        .current_dir(place.path(""))
        .output();
    let output = output.ok().filter(|output| output.stdout.starts_with(b"mounted"));
    let Some(output) = output else {
        assert!(
            std::env::var_os("CI").is_none(),
            "this test needs `unshare` and `mount` to make a small disk"
        );
        return;
    };
    let sweep = Sweep::of(output).ended_with(2);
    assert!(sweep.err.contains("no room for results in results/tiny"), "{}", sweep.err);
}

#[test]
fn a_target_that_cannot_be_is_refused() {
    let place = Place::new();
    let file = place.experiment("tiny", 1);
    let target = |threads: usize| {
        let threads = format!("threads = {threads}");
        place.write("laptop.toml", PROCESSOR.replace("threads = 2", &threads));
        Sweep::of(place.program(&["plan", &file, "--target", "laptop.toml"]).output().unwrap())
    };
    target(4).ended_with(0);
    let refused = target(0).ended_with(2);
    let told = "error: `threads` must be a whole number from 1 to 65536, not 0\n --> laptop.toml:4:11\n";
    assert!(refused.err.starts_with(told), "{}", refused.err);
}
