//! `runner sweep`: exit codes, messages and the files that it leaves.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use results::Status;

use crate::sweeps::Sweep;
use crate::test_folder::target::PROCESSOR;
use crate::test_folder::{TestFolder, piped, wait_for};

#[test]
fn sweep_measures_each_run_once() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 2);
    let sweep = dir.sweep(&[&file]).ended_with(0);
    assert!(sweep.out.starts_with("device: "), "{}", sweep.out);
    assert!(sweep.out.contains("wrote results/tiny.csv"), "{}", sweep.out);
    let first = dir.results("tiny");
    assert_eq!(first.len(), 6, "three runs, twice: {first:?}");
    assert_eq!(dir.table("tiny").len(), 8, "four labels, twice");
    assert!(dir.table("tiny").iter().all(|(_, status)| status == "ok"));
    for name in ["run.toml", "target.toml", "data.digest", "log.txt"] {
        assert!(first[0].0.with_file_name(name).exists(), "{name}");
    }

    let again = dir.sweep(&[&file]).ended_with(0);
    assert!(again.err.contains("6 of 6 runs have a result already"), "{}", again.err);
    assert_eq!(dir.results("tiny"), first, "nothing was measured again");

    let more = dir.sweep(&[&file, "--repeats", "3"]).ended_with(0);
    assert!(more.err.contains("[9/9]"), "{}", more.err);
    assert_eq!(dir.results("tiny").len(), 9);

    dir.sweep(&[&file, "--fresh"]).ended_with(0);
    let fresh = dir.results("tiny");
    assert_eq!(fresh.len(), 6);
    assert!(fresh.iter().all(|result| !first.contains(result)));
}

/// The table keeps all rows; the printed comparison has the filtered strategies and the baseline.
#[test]
fn filter_restricts_printed_strategies() {
    let dir = TestFolder::new();
    let file = dir.changed("tiny", "accumulate = 2", "accumulate = 3");
    let text = fs::read_to_string(dir.path(&file)).unwrap();
    dir.write(&file, text + "\n[sweep.grid]\n\"train.batch_size\" = [2, 4]\n");
    let whole = dir.sweep(&[&file]).ended_with(0);
    assert!(whole.out.contains("accumulate was skipped at batch 2"), "{}", whole.out);
    let part = dir.sweep(&[&file, "--filter", "recompute"]).ended_with(0);
    assert!(!part.out.contains("accumulate") && !part.out.contains("again"), "{}", part.out);
    assert!(part.out.contains("base plain") && part.out.contains("recompute"), "{}", part.out);
    assert_eq!(dir.table("tiny").iter().filter(|(strategy, _)| strategy == "accumulate").count(), 3);
}

#[test]
fn misplaced_result_is_rejected() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    dir.sweep(&[&file, "--filter", "plain"]).ended_with(0);
    let first = dir.results("tiny")[0].0.clone();
    let run = first.parent().and_then(|repeat| repeat.parent()).unwrap();
    // Where no sweep looks for it.
    fs::create_dir(dir.path("results/tiny/__")).unwrap();
    let outside = dir.path("results/tiny/__").join(run.file_name().unwrap());
    fs::rename(run, &outside).unwrap();
    let sweep = dir.sweep(&[&file]).ended_with(2);
    let shown = |path: &Path| path.strip_prefix(dir.path("")).unwrap().display().to_string();
    let moved =
        format!("{} holds results where no sweep looks for them: move it to {}", shown(&outside), shown(run));
    assert!(sweep.err.contains(&moved), "{}", sweep.err);

    // Where a sweep looks for another.
    fs::create_dir(dir.path("results/tiny/01")).unwrap();
    let elsewhere = dir.path("results/tiny/01/0123456789abcdef");
    fs::rename(&outside, &elsewhere).unwrap();
    let sweep = dir.sweep(&[&file]).ended_with(2);
    let (misplaced, id) = (elsewhere.join("1/result.json"), run.file_name().unwrap().to_str().unwrap());
    assert!(sweep.err.contains(&shown(&misplaced)) && sweep.err.contains(id), "{}", sweep.err);
    fs::remove_dir_all(elsewhere).unwrap();

    // In the right folder, but with the id of another configuration in it.
    dir.sweep(&[&file]).ended_with(0);
    let result = dir.results("tiny")[0].0.clone();
    let mut row: serde_json::Value = serde_json::from_slice(&fs::read(&result).unwrap()).unwrap();
    row["configuration"] = "0123456789abcdef".into();
    fs::write(&result, row.to_string()).unwrap();
    let sweep = dir.sweep(&[&file]).ended_with(2);
    let said = "result.json is the result of another configuration, 0123456789abcdef: remove ";
    assert!(sweep.err.contains(said), "{}", sweep.err);
    fs::remove_dir_all(result.parent().unwrap()).unwrap();
    dir.sweep(&[&file]).ended_with(0);
}

