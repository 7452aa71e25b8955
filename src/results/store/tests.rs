use std::io::Write;
use std::process::Command;

use super::*;
use crate::Status;
use base::temporary::TemporaryFile;
use base::units::Bytes;
use device::{DeviceKind, Target};
use plan::PlannedRun;
use spec::*;

fn row(run_id: &str, repeat: usize, status: Status) -> Row {
    let row = serde_json::json!({
        "experiment": "test", "run_id": run_id, "strategy": "fp32", "repeat": repeat, "status": status,
        "device": "cpu", "model": "transformer", "precision": "fp32", "effects": "", "no_effect": "",
        "message": "", "version": "0", "limited": false, "digest": "", "configuration": run_id,
    });
    serde_json::from_value(row).unwrap()
}

fn store(out: &Path) -> Store {
    Store::open(out, "test").unwrap()
}

fn commit(store: &mut Store, row: &Row) -> Committed {
    let private = store.begin(&row.run_id, row.repeat).unwrap();
    private.log().write_all(row.message.as_bytes()).unwrap();
    store.commit(private, row).unwrap()
}

#[test]
fn committed_result_is_found_by_next_sweep() {
    let out = tempfile::tempdir().unwrap();
    let mut first = store(out.path());
    assert_eq!(first.finished("a", 1).unwrap(), None);
    assert_eq!(commit(&mut first, &row("a", 1, Status::Ok)), Committed::Ours);

    let mut next = store(out.path());
    assert_eq!(next.finished("a", 1).unwrap().unwrap(), row("a", 1, Status::Ok));
    assert_eq!(next.finished("a", 2).unwrap(), None);
    assert!(next.repeat_folder("a", 1).join("log.txt").exists());
    assert_eq!(next.csv(), out.path().join("test.csv"));
}

#[test]
fn only_final_results_count_as_finished() {
    let out = tempfile::tempdir().unwrap();
    let mut store = store(out.path());
    for status in [Status::Failed, Status::Timeout, Status::Interrupted] {
        assert_eq!(commit(&mut store, &row("a", 1, status)), Committed::Ours);
        assert_eq!(store.finished("a", 1).unwrap(), None);
    }
    for (repeat, status) in [Status::Oom, Status::Diverged, Status::Skipped].into_iter().enumerate() {
        commit(&mut store, &row("b", repeat, status));
        assert!(store.finished("b", repeat).unwrap().is_some());
    }
}

#[test]
fn first_final_result_is_kept() {
    let out = tempfile::tempdir().unwrap();
    let mut store = store(out.path());
    commit(&mut store, &row("a", 1, Status::Failed));
    let first = Row { message: "first".into(), ..row("a", 1, Status::Ok) };
    assert_eq!(commit(&mut store, &first), Committed::Ours);
    let second = Row { message: "second".into(), ..row("a", 1, Status::Ok) };
    assert_eq!(commit(&mut store, &second), Committed::Theirs);
    assert_eq!(commit(&mut store, &row("a", 1, Status::Failed)), Committed::Theirs);
    assert_eq!(store.finished("a", 1).unwrap().unwrap().message, "first");
    assert_eq!(private::names(&out.path().join("test/a/a")).unwrap(), ["1"], "nothing is left behind");
}

#[test]
fn concurrent_sweeps_commit_each_repeat_once() {
    let out = tempfile::tempdir().unwrap();
    let sweep = |name: usize| {
        let mut store = store(out.path());
        let mut ours = 0;
        for repeat in 0..100 {
            commit(&mut store, &row("a", repeat, Status::Failed));
            let row = Row { message: name.to_string(), ..row("a", repeat, Status::Ok) };
            ours += usize::from(commit(&mut store, &row) == Committed::Ours);
            assert!(store.finished("a", repeat).unwrap().is_some());
        }
        ours
    };
    let ours: usize = std::thread::scope(|scope| {
        let others: Vec<_> = (0..4).map(|name| scope.spawn(move || sweep(name))).collect();
        others.into_iter().map(|other| other.join().unwrap()).sum()
    });
    assert!(ours >= 100, "each repeat has a winner: {ours}");
    let mut names = private::names(&out.path().join("test/a/a")).unwrap();
    names.sort_by_key(|name| name.parse::<usize>().unwrap());
    assert_eq!(names, (0..100).map(|repeat| repeat.to_string()).collect::<Vec<_>>());
}

