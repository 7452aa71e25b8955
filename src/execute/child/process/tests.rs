use std::path::Path;

use super::*;
use crate::Ended;

static NOT_INTERRUPTED: AtomicBool = AtomicBool::new(false);
const FINISHED: &str = r#"echo '{"event":"finished","ended":"complete","message":"","measured":{"peak_bytes":1,"loss_last":null}}'"#;

struct Fake {
    folder: tempfile::TempDir,
    messages: Vec<Message>,
    took: Duration,
}

impl Fake {
    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join(LOG_FILE)).unwrap()
    }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

fn new_log(folder: &Path) -> File {
    File::options().read(true).append(true).create_new(true).open(folder.join(LOG_FILE)).unwrap()
}

fn run(script: &str, timeout: Option<Duration>, interrupted: &AtomicBool) -> (Ending, Fake) {
    let folder = tempfile::tempdir().unwrap();
    let log = new_log(folder.path());
    let (begun, mut messages) = (Instant::now(), Vec::new());
    let ending =
        run_children(vec![shell(script)], &log, timeout, interrupted, |message| messages.push(message));
    (ending, Fake { folder, messages, took: begun.elapsed() })
}

fn crash(ending: Ending) -> Crash {
    match ending {
        Ending::Failed(crash) => crash,
        other => panic!("{other:?}"),
    }
}