#[test]
fn set_keeps_other_rows() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 2);
    let rows = |seed: &str| {
        let mut table = csv::Reader::from_path(dir.path("results/tiny.csv")).unwrap();
        let column = table.headers().unwrap().iter().position(|name| name == "train.seed");
        let seed_of = |row: &csv::StringRecord| column.map_or("", |column| &row[column]).to_owned();
        table.records().filter(|row| seed_of(row.as_ref().unwrap()) == seed).count()
    };
    dir.sweep(&[&file]).ended_with(0);
    assert_eq!(rows(""), 8);
    for seed in ["1", "2", "2"] {
        let set = format!("train.seed={seed}");
        let sweep = dir.sweep(&[&file, "--set", &set, "--filter", "plain"]).ended_with(0);
        let others = if seed == "1" { 8 } else { 10 };
        let said = format!("wrote results/tiny.csv; --set kept its {others} other rows");
        assert!(sweep.out.contains(&said), "{}", sweep.out);
        assert_eq!((rows(""), rows(seed)), (8, 2));
    }
    assert_eq!(rows("1"), 2);

    // A run with an unchanged configuration keeps its row.
    let sweep = dir.sweep(&[&file, "--set", "train.seed=0"]).ended_with(0);
    assert!(sweep.out.contains("kept its 4 other rows"), "{}", sweep.out);
    assert_eq!((rows(""), rows("0"), rows("1"), rows("2")), (8, 0, 2, 2));

    dir.write("results/tiny.csv", "mine");
    let refused = dir.sweep(&[&file, "--set", "train.seed=1"]).ended_with(2);
    assert!(
        refused.err.contains("results/tiny.csv") && refused.err.contains("move the file away"),
        "{}",
        refused.err
    );
    assert_eq!(fs::read(dir.path("results/tiny.csv")).unwrap(), b"mine");
    // The experiment without changes.
    dir.sweep(&[&file]).ended_with(0);
    assert_eq!(rows(""), 8);
}

/// The rows of a table: strategy and learning rate.
fn labels(dir: &TestFolder, table: &str) -> Vec<(String, String)> {
    let rate =
        |row: results::Row| row.settings.split("; ").find(|key| key.starts_with("lr")).map(str::to_owned);
    dir.rows(table).into_iter().map(|row| (row.strategy.clone(), rate(row).unwrap_or_default())).collect()
}