#[test]
fn dropped_private_folder_is_removed() {
    let out = tempfile::tempdir().unwrap();
    let store = store(out.path());
    let private = store.begin("a", 1).unwrap();
    private.write(RESULT_FILE, b"{").unwrap();
    drop(private);
    assert!(!out.path().join("test/a").exists());
}

#[test]
fn leftovers_of_killed_sweep_are_removed_by_next_sweep() {
    let out = tempfile::tempdir().unwrap();
    let run = out.path().join("test/a/a");
    let first = store(out.path());
    let (killed, alive) = (first.begin("a", 1).unwrap(), first.begin("a", 2).unwrap());
    for private in [&killed, &alive] {
        private.write(RESULT_FILE, b"{ half a resu").unwrap();
    }
    let stale = killed.path().to_path_buf();
    killed.log().unlock().unwrap();
    std::mem::forget(killed);
    let table = TemporaryFile::beside(&first.csv()).unwrap();
    table.file().unlock().unwrap();
    std::mem::forget(table);
    fs::create_dir(run.join(".keep")).unwrap();

    let mut next = store(out.path());
    assert!(!stale.exists());
    assert!(alive.path().exists() && run.join(".keep").exists());
    assert_eq!(private::names(out.path()).unwrap(), ["test"]);
    assert!(next.in_doubt().is_empty(), "{:?}", next.in_doubt());
    assert_eq!(next.finished("a", 1).unwrap(), None);
    assert_eq!(commit(&mut next, &row("a", 1, Status::Ok)), Committed::Ours);
}

#[test]
fn leftover_of_unknown_owner_is_kept_and_reported() {
    let out = tempfile::tempdir().unwrap();
    let first = store(out.path());
    let private = first.begin("a", 1).unwrap();
    let log = private.path().join("log.txt");
    fs::remove_file(&log).unwrap();
    std::os::unix::fs::symlink(out.path(), &log).unwrap();
    let next = store(out.path());
    let [doubt] = next.in_doubt() else { panic!("{:?}", next.in_doubt()) };
    let path = private.path().display();
    assert!(
        doubt.to_string().starts_with(&format!("{path} may be abandoned and was not removed: ")),
        "{doubt}"
    );
    assert!(private.path().exists());
}

#[test]
fn unreadable_result_is_not_replaced() {
    let out = tempfile::tempdir().unwrap();
    let mut store = store(out.path());
    commit(&mut store, &row("a", 1, Status::Failed));
    let result = store.repeat_folder("a", 1).join(RESULT_FILE);
    fs::remove_file(&result).unwrap();
    fs::create_dir(&result).unwrap();
    let private = store.begin("a", 1).unwrap();
    let error = store.commit(private, &row("a", 1, Status::Ok)).unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot read {}: ", result.display())), "{error}");
    assert!(result.is_dir());
}

#[test]
fn commit_waits_for_lock_of_another_process() {
    let out = tempfile::tempdir().unwrap();
    let mut store = store(out.path());
    commit(&mut store, &row("a", 1, Status::Failed));
    let place = store.repeat_folder("a", 1);
    let log = fs::File::open(place.join("log.txt")).unwrap();
    log.lock().unwrap();
    std::thread::scope(|scope| {
        let replaced = scope.spawn(|| commit(&mut self::store(out.path()), &row("a", 1, Status::Ok)));
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!replaced.is_finished() && !is_final(&place).unwrap(), "it moved a locked result");
        // Meanwhile, the other process commits a final result.
        let text = serde_json::to_vec(&row("a", 1, Status::Oom)).unwrap();
        fs::write(place.join(RESULT_FILE), text).unwrap();
        drop(log);
        assert_eq!(replaced.join().unwrap(), Committed::Theirs);
    });
    assert_eq!(store.finished("a", 1).unwrap().unwrap().status, Status::Oom);
}