#[test]
fn finished_child_returns_its_outcome() {
    let script = format!(r#"echo '{{"event":"phase","name":"start"}}'; {FINISHED}"#);
    let (ending, fake) = run(&script, None, &NOT_INTERRUPTED);
    assert!(matches!(&ending, Ending::Finished(outcome) if outcome.ended == Ended::Complete), "{ending:?}");
    assert_eq!(fake.messages, [Message::Phase { name: "start".into() }]);
}

#[test]
fn lines_that_are_not_messages_go_to_the_log() {
    let script = format!(r#"echo 'hello {{'; echo '{{"unknown":1}}'; printf '\377\n'; {FINISHED}"#);
    let (ending, fake) = run(&script, None, &NOT_INTERRUPTED);
    assert!(matches!(ending, Ending::Finished(_)), "{ending:?}");
    assert!(fake.messages.is_empty());
    let log = std::fs::read(fake.folder.path().join(LOG_FILE)).unwrap();
    assert!(log.starts_with(b"hello {\n{\"unknown\":1}\n\xff\n"));
}

#[test]
fn crash_shows_exit_code_and_log_lines() {
    let (ending, fake) =
        run("for i in 1 2 3 4 5; do echo line $i >&2; done; exit 101", None, &NOT_INTERRUPTED);
    assert_eq!(crash(ending).to_string(), "exited with code 101; log: line 3 / line 4 / line 5");
    assert!(fake.log().starts_with("line 1\n"));
    let panic = "echo \"thread 'main' panicked at a.rs:1:2:\" >&2; echo why >&2; \
                 echo stack backtrace: >&2; echo '   0: main' >&2; exit 101";
    let (ending, _) = run(panic, None, &NOT_INTERRUPTED);
    assert_eq!(
        crash(ending).to_string(),
        "exited with code 101; log: thread 'main' panicked at a.rs:1:2: why"
    );
}

#[test]
fn crash_shows_the_signal_name() {
    let (ending, _) = run("kill -9 $$", None, &NOT_INTERRUPTED);
    assert_eq!(crash(ending).to_string(), KILLED);
    let (ending, _) = run("kill -SEGV $$", None, &NOT_INTERRUPTED);
    assert_eq!(crash(ending).to_string(), "killed by signal 11 (segmentation fault)");
}

#[test]
fn exit_without_a_result_is_a_failure() {
    let (ending, _) = run("exit 0", None, &NOT_INTERRUPTED);
    assert_eq!(crash(ending).to_string(), "exited without a result");
    // So is a result followed by a failing exit: the run's files may be incomplete.
    let (ending, _) = run(&format!("{FINISHED}; exit 3"), None, &NOT_INTERRUPTED);
    assert_eq!(crash(ending).to_string(), "exited with code 3");
}

#[test]
fn ranks_end_with_the_same_parameters() {
    let rank = |digest: &str| {
        let outcome = format!(
            r#"echo '{{"event":"finished","ended":"complete","message":"","measured":{{"digest":"{digest}"}}}}'"#
        );
        shell(&outcome)
    };
    let folder = tempfile::tempdir().unwrap();
    let log = new_log(folder.path());
    let ending =
        |digests: [&str; 3]| run_children(digests.map(rank).into(), &log, None, &NOT_INTERRUPTED, |_| ());
    assert!(matches!(ending(["a", "a", "a"]), Ending::Finished(_)));
    assert_eq!(crash(ending(["a", "a", "b"])).to_string(), "rank 2 ended with other parameters than rank 0");
}

#[test]
fn missing_program_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let log = new_log(folder.path());
    let ending = run_children(vec![Command::new("/nowhere/program")], &log, None, &NOT_INTERRUPTED, |_| ());
    assert!(crash(ending).to_string().starts_with("could not be started: "));
}

/// Whether one of five attempts ends within the grace period: on a busy machine, not all do.
fn is_soon_over(attempt: impl Fn() -> Duration) -> bool {
    (0..5).any(|_| attempt() < GRACE)
}

#[test]
fn timed_out_child_is_asked_to_end() {
    // `read` returns at the end of its input, as a run does.
    let some_is_soon_over = is_soon_over(|| {
        let (ending, fake) =
            run("read x; echo asked >&2; exit 130", Some(Duration::from_millis(200)), &NOT_INTERRUPTED);
        assert!(matches!(ending, Ending::TimedOut), "{ending:?}");
        assert!(fake.took >= Duration::from_millis(200), "{:?}", fake.took);
        // A child that gets no CPU time within the grace period is killed.
        assert!(fake.log() == "asked\n" || fake.took >= GRACE, "{}", fake.log());
        fake.took
    });
    assert!(some_is_soon_over);
}

#[test]
fn child_that_ignores_its_closed_input_is_killed() {
    let (ending, fake) =
        run("echo $$ >&2; exec sleep 60", Some(Duration::from_millis(100)), &NOT_INTERRUPTED);
    assert!(matches!(ending, Ending::TimedOut), "{ending:?}");
    assert!(fake.took >= GRACE && fake.took < GRACE * 15, "{:?}", fake.took);
    assert!(!Path::new("/proc").join(fake.log().trim()).exists(), "it left a zombie");
}

#[test]
fn interrupt_ends_the_child() {
    let some_is_soon_over = is_soon_over(|| {
        let interrupted = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(100));
                interrupted.store(true, Ordering::Relaxed);
            });
            let (ending, fake) = run("read x; exit 130", None, &interrupted);
            assert!(matches!(ending, Ending::Interrupted), "{ending:?}");
            fake.took
        })
    });
    assert!(some_is_soon_over);
}

#[test]
fn result_after_the_interrupt_is_kept() {
    let interrupted = AtomicBool::new(true);
    let (ending, _) = run(&format!("read x; {FINISHED}"), None, &interrupted);
    assert!(matches!(ending, Ending::Finished(_)), "{ending:?}");
}

#[test]
fn grandchild_with_open_output_does_not_block_the_parent() {
    let (ending, fake) = run(&format!("{FINISHED}; sleep 30 & exit 0"), None, &NOT_INTERRUPTED);
    assert!(matches!(ending, Ending::Finished(_)), "{ending:?}");
    assert!(fake.took < Duration::from_secs(25), "{:?}", fake.took);
}

#[test]
fn child_with_closed_output_is_waited_for() {
    let (ending, fake) = run("exec >&-; sleep 0.3; exit 4", None, &NOT_INTERRUPTED);
    assert!(matches!(crash(ending).exit, Exit::Code(4)));
    assert!(fake.took >= Duration::from_millis(300));
}