#[test]
fn results_of_an_edited_file_are_kept_and_told() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 2);
    dir.sweep(&[&file, "--repeats", "1"]).ended_with(0);
    assert!(!dir.path("results/tiny/other.csv").exists());
    let before = labels(&dir, "results/tiny.csv");

    let text = fs::read_to_string(dir.path(&file)).unwrap();
    let edited =
        text.replace("lr = 1e-3", "lr = 2e-3").replace("[strategies.accumulate]", "[strategies.two]");
    assert_ne!(text, edited);
    dir.write(&file, edited);
    let changed =
        "Changed: train.optimizer.adamw.lr = 0.001, now 0.002; strategy accumulate is not in this file.";
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let dry = flat(&dir.sweep(&[&file, "--repeats", "1", "--dry-run"]).ended_with(0).out);
    let said = "3 results of tiny are of other versions of tiny.toml or of other files";
    assert!(dry.contains(said) && dry.contains(changed), "{dry}");
    assert!(!dir.path("results/tiny/other.csv").exists(), "a dry run writes nothing");

    let sweep = flat(&dir.sweep(&[&file, "--repeats", "1"]).ended_with(0).out);
    let place = "results/tiny/other.csv has them.";
    assert!(sweep.contains(said) && sweep.contains(place) && sweep.contains(changed), "{sweep}");
    let kept: Vec<_> = before.iter().filter(|(strategy, _)| strategy != "again").cloned().collect();
    assert_eq!(labels(&dir, "results/tiny/other.csv"), kept);
    assert_eq!(labels(&dir, "results/tiny.csv").len(), 4);

    // Once the file is as before, its rows are back, and the others' are kept.
    dir.write(&file, text);
    let sweep = dir.sweep(&[&file, "--repeats", "1"]).ended_with(0);
    assert!(sweep.err.contains("3 of 3 runs have a result already"), "{}", sweep.err);
    assert_eq!(labels(&dir, "results/tiny.csv"), before);
    assert!(labels(&dir, "results/tiny/other.csv").iter().all(|(_, rate)| rate == "lr = 0.002"));
}

/// Another file of the same name, `--set`, and a table whose results are elsewhere.
#[test]
fn every_measured_row_stays_in_a_table() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let all = |dir: &TestFolder| {
        let rows = |table| if dir.path(table).exists() { dir.rows(table).len() } else { 0 };
        (rows("results/tiny.csv"), rows("results/tiny/other.csv"))
    };
    dir.sweep(&[&file, "--repeats", "1", "--filter", "plain"]).ended_with(0);
    let text = fs::read_to_string(dir.path(&file)).unwrap();
    dir.write("other.toml", text.replace("layers = 1", "layers = 2"));
    dir.sweep(&["other.toml", "--repeats", "1", "--filter", "plain"]).ended_with(0);
    assert_eq!(all(&dir), (1, 1));
    dir.sweep(&["other.toml", "--repeats", "1", "--filter", "plain", "--set", "train.seed=1"]).ended_with(0);
    assert_eq!(all(&dir), (2, 1));
    dir.sweep(&["other.toml", "--repeats", "1", "--filter", "plain"]).ended_with(0);
    assert_eq!(all(&dir), (1, 2));

    // Only tables, as they come from another machine.
    fs::remove_file(dir.path("results/tiny/other.csv")).unwrap();
    for run in dir.find("results/tiny/[0-9a-f][0-9a-f]") {
        fs::remove_dir_all(run).unwrap();
    }
    for _ in 0..2 {
        dir.sweep(&[&file, "--repeats", "1", "--filter", "plain"]).ended_with(0);
        assert_eq!(all(&dir), (1, 1));
    }
    // Rows that the same file measures again are not.
    dir.sweep(&[&file, "--repeats", "1", "--filter", "plain", "--fresh"]).ended_with(0);
    assert_eq!(all(&dir), (1, 1));
}

/// An edited file's two tables: rows are labelled by the keys that differ, which `--by` takes; else by their tables.
#[test]
fn versions_of_a_file_are_labelled_by_keys() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let sweep = |args: &[&str]| dir.sweep(&[&[file.as_str(), "--repeats", "1"], args].concat()).ended_with(0);
    let compared = |args: &[&str]| {
        let output = dir.program(&[&["compare"], args].concat()).output().unwrap();
        Sweep::of(output).ended_with(0).out
    };
    sweep(&[]);
    fs::copy(dir.path("results/tiny.csv"), dir.path("before.csv")).unwrap();
    let text = fs::read_to_string(dir.path(&file)).unwrap();
    dir.write(&file, text.replace("lr = 1e-3", "lr = 2e-3"));
    sweep(&[]);
    for tables in [["before.csv", "results/tiny.csv"], ["results/tiny.csv", "results/tiny/other.csv"]] {
        let csv = compared(&[tables.as_slice(), &["--format", "csv"]].concat());
        for label in ["plain/lr=0.001", "plain/lr=0.002", "recompute/lr=0.001", "accumulate/lr=0.002"] {
            assert!(csv.contains(&format!(",{label},")), "{label} in {csv}");
        }
        assert!(!csv.contains('['), "no run ids: {csv}");
        let by = compared(&[tables.as_slice(), &["--by", "lr"]].concat());
        assert!(by.contains("lr 0.001") && by.contains("lr 0.002") && by.contains("\nplain\n"), "{by}");
    }

    // The keys are equal, but not the data.
    fs::copy(dir.path("results/tiny.csv"), dir.path("before.csv")).unwrap();
    dir.write("text.txt", "another text. ".repeat(500));
    sweep(&[]);
    let csv = compared(&["before.csv", "results/tiny.csv", "--format", "csv"]);
    assert!(csv.contains(",plain (before),") && csv.contains(",recompute (tiny),"), "{csv}");
    let dry = sweep(&["--set", "train.seed=1", "--dry-run"]).out;
    assert!(dry.contains("train.optimizer.adamw.lr"), "{dry}");
}

