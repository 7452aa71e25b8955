//! Runs with too little memory, by their own limit or the system's, and without threads: messages, statuses and
//! retries.

use std::process::Output;

use crate::test_folder::{TestFolder, Tiny, said, unwrapped};
use results::{Row, Status};

const MORE: &str = r#"
[measure]
warmup_steps = 1
steps = 1

[strategies.arena]

[strategies.direct]
allocator = "direct"
"#;

const TABLE: &str = "results/a.csv";

/// A test folder with the experiment.
fn test_folder() -> TestFolder {
    let dir = TestFolder::new();
    dir.write("a.toml", Tiny { d_model: 32, batch_size: 2, ..Tiny::default() }.with(MORE));
    dir
}

impl TestFolder {
    /// Runs the program under resource limits of the shell; none if `limit` is empty.
    fn run_under(&self, limit: &str, arguments: &[&str]) -> Output {
        let (command, options) = arguments.split_first().unwrap();
        let arguments = [&[command, "a.toml", "--device", "cpu"], options].concat();
        self.program_under(limit, &arguments).output().unwrap()
    }

    /// Runs the program and asserts that it succeeds. Returns its output.
    fn run_to_end(&self, arguments: &[&str]) -> String {
        let output = self.run_under("", arguments);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        said(&output)
    }
}

/// With a limit one byte below the reserved peak, and with one far below it.
#[test]
fn reported_shortfall_lets_run_fit() {
    let dir = test_folder();
    dir.run_to_end(&["sweep"]);
    for Row { strategy, predicted_reserved_peak_bytes: reserved, .. } in dir.rows(TABLE) {
        let reserved = reserved.unwrap();
        let swept = |limit: u64| {
            dir.run_to_end(&["sweep", "--filter", &strategy, "--memory", &format!("{limit} B")]);
            let rows = dir.rows(TABLE).into_iter();
            rows.filter(|row| row.strategy == strategy && row.limit_bytes == Some(limit)).collect::<Vec<_>>()
        };
        for limit in [reserved - 1, reserved / 8] {
            let planned = dir.run_to_end(&["plan", "--memory", &format!("{limit} B")]);
            assert!(planned.contains(&format!("{strategy} does not fit")), "{planned}");
            let [row] = &swept(limit)[..] else { panic!("not one row of {strategy} under {limit}") };
            assert_eq!(row.status, Status::Oom, "{strategy} under {limit} of {reserved}: {}", row.message);
            assert!(row.oom_value.is_some() && row.oom_phase.is_some(), "{row:?}");
            let [enough] = &swept(limit + row.oom_short_bytes.unwrap())[..] else { panic!("not one row") };
            assert_eq!(enough.status, Status::Ok, "{strategy} under {limit} of {reserved}");
        }
    }
}

/// Host memory has its own limit, on the command line or in the file; device and host limits apply independently.
#[test]
fn reported_host_shortfall_lets_run_fit() {
    let offload = |pinned: bool| format!("defaults.offload={{optimizer=true, pinned={pinned}}}");
    for (pinned, pool) in [(true, "pinned host"), (false, "host")] {
        let dir = test_folder();
        let set = ["--set", &offload(pinned)];
        dir.run_to_end(&[&["sweep"], &set[..]].concat());
        for Row { strategy, measured, .. } in dir.rows(TABLE) {
            let reserved = measured.host_reserved_peak_bytes.unwrap();
            // A quarter does not hold the optimizer states, which are allocated before the first step.
            let limit = if pinned { reserved - 1 } else { reserved / 4 };
            let swept = |limit: u64, in_file: bool| {
                let limit = format!("{limit} B");
                let setting = format!("target.host_memory={limit:?}");
                let ways = [["--host-memory", &limit], ["--set", &setting]];
                let way = ways[usize::from(in_file)];
                let said = dir.run_to_end(&[&["sweep", "--filter", &strategy], &set[..], &way].concat());
                let own = |row: &Row| row.host_limit_bytes.is_some_and(|bytes| format!("{bytes} B") == limit);
                let mut rows = dir.rows(TABLE).into_iter();
                (rows.rfind(|row| row.strategy == strategy && own(row)).unwrap(), said)
            };
            for in_file in [false, true] {
                let (row, said) = swept(limit, in_file);
                assert_eq!(row.status, Status::Oom, "{strategy}: {}", row.message);
                assert_eq!(
                    (row.oom_pool.as_deref(), row.oom_other_short_bytes),
                    (Some(pool), None),
                    "{strategy}"
                );
                assert!(row.message.ends_with(" of host memory short"), "{}", row.message);
                // Sentences are wrapped, depending on the processor's name.
                let words: Vec<&str> = said.split_whitespace().collect();
                assert!(words.join(" ").contains(" of host memory short"), "{said}");
                assert!(said.lines().next().unwrap().contains(", the host limited to "), "{said}");
                let (enough, _) = swept(limit + row.oom_short_bytes.unwrap(), in_file);
                assert_eq!(enough.status, Status::Ok, "{strategy}: {}", enough.message);
            }
            let planned =
                dir.run_to_end(&[&["plan", "--host-memory", &format!("{limit} B")], &set[..]].concat());
            assert!(planned.contains(&format!("{strategy} does not fit")), "{planned}");
        }
        // If both limits are too small, the message reports both shortfalls.
        let both = ["--memory", "64 KiB", "--host-memory", "1 KiB"];
        dir.run_to_end(&[&["sweep"], &set[..], &both].concat());
        let rows: Vec<Row> =
            dir.rows(TABLE).into_iter().filter(|row| row.host_limit_bytes == Some(1024)).collect();
        assert_eq!(rows.len(), 2);
        for row in rows {
            assert_eq!((row.status, row.fits_micro_batch), (Status::Oom, Some(0)), "{}", row.message);
            assert!(row.oom_short_bytes > Some(0) && row.oom_other_short_bytes > Some(0), "{}", row.message);
            assert!(row.message.contains(" short, and "), "{}", row.message);
        }
    }
}

