//! Extracts the reason of a crash from the child's log.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// Lines shown: the first of a panic message, or the last of a log without a panic.
const LINES: usize = 3;

/// Bytes read from the end of the log: enough for the backtraces of several threads behind the first panic.
const TAIL: u64 = 256 << 10;

/// The line before the frames of a backtrace.
const BACKTRACE: &str = "stack backtrace:";

/// The first panic in the end of the log with its message, else the log's last lines.
pub(super) fn summary(mut log: &File) -> io::Result<Vec<String>> {
    let length = log.metadata()?.len();
    log.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut end = Vec::new();
    log.take(TAIL).read_to_end(&mut end)?;
    Ok(summarise(&String::from_utf8_lossy(&end)))
}

fn summarise(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.iter().position(|line| is_panic(line)) {
        // A later panic follows from the first: a poisoned lock, a thread that could not be joined.
        Some(first) => panic_lines(&lines[first..]),
        None => {
            let mut lines = without_backtraces(&lines);
            // Several ranks can end for the same reason.
            lines.dedup();
            lines[lines.len().saturating_sub(LINES)..].iter().map(|line| line.to_string()).collect()
        }
    }
}

/// The line `thread 'name' panicked at file:line:column:`, joined with the first line of the message.
fn panic_lines(lines: &[&str]) -> Vec<String> {
    let is_over = |line: &str| line == BACKTRACE || is_advice(line) || is_panic(line);
    let mut message = lines[1..].iter().take_while(|line| !is_over(line)).take(LINES);
    let first = message.next().map_or(lines[0].to_string(), |text| format!("{} {text}", lines[0]));
    std::iter::once(first).chain(message.map(|line| line.to_string())).collect()
}

fn is_panic(line: &str) -> bool {
    line.starts_with("thread '") && line.contains("' ") && line.contains(" panicked at ")
}

/// Removes backtraces, and notes about `RUST_BACKTRACE`.
fn without_backtraces<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let mut inside = false;
    let keep = |line: &&str| {
        inside = *line == BACKTRACE || inside && is_frame(line);
        !inside && !is_advice(line)
    };
    lines.iter().copied().filter(keep).collect()
}

/// `12: function` or `at file:line:column`
fn is_frame(line: &str) -> bool {
    let number = line.split_once(": ").map(|(number, _)| number);
    line.starts_with("at ")
        || number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

fn is_advice(line: &str) -> bool {
    line.starts_with("note: ") && line.contains("RUST_BACKTRACE")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PANIC: &str = "\
step 7
thread 'main' (4242) panicked at src/device/lane.rs:93:14:
index out of bounds: the len is 3
but the index is 7
stack backtrace:
   0: __rustc::rust_begin_unwind
             at /rustc/5980761/library/std/src/panicking.rs:689:5
   1: device::cpu::lane::run
             at ./src/device/cpu/lane.rs:93:14
note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.
";

    #[test]
    fn panic_is_quoted_without_its_backtrace() {
        let expected = [
            "thread 'main' (4242) panicked at src/device/lane.rs:93:14: index out of bounds: the len is 3",
            "but the index is 7",
        ];
        assert_eq!(summarise(PANIC), expected);
    }

    #[test]
    fn first_panic_is_the_reason() {
        let second = "thread '<unnamed>' panicked at src/b.rs:1:1:\npoisoned\nnote: run with \
                      `RUST_BACKTRACE=1` environment variable to display a backtrace\n";
        assert_eq!(summarise(&format!("{PANIC}{second}")), summarise(PANIC));
        assert_eq!(
            summarise(&format!("{second}{PANIC}")),
            ["thread '<unnamed>' panicked at src/b.rs:1:1: poisoned"]
        );
    }

    #[test]
    fn long_message_is_cut_and_empty_message_is_accepted() {
        let long: String = (0..50).map(|n| format!("line {n}\n")).collect();
        let lines = summarise(&format!("thread 'main' panicked at src/a.rs:1:1:\n{long}"));
        assert_eq!(lines, ["thread 'main' panicked at src/a.rs:1:1: line 0", "line 1", "line 2"]);
        assert_eq!(summarise("thread 'main' panicked at src/a.rs:1:1:\n").len(), 1);
    }

    #[test]
    fn log_without_a_panic_is_summarised_by_its_end() {
        assert_eq!(summarise("a\nb\n\n1: c\nat last\n"), ["b", "1: c", "at last"]);
        assert!(summarise("\n \n").is_empty());
        let captured = "error: no\nstack backtrace:\n 0: main\n at ./src/main.rs:1\n\
                        note: run with `RUST_BACKTRACE=full`\n";
        assert_eq!(summarise(captured), ["error: no"]);
    }

    #[test]
    fn long_backtrace_does_not_hide_the_panic() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log.txt");
        let frames: String =
            (0..500).map(|n| format!("  {n}: some::function\n        at ./src/a.rs:1:1\n")).collect();
        let start = "thread 'main' panicked at src/a.rs:1:1:\nwhy\nstack backtrace:\n";
        std::fs::write(&log, format!("{}{start}{frames}", "before\n".repeat(100_000))).unwrap();
        let log = File::open(&log).unwrap();
        assert_eq!(summary(&log).unwrap(), ["thread 'main' panicked at src/a.rs:1:1: why"]);
    }
}