#[test]
fn repeats_are_interleaved() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let sweep = dir.sweep(&[&file]).ended_with(0);
    let repeats: Vec<char> = sweep
        .err
        .lines()
        .filter_map(|line| line.split_once('#').and_then(|(_, rest)| rest.chars().next()))
        .collect();
    assert_eq!(repeats, ['1', '1', '1', '2', '2', '2'], "{}", sweep.err);
}

#[test]
fn dry_run_prints_grid_and_writes_nothing() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let grid = dir.sweep(&[&file, "--dry-run"]).ended_with(0);
    assert!(grid.out.contains("same as") && grid.out.contains("6 to run"), "{}", grid.out);
    assert!(!dir.path("results").exists());

    dir.sweep(&[&file, "--filter", "pl*"]).ended_with(0);
    assert_eq!(dir.results("tiny").len(), 2);
    let large = ["--set", "train.batch_size=1000000", "--memory", "900TiB", "--dry-run"];
    let grid = dir.sweep(&[&[&*file], &large[..]].concat()).ended_with(0);
    assert!(grid.out.contains("to do, but only ") && grid.out.contains("B are free"), "{}", grid.out);
    let grid = dir.sweep(&[&file, "--dry-run"]).ended_with(0);
    assert!(!grid.out.contains("are free"), "{}", grid.out);
    assert!(grid.out.contains("cached") && grid.out.contains("4 to run"), "{}", grid.out);
}

/// The parts that `--only --dry-run` shows are those that are executed.
#[test]
fn dry_run_shows_the_part() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let dry = |part: &str| dir.sweep(&[&file, "--only", part, "--dry-run"]).ended_with(0).out;
    let left = |grid: &str| -> usize {
        let line = grid.lines().find(|line| line.ends_with(" to run")).unwrap();
        line.split(' ').next().unwrap().parse().unwrap()
    };
    let grids = ["1/4", "2/4", "3/4", "4/4"].map(dry);
    assert_eq!(grids.iter().map(|grid| left(grid)).sum::<usize>(), 6, "{grids:?}");
    assert!(grids.iter().all(|grid| (1..=2).contains(&left(grid)) && grid.contains("in another part")));
    assert!(grids[1].contains("(tiny.toml, part 2/4)"), "{}", grids[1]);

    dir.sweep(&[&file, "--only", "2/4"]).ended_with(0);
    assert_eq!(dir.results("tiny").len(), left(&grids[1]));
    assert_eq!((left(&dry("2/4")), left(&dry("1/4"))), (0, left(&grids[0])));
    assert_eq!(
        dry("1/1"),
        dir.sweep(&[&file, "--dry-run"]).ended_with(0).out.replace("(tiny.toml)", "(tiny.toml, part 1/1)")
    );
}