/// A shell limit of `room` KiB of address space. With one malloc arena, because the number of arenas otherwise depends
/// on which threads allocate at the same time, and each arena takes 64 MiB of address space.
fn address_limit(room: u64) -> String {
    format!("export MALLOC_ARENA_MAX=1; ulimit -v {room};")
}

/// KiB of address space that suffice to train a tiny run, with some margin.
fn smallest_address_limit() -> u64 {
    const STEP: u64 = 64 << 10;
    let suffices =
        |room: &u64| test_folder().run_under(&address_limit(*room), &["sweep"]).status.code() == Some(0);
    let least = (1..64).map(|steps| steps * STEP).find(suffices);
    least.expect("the program starts in 4 GiB") + STEP
}

/// An allocation that the system refuses below the run's limit is a failure, not a result: the next sweep retries the
/// run.
#[test]
fn allocation_refused_by_system_is_retried() {
    let dir = test_folder();
    let large = ["sweep", "--set", "model.transformer.d_model=1024", "--set", "train.batch_size=16"];
    let room = smallest_address_limit();
    let output = dir.run_under(&address_limit(room), &large);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let rows = dir.rows(TABLE);
    assert_eq!(rows.len(), 2);
    for Row { strategy, status, message, predicted_reserved_peak_bytes: reserved, .. } in rows {
        assert!(reserved > Some(room << 10), "{strategy} needs only {reserved:?} bytes");
        assert_eq!(status, Status::Failed, "{strategy}: {message}");
        assert!(message.contains("refused by the system: "), "{strategy}: {message}");
    }
    dir.run_to_end(&large);
    assert!(dir.rows(TABLE).iter().all(|row| row.status == Status::Ok));
}

/// Threads cannot get a stack, which acts like `pids.max` but needs no privileges.
#[test]
fn without_threads_plan_works_and_training_fails() {
    let dir = test_folder();
    let no_threads = format!("export RUST_MIN_STACK={};", 1u64 << 60);
    for command in [["plan"].as_slice(), &["sweep", "--dry-run"], &["explain", "--run", "1"]] {
        let (with, without) = (dir.run_to_end(command), dir.run_under(&no_threads, command));
        assert_eq!(said(&without), with);
    }
    let output = dir.run_under(&no_threads, &["sweep"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    for Row { strategy, status, message, .. } in dir.rows(TABLE) {
        assert_eq!(status, Status::Failed, "{strategy}: {message}");
        assert!(message.contains("no thread could be started"), "{strategy}: {message}");
    }
}

#[test]
fn limit_above_device_memory_is_reported() {
    let dir = test_folder();
    let first_line =
        |memory| unwrapped(&dir.run_to_end(&["plan", "--memory", memory])).lines().next().unwrap().to_owned();
    let (small, large) = (first_line("1 GiB"), first_line("1000000 GiB"));
    assert!(small.ends_with("limited to 1.00 GiB (its speed is not limited)"), "{small}");
    assert!(large.contains("limited to ") && large.contains(" (not below its own memory, "), "{large}");
}

/// The message names the value that does not fit.
#[test]
fn fits_is_0_if_nothing_fits() {
    let dir = test_folder();
    let output = dir.run_under("", &["sweep", "--memory", "64 KiB"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let rows = dir.rows(TABLE);
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!((row.status, row.fits_micro_batch), (Status::Oom, Some(0)), "{}", row.message);
        let (value, phase) = (row.oom_value.as_ref().unwrap(), row.oom_phase.as_ref().unwrap());
        let step = row.oom_step.map(|step| format!("step {step}, ")).unwrap_or_default();
        let began = format!("{step}{phase}: no room for {value} of ");
        assert!(row.message.starts_with(&began), "{}", row.message);
        assert!(row.message.ends_with(" short"), "{}", row.message);
    }
}