#[test]
fn corrupt_result_is_reported_and_replaced() {
    let out = tempfile::tempdir().unwrap();
    let mut store = store(out.path());
    commit(&mut store, &row("a", 1, Status::Ok));
    let file = store.repeat_folder("a", 1).join(RESULT_FILE);
    fs::write(&file, "{}").unwrap();
    let mut next = self::store(out.path());
    let error = next.finished("a", 1).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }));
    assert!(error.to_string().starts_with(&format!("{} is not a result", file.display())), "{error}");
    // A valid result replaces it.
    assert_eq!(commit(&mut next, &row("a", 1, Status::Ok)), Committed::Ours);
}

#[test]
fn run_in_wrong_folder_is_reported() {
    // In the group of another run, and one level too high.
    for wrong in ["test/1b/0a00", "test/0a00"] {
        let out = tempfile::tempdir().unwrap();
        let mut store = store(out.path());
        for run_id in ["0a00", "1b00"] {
            commit(&mut store, &row(run_id, 1, Status::Ok));
        }
        // A folder of the user's, without results.
        fs::create_dir(out.path().join("test/1b/00")).unwrap();
        let (wrong, place) = (out.path().join(wrong), out.path().join("test/0a/0a00"));
        fs::rename(&place, &wrong).unwrap();
        let (found, place) = (wrong.display(), place.display());
        let error = store.all().unwrap_err().to_string();
        assert_eq!(error, format!("{found} holds results where no sweep looks for them: move it to {place}"));
    }
}

#[test]
fn damaged_list_of_expected_runs_is_reported() {
    let out = tempfile::tempdir().unwrap();
    let store = store(out.path());
    let file = out.path().join("test/expected-0.json");
    fs::write(&file, "{}").unwrap();
    let error = store.expected().unwrap_err().to_string();
    let expected = format!("{} is not a list of expected runs: missing field", file.display());
    assert!(
        error.starts_with(&expected) && error.ends_with(": remove it, and the next sweep writes it again"),
        "{error}"
    );
}

#[test]
fn forget_removes_all_repeats_of_one_run() {
    let out = tempfile::tempdir().unwrap();
    let mut store = store(out.path());
    commit(&mut store, &row("a", 1, Status::Ok));
    commit(&mut store, &row("a", 2, Status::Failed));
    commit(&mut store, &row("b", 1, Status::Ok));
    let writing = store.begin("a", 3).unwrap();
    store.forget("a").unwrap();
    store.forget("never was").unwrap();
    assert_eq!(store.finished("a", 1).unwrap(), None);
    assert!(store.finished("b", 1).unwrap().is_some());
    assert!(writing.path().exists(), "a private folder of another process is kept");
}

#[test]
fn rows_include_all_targets_in_order_of_plan() {
    let out = tempfile::tempdir().unwrap();
    let mut store = store(out.path());
    let of = |run_id: &str, configuration: &str, repeat| Row {
        configuration: configuration.into(),
        strategy: "an old label".into(),
        ..row(run_id, repeat, Status::Ok)
    };
    for row in [of("here", "x", 1), of("card", "x", 1), of("here", "x", 2), of("gone", "y", 1)] {
        commit(&mut store, &row);
    }
    let plan = plan(vec![
        planned("here", "x", "fp32", Ok(config())),
        planned("other", "z", "bf16", Ok(config())),
        planned("", "", "broken", Err("makes no sense".into())),
        planned("here", "x", "again", Ok(config())),
    ]);
    let rows = store.rows(&plan).unwrap();
    let found: Vec<_> =
        rows.iter().map(|row| (row.strategy.as_str(), row.run_id.as_str(), row.repeat)).collect();
    assert_eq!(
        found,
        [
            ("fp32", "here", 1),
            ("fp32", "here", 2),
            ("fp32", "card", 1),
            ("broken", "", 1),
            ("again", "here", 1),
            ("again", "here", 2),
            ("again", "card", 1)
        ]
    );
    assert_eq!(rows[0].no_effect, "release");
    assert_eq!(rows[2].no_effect, "");
}