#[test]
fn interrupt_keeps_finished_runs() {
    for signal in ["-INT", "-TERM", "-USR2"] {
        let dir = TestFolder::new();
        let file = dir.experiment("slow", 1000);
        let child = dir.start(&[&file]);
        wait_for("a first result", || !dir.results("slow").is_empty());
        wait_for("the next run", || dir.child().is_some());
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        let sweep = Sweep::of(child.wait_with_output().unwrap()).ended_with(130);
        assert!(sweep.err.contains("repeat the command to continue"), "{}", sweep.err);
        assert!(dir.child().is_none());
        assert_eq!(dir.private_folders("slow"), 0);
        assert!(dir.table("slow").iter().any(|(_, status)| status == "ok"));
        let message = dir.rows("results/slow.csv").into_iter().find(|row| row.status == Status::Interrupted);
        let is_limit = message.is_some_and(|row| row.message.contains("time limit"));
        assert_eq!(is_limit, signal == "-USR2");
    }
}

#[test]
fn next_sweep_finishes_killed_sweep() {
    let dir = TestFolder::new();
    let file = dir.experiment("slow", 1000);
    let mut child = dir.start(&[&file]);
    wait_for("a first result", || !dir.results("slow").is_empty());
    wait_for("the next run", || dir.child().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("its child to end", || dir.child().is_none());
    let kept = dir.results("slow");
    assert!(kept.len() < 6, "{kept:?}");

    dir.sweep(&[&file]).ended_with(0);
    let all = dir.results("slow");
    assert_eq!(all.len(), 6);
    assert!(kept.iter().all(|result| all.contains(result)), "finished runs were measured again");
    assert_eq!(dir.private_folders("slow"), 0, "what was left behind is removed");
    assert_eq!(dir.table("slow").len(), 8);
}

/// Two containers that share a volume: neither sees the other's processes.
#[test]
fn sweep_in_other_container_keeps_live_runs() {
    let unshare = ["-Ur", "-pf", "--mount-proc"];
    let allowed = Command::new("unshare").args(unshare).arg("true").output();
    assert!(
        allowed.as_ref().is_ok_and(|output| output.status.success()),
        "this test needs `unshare -Ur -pf --mount-proc`, which this machine refuses: {allowed:?}"
    );
    let dir = TestFolder::new();
    let file = dir.experiment("slow", 2000);
    let living = dir.start(&[&file, "--repeats", "1"]);
    wait_for("a first run", || dir.child().is_some());
    let elsewhere = Command::new("unshare")
        .args(unshare)
        .args([env!("CARGO_BIN_EXE_runner"), "sweep", "--device", "cpu", &file])
        .args(["--repeats", "1", "--filter", "accumulate", "--timeout", "1ms"])
        .current_dir(dir.path(""))
        .output()
        .unwrap();
    Sweep::of(elsewhere).ended_with(1);
    assert!(dir.child().is_some(), "the sweep here ended before the one elsewhere");
    Sweep::of(living.wait_with_output().unwrap()).ended_with(0);
    assert_eq!(dir.results("slow").len(), 3);
    assert_eq!(dir.private_folders("slow"), 0);
}

#[test]
fn concurrent_sweeps_both_succeed() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 50);
    let children: Vec<Child> = (0..2).map(|_| dir.start(&[&file])).collect();
    for child in children {
        Sweep::of(child.wait_with_output().unwrap()).ended_with(0);
    }
    assert_eq!(dir.results("tiny").len(), 6);
    assert_eq!(dir.private_folders("tiny"), 0);
    assert_eq!(dir.table("tiny").len(), 8);
}

#[test]
fn timeout_is_a_row_and_is_retried() {
    let dir = TestFolder::new();
    let file = dir.experiment("slow", 100000);
    let sweep = dir.sweep(&[&file, "--timeout", "300ms", "--repeats", "1"]).ended_with(1);
    assert!(sweep.err.contains("3 of 3 runs have no result"), "{}", sweep.err);
    let table = dir.table("slow");
    assert!(table.len() == 4 && table.iter().all(|(_, status)| status == "timeout"), "{table:?}");
    let again = dir.sweep(&[&file, "--dry-run", "--repeats", "1"]).ended_with(0);
    assert!(again.out.contains("3 to run"), "{}", again.out);
}

/// Asserts that a sweep exits with code 2 and these messages, and writes nothing.
#[track_caller]
fn is_refused(dir: &TestFolder, args: &[&str], expected: &[&str]) {
    let sweep = dir.sweep(args).ended_with(2);
    for text in expected {
        assert!(sweep.err.contains(text), "no `{text}` in: {}", sweep.err);
    }
    assert!(!dir.path("results").exists());
}

