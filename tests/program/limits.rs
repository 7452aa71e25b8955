//! Little memory, by the run's own limit or by the system's, and few threads: what is said, and what is tried again.

use std::process::Output;

use crate::place::{Place, Tiny, said};
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

/// A place with the experiment.
fn place() -> Place {
    let place = Place::new();
    place.write("a.toml", Tiny { d_model: 32, batch_size: 2, ..Tiny::default() }.with(MORE));
    place
}

impl Place {
    /// Under the shell's limit, if one is given.
    fn run_under(&self, limit: &str, arguments: &[&str]) -> Output {
        let (command, options) = arguments.split_first().unwrap();
        let arguments = [&[command, "a.toml", "--device", "cpu"], options].concat();
        self.program_under(limit, &arguments).output().unwrap()
    }

    /// Succeeds. Returns what it printed.
    fn run_to_end(&self, arguments: &[&str]) -> String {
        let output = self.run_under("", arguments);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        said(&output)
    }
}

/// Under a limit in the last page that a run reserves, and under one that it has long passed by then.
#[test]
fn what_a_run_is_short_of_is_enough_for_it() {
    let place = place();
    place.run_to_end(&["sweep"]);
    for Row { strategy, predicted_reserved_peak_bytes: reserved, .. } in place.rows(TABLE) {
        let reserved = reserved.unwrap();
        let swept = |limit: u64| {
            place.run_to_end(&["sweep", "--filter", &strategy, "--memory", &format!("{limit} B")]);
            let rows = place.rows(TABLE).into_iter();
            rows.filter(|row| row.strategy == strategy && row.limit_bytes == Some(limit)).collect::<Vec<_>>()
        };
        for limit in [reserved - 1, reserved / 8] {
            let planned = place.run_to_end(&["plan", "--memory", &format!("{limit} B")]);
            assert!(planned.contains(&format!("{strategy} does not fit")), "{planned}");
            let [row] = &swept(limit)[..] else { panic!("not one row of {strategy} under {limit}") };
            assert_eq!(row.status, Status::Oom, "{strategy} under {limit} of {reserved}: {}", row.message);
            assert!(row.oom_value.is_some() && row.oom_phase.is_some(), "{row:?}");
            let [enough] = &swept(limit + row.oom_short_bytes.unwrap())[..] else { panic!("not one row") };
            assert_eq!(enough.status, Status::Ok, "{strategy} under {limit} of {reserved}");
        }
    }
}

/// The host's memory has a limit of its own, on the command line and in the file; both hold each by itself.
#[test]
fn what_the_host_is_short_of_is_enough_for_it() {
    let offload = |pinned: bool| format!("defaults.offload={{optimizer=true, pinned={pinned}}}");
    for (pinned, pool) in [(true, "pinned host"), (false, "host")] {
        let place = place();
        let set = ["--set", &offload(pinned)];
        place.run_to_end(&[&["sweep"], &set[..]].concat());
        for Row { strategy, measured, .. } in place.rows(TABLE) {
            let reserved = measured.host_reserved_peak_bytes.unwrap();
            // A quarter has no room for the optimizer's states, which come before anything of a step.
            let limit = if pinned { reserved - 1 } else { reserved / 4 };
            let swept = |limit: u64, in_file: bool| {
                let limit = format!("{limit} B");
                let setting = format!("target.host_memory={limit:?}");
                let ways = [["--host-memory", &limit], ["--set", &setting]];
                let way = ways[usize::from(in_file)];
                let said = place.run_to_end(&[&["sweep", "--filter", &strategy], &set[..], &way].concat());
                let own = |row: &Row| row.host_limit_bytes.is_some_and(|bytes| format!("{bytes} B") == limit);
                let mut rows = place.rows(TABLE).into_iter();
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
                assert!(said.contains(" of host memory short"), "{said}");
                assert!(said.lines().next().unwrap().contains(", the host limited to "), "{said}");
                let (enough, _) = swept(limit + row.oom_short_bytes.unwrap(), in_file);
                assert_eq!(enough.status, Status::Ok, "{strategy}: {}", enough.message);
            }
            let planned =
                place.run_to_end(&[&["plan", "--host-memory", &format!("{limit} B")], &set[..]].concat());
            assert!(planned.contains(&format!("{strategy} does not fit")), "{planned}");
        }
        // Where both are too small, the message says what each lacks.
        let both = ["--memory", "64 KiB", "--host-memory", "1 KiB"];
        place.run_to_end(&[&["sweep"], &set[..], &both].concat());
        let rows: Vec<Row> =
            place.rows(TABLE).into_iter().filter(|row| row.host_limit_bytes == Some(1024)).collect();
        assert_eq!(rows.len(), 2);
        for row in rows {
            assert_eq!((row.status, row.fits_micro_batch), (Status::Oom, Some(0)), "{}", row.message);
            assert!(row.oom_short_bytes > Some(0) && row.oom_other_short_bytes > Some(0), "{}", row.message);
            assert!(row.message.contains(" short, and "), "{}", row.message);
        }
    }
}