#[test]
fn overridden_sweep_keeps_rows_of_table() {
    let out = tempfile::tempdir().unwrap();
    let mut store = store(out.path());
    let changed = [("train.seed".to_owned(), "1".to_owned())];
    let (old, gone) = (row("old", 1, Status::Ok), row("gone", 1, Status::Ok));
    let skipped = row("none", 1, Status::Skipped);
    commit(&mut store, &Row { strategy: "another label".into(), ..old.clone() });
    let table = vec![old.clone(), gone, skipped.clone()];

    let new = row("new", 1, Status::Ok);
    commit(&mut store, &new);
    let marked = Row { axes: changed.to_vec(), ..new.clone() };
    // An override to the existing value adds no row.
    let rows = [old.clone(), new.clone()];
    assert_eq!(
        store.beside(Vec::new(), &rows, &changed).unwrap(),
        rows,
        "an empty table needs no additional axes"
    );
    assert_eq!(store.beside(vec![new.clone()], &rows, &changed).unwrap(), rows);
    let merged = store.beside(table, &rows, &changed).unwrap();
    assert_eq!(merged, [old.clone(), skipped.clone(), marked.clone()]);
    // Repeated, and with other overrides.
    assert_eq!(store.beside(merged.clone(), &rows, &changed).unwrap(), merged);
    let other = [("train.seed".to_owned(), "2".to_owned())];
    let next = row("next", 1, Status::Ok);
    commit(&mut store, &next);
    let last = Row { axes: other.to_vec(), ..next.clone() };
    assert_eq!(store.beside(merged, &[next], &other).unwrap(), [old, skipped, marked, last]);
}

#[test]
fn uncreatable_folder_is_reported() {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Store::open(&file.join("results"), "test").unwrap_err();
    assert!(matches!(error, StoreError::Make { .. }), "{error}");
    assert!(error.to_string().contains("choose another with --out"), "{error}");

    // `Store::at` creates nothing.
    let mut store = Store::at(&out.path().join("none"), "test");
    assert_eq!(store.finished("a", 1).unwrap(), None);
    assert!(!out.path().join("none").exists());
}

/// Set when the test below runs itself again, on a small disk.
const SMALL_DISK: &str = "RUNNER_TEST_SMALL_DISK";

#[test]
fn full_disk_is_an_error_before_training() {
    if let Some(disk) = std::env::var_os(SMALL_DISK) {
        return fill(Path::new(&disk));
    }
    let disk = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=8m tmpfs \"$0\" && exec \"$1\" --exact --nocapture \"$2\"";
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", mount])
        .arg(disk.path())
        .arg(std::env::current_exe().unwrap())
        .arg(format!("{}::full_disk_is_an_error_before_training", module_path!().split_once("::").unwrap().1))
        .env(SMALL_DISK, disk.path())
        .output();
    let ran = output.as_ref().is_ok_and(|output| output.stdout.windows(9).any(|text| text == b"1 passed;"));
    let tried = output.as_ref().is_ok_and(|output| output.stdout.windows(9).any(|text| text == b"running 1"));
    assert!(!tried || ran, "{output:?}");
    let allowed = ran || std::env::var_os("CI").is_none();
    assert!(allowed, "this test needs `unshare` and `mount` to make a small disk: {output:?}");
}