#[test]
fn wrong_input_is_refused_before_any_run() {
    let dir = TestFolder::new();
    let good = dir.experiment("good", 1);
    is_refused(&dir, &[&good, "--filter", "x*"], &["no strategy matches --filter x*", "plain"]);
    is_refused(&dir, &[&good, "--timeout", "5"], &["is not a duration"]);
    is_refused(&dir, &[&good, "--memory", "5"], &["is not a size"]);
    is_refused(&dir, &[&good, "--repeats", "0"], &["0 is not in 1.."]);

    // Two files with the same experiment name.
    fs::copy(dir.path(&good), dir.path("copy.toml")).unwrap();
    is_refused(&dir, &[&good, "copy.toml"], &["the experiment in good.toml is also called `good`"]);

    // The problems of all files are reported, and the good one is not run either.
    let short = dir.changed("short", "context = 16", "context = 100000");
    let missing = dir.changed("missing", "text.txt", "none.txt");
    is_refused(&dir, &[&good, &missing, &short], &["none.txt`", "at least 100,001"]);
}

#[test]
fn unusable_data_error_points_at_key() {
    let dir = TestFolder::new();
    dir.write("empty.txt", "");
    fs::create_dir(dir.path("folder")).unwrap();
    let files = [
        dir.changed("missing", "text.txt", "none.txt"),
        dir.changed("no-match", "text.txt", "none/*.txt"),
        dir.changed("a-folder", "text.txt", "folder"),
        dir.changed("empty", "text.txt", "empty.txt"),
        dir.changed("short", "context = 16", "context = 10000"),
        dir.changed("split", "context = 16", "context = 1000"),
        dir.changed("both", "context = 16", "context = 5000"),
    ];
    let mut errors = String::new();
    for file in &files {
        let text = fs::read_to_string(dir.path(file)).unwrap();
        let evaluated = text.replace("[measure]", "[evaluation]\n[measure]");
        dir.write(file, evaluated);
        errors.push_str(&dir.sweep(&[file]).ended_with(2).err);
        errors.push('\n');
    }
    let folder = fs::canonicalize(dir.path("")).unwrap();
    let errors = errors.replace(folder.to_str().unwrap(), "[folder]");
    insta::assert_snapshot!(errors);
}

#[test]
fn unwritable_results_folder_is_refused() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    dir.write("results-file", "");
    let sweep = dir.sweep(&[&file, "--out", "results-file"]).ended_with(2);
    assert!(sweep.err.contains("cannot create the folder results-file"), "{}", sweep.err);
    assert_eq!(fs::read(dir.path("results-file")).unwrap(), b"");
}

#[test]
fn invalid_result_file_is_reported() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    dir.sweep(&[&file]).ended_with(0);
    let (broken, _) = dir.results("tiny").remove(0);
    fs::write(&broken, "{").unwrap();
    let sweep = dir.sweep(&[&file, "--repeats", "3"]).ended_with(2);
    let name = broken.strip_prefix(dir.path("")).unwrap();
    assert!(sweep.err.contains(&format!("{} is not a result", name.display())), "{}", sweep.err);
    assert_eq!(dir.results("tiny").len(), 6, "nothing was run");
    dir.sweep(&[&file, "--fresh"]).ended_with(0);
}

#[test]
fn pipes_are_refused_without_waiting() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    dir.sweep(&[&file]).ended_with(0);
    let result = dir.results("tiny").remove(0).0;
    fs::remove_file(&result).unwrap();
    for pipe in [dir.path("pipe"), result] {
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
        let mut child = piped(dir.program(command));
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
fn unwritable_table_is_refused_before_any_run() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    fs::create_dir_all(dir.path("results/tiny.csv/in the way")).unwrap();
    let sweep = dir.sweep(&[&file]).ended_with(2);
    assert!(sweep.err.contains("results/tiny.csv"), "{}", sweep.err);
    assert!(dir.results("tiny").is_empty());
}