/// A limit of so many KiB of addresses. Memory comes from one arena: how many there are otherwise depends on which threads happen
/// to ask at the same time, and each takes 64 MiB of addresses.
fn of_addresses(room: u64) -> String {
    format!("export MALLOC_ARENA_MAX=1; ulimit -v {room};")
}

/// So many KiB of addresses that a run that takes next to no memory of its own is trained, with some to spare.
fn room_for_the_program() -> u64 {
    const STEP: u64 = 64 << 10;
    let suffices = |room: &u64| place().run_under(&of_addresses(*room), &["sweep"]).status.code() == Some(0);
    let least = (1..64).map(|steps| steps * STEP).find(suffices);
    least.expect("the program starts in 4 GiB") + STEP
}

/// What the system refuses below the limit is no result: once it has the memory, the run is done.
#[test]
fn what_the_system_refuses_is_tried_again() {
    let place = place();
    let large = ["sweep", "--set", "model.transformer.d_model=1024", "--set", "train.batch_size=16"];
    let room = room_for_the_program();
    let output = place.run_under(&of_addresses(room), &large);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let rows = place.rows(TABLE);
    assert_eq!(rows.len(), 2);
    for Row { strategy, status, message, predicted_reserved_peak_bytes: reserved, .. } in rows {
        assert!(reserved > Some(room << 10), "{strategy} may have room for {reserved:?} bytes");
        assert_eq!(status, Status::Failed, "{strategy}: {message}");
        assert!(message.contains("refused by the system: "), "{strategy}: {message}");
    }
    place.run_to_end(&large);
    assert!(place.rows(TABLE).iter().all(|row| row.status == Status::Ok));
}

/// As under `pids.max`, which not everybody may set: no stack is to be had for a thread.
#[test]
fn without_threads_all_is_planned_and_nothing_trained() {
    let place = place();
    let no_threads = format!("export RUST_MIN_STACK={};", 1u64 << 60);
    for command in [["plan"].as_slice(), &["sweep", "--dry-run"], &["explain", "--run", "1"]] {
        let (with, without) = (place.run_to_end(command), place.run_under(&no_threads, command));
        assert_eq!(said(&without), with);
    }
    let output = place.run_under(&no_threads, &["sweep"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    for Row { strategy, status, message, .. } in place.rows(TABLE) {
        assert_eq!(status, Status::Failed, "{strategy}: {message}");
        assert!(message.contains("no thread could be started"), "{strategy}: {message}");
    }
}

#[test]
fn a_limit_is_not_called_a_smaller_machine_s_where_it_is_none() {
    let place = place();
    let first_line =
        |memory| place.run_to_end(&["plan", "--memory", memory]).lines().next().unwrap().to_owned();
    let (small, large) = (first_line("1 GiB"), first_line("1000000 GiB"));
    assert!(
        small.ends_with("limited to 1.00 GiB (a smaller device's memory, but this one's speed)"),
        "{small}"
    );
    assert!(large.contains("limited to ") && large.contains(" (not below its own memory, "), "{large}");
}

/// And the message blames a value without giving it the size of all that was asked for.
#[test]
fn where_nothing_fits_nothing_is_what_fits() {
    let place = place();
    let output = place.run_under("", &["sweep", "--memory", "64 KiB"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let rows = place.rows(TABLE);
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!((row.status, row.fits_micro_batch), (Status::Oom, Some(0)), "{}", row.message);
        let (value, phase) = (row.oom_value.as_ref().unwrap(), row.oom_phase.as_ref().unwrap());
        assert!(row.message.starts_with(&format!("{phase}: no room for {value} of ")), "{}", row.message);
        assert!(row.message.ends_with(" short"), "{}", row.message);
    }
}