fn fill(disk: &Path) {
    let mut store = store(disk);
    let private = store.begin("a", 1).unwrap();
    fs::write(disk.join("other"), vec![1; 6 << 20]).unwrap();
    let error = Store::open(disk, "test").unwrap_err();
    assert!(matches!(error, StoreError::NoRoom { .. }), "{error}");
    assert!(error.to_string().contains("no room for results"), "{error}");
    assert!(!private::names(disk).unwrap().iter().any(|name| name.contains("probe")));

    // Disk full during a commit: an error, and no partial result in place.
    let rest = fs::File::create(disk.join("rest")).unwrap();
    let _ = std::io::copy(&mut std::io::repeat(1), &mut &rest);
    let error = store.commit(private, &row("a", 1, Status::Ok)).unwrap_err();
    assert!(matches!(error, StoreError::NoRoom { .. }), "{error}");
    assert_eq!(store.finished("a", 1).unwrap(), None);
}

fn plan(runs: Vec<PlannedRun>) -> Plan {
    Plan {
        keys: PlanKeys::default(),
        experiment: "test".into(),
        file: "test.toml".into(),
        baseline: "fp32".into(),
        target: Target {
            name: "a processor".into(),
            kind: DeviceKind::Cpu,
            capability: None,
            threads: 2,
            alignment: Bytes(64),
            page: Bytes(4096),
            product_workspace: Bytes(0),
            context: Bytes(0),
            communicator: None,
            memory: Bytes(1 << 30),
            limited: false,
            host_memory: None,
            figures: device::Figures::Measured,
            rank: 0,
        },
        link: None,
        unsuited: None,
        repeats: Repeats::Times(1),
        axes: Vec::new(),
        overrides: Vec::new(),
        runs,
    }
}

fn planned(id: &str, configuration: &str, strategy: &str, config: Result<RunConfig, String>) -> PlannedRun {
    PlannedRun {
        id: id.into(),
        configuration: configuration.into(),
        data: String::new(),
        strategy: strategy.into(),
        axes: Vec::new(),
        config,
        prediction: None,
        fits_micro_batch: None,
        fits_work: None,
        torch: None,
        no_effect: vec!["release".into()],
    }
}

fn config() -> RunConfig {
    RunConfig {
        model: Model::Transformer(Transformer::new(1, 8, 1, 8)),
        data: Data::Text(Text::new(Vec::new(), 0.9)),
        train: Train {
            batch_size: 1,
            clip_norm: None,
            seed: 0,
            shuffle: false,
            last_batch: LastBatch::Drop,
            optimizer: Optimizer::AdamW(AdamW {
                lr: 1e-3,
                beta1: 0.9,
                beta2: 0.99,
                epsilon: 1e-8,
                weight_decay: 0.0,
                decay: Decay::All,
                groups: Vec::new(),
            }),
            schedule: Schedule::default(),
        },
        evaluation: None,
        measure: Measure { warmup_steps: 1, steps: 1, ..Measure::default() },
        strategy: Strategy::default(),
        data_len: None,
        lengths: None,
        all_packed: None,
    }
}

#[test]
fn file_of_first_is_from_first_final_repeat() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = store(folder.path());
    let mut commit = |repeat, status, contents: Option<&str>| {
        let private = store.begin("a", repeat).unwrap();
        if let Some(contents) = contents {
            private.write("choices", contents.as_bytes()).unwrap();
        }
        store.commit(private, &row("a", repeat, status)).unwrap();
        store.file_of_first("a", "choices").unwrap().map(|bytes| String::from_utf8(bytes).unwrap())
    };
    assert_eq!(commit(1, Status::Failed, Some("of a failure")), None);
    assert_eq!(commit(3, Status::Ok, Some("third")).as_deref(), Some("third"));
    assert_eq!(commit(2, Status::Oom, Some("second")).as_deref(), Some("second"));
    assert_eq!(commit(1, Status::Ok, None), None, "no fallback to another repeat");
}