#[test]
fn unwritable_digest_cache_is_reported() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    fs::create_dir_all(dir.path("results/.digests.json")).unwrap();
    // Only digests of files unchanged for some seconds are cached; the change time of a file cannot be set.
    std::thread::sleep(Duration::from_secs(3));
    let sweep = dir.sweep(&[&file]).ended_with(1);
    assert!(sweep.err.contains("error: cannot write results/.digests.json: Is a directory"), "{}", sweep.err);
    assert!(dir.results("tiny").is_empty());
}

#[test]
fn killed_run_is_a_row_and_others_continue() {
    let dir = TestFolder::new();
    let file = dir.experiment("slow", 1000);
    let sweep = dir.start(&[&file, "--repeats", "1"]);
    wait_for("a child", || dir.child().is_some());
    let child = dir.child().unwrap();
    Command::new("kill").args(["-9", &child]).status().unwrap();
    let sweep = Sweep::of(sweep.wait_with_output().unwrap()).ended_with(1);
    assert!(sweep.err.contains("killed by signal 9; the system may have run out of memory"), "{}", sweep.err);
    assert!(sweep.err.contains("1 of 3 runs have no result"), "{}", sweep.err);
    let log = sweep.err.lines().find_map(|line| line.split_once("; see ")).unwrap().1;
    assert!(dir.path(log).exists(), "{log}");
    let table = dir.table("slow");
    assert_eq!(table.iter().filter(|(_, status)| status == "failed").count(), 1, "{table:?}");
    assert!(table.iter().any(|(_, status)| status == "ok"), "{table:?}");
}

/// With SIGCHLD ignored, a parent cannot wait for its children.
#[test]
fn sweep_works_with_sigchld_ignored() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let mut deaf = Command::new("env");
    deaf.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_runner"), "sweep", "--device", "cpu", &file]);
    deaf.current_dir(dir.path(""));
    let mut sweep = piped(deaf);
    wait_for("the sweep to end", || sweep.try_wait().unwrap().is_some());
    Sweep::of(sweep.wait_with_output().unwrap()).ended_with(0);
    assert_eq!(dir.results("tiny").len(), 6);
}

#[test]
fn data_changed_during_sweep_is_an_error() {
    let dir = TestFolder::new();
    let file = dir.experiment("slow", 1000);
    let sweep = dir.start(&[&file, "--repeats", "1"]);
    wait_for("a first result", || !dir.results("slow").is_empty());
    let text = fs::read_to_string(dir.path("text.txt")).unwrap();
    // Replace atomically: a run that starts meanwhile must not read a partial file.
    dir.write("new.txt", text.replace('1', "x"));
    fs::rename(dir.path("new.txt"), dir.path("text.txt")).unwrap();
    let sweep = Sweep::of(sweep.wait_with_output().unwrap()).ended_with(1);
    assert!(sweep.err.contains("changed while the sweep ran; sweep again"), "{}", sweep.err);
    // Sweep again, as the message suggests.
    dir.sweep(&[&file, "--repeats", "1"]).ended_with(0);
    assert!(dir.table("slow").iter().all(|(_, status)| status == "ok"), "{:?}", dir.table("slow"));
}

#[test]
fn full_disk_is_refused() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    fs::create_dir(dir.path("results")).unwrap();
    let mount =
        "mount -t tmpfs -o size=1m tmpfs results && echo mounted && exec \"$0\" sweep --device cpu \"$1\"";
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", mount, env!("CARGO_BIN_EXE_runner"), &file])
        .current_dir(dir.path(""))
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
fn invalid_target_is_refused() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let target = |threads: usize| {
        let threads = format!("threads = {threads}");
        dir.write("laptop.toml", PROCESSOR.replace("threads = 2", &threads));
        Sweep::of(dir.program(&["plan", &file, "--target", "laptop.toml"]).output().unwrap())
    };
    target(4).ended_with(0);
    let refused = target(0).ended_with(2);
    let told = "error: `threads` must be a whole number from 1 to 65536, not 0\n --> laptop.toml:4:11\n";
    assert!(refused.err.starts_with(told), "{}", refused.err);
}
