//! Robustness checks of file readers on many mutated files.
#![allow(clippy::print_stdout)] // prints the figures of a long run

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::mutation::{Random, mutated};

/// Environment variables: the number of files of each kind, and the seed of the first. Each file has the next seed,
/// which a failure prints: rerun with that seed and one file to reproduce it.
const FILES: &str = "RUNNER_TEST_MUTATIONS";
const SEED: &str = "RUNNER_TEST_SEED";
const DEFAULT_FILES: u64 = 2500;

/// Limits of the processor time to read one file, and of an error message in bytes.
const SLOWEST: Duration = Duration::from_secs(2);
pub const LONGEST: usize = 64 << 10;

/// Errors without a line number: about missing parts, the whole file, a tensor, or the recursion limit.
const WITHOUT_LOCATION: [&str; 14] = [
    "is not a safetensors file",
    "not an experiment",
    "not a target file",
    "not a table of results",
    "which the model",
    "the model needs it",
    "is missing",
    "missing field",
    "has no strategies",
    "holds no rows",
    "not UTF-8",
    "valid UTF-8",
    "is the result of",
    "recursion limit",
];

/// Reads files mutated from `seeds`. `read` returns everything that a user would see: the output, or an error, which
/// must contain one of `names`.
pub fn read_mutated(
    kind: &str,
    seeds: &[Vec<u8>],
    names: &[&str],
    read: impl Fn(&[u8]) -> Result<String, String>,
) {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (files, first) = (number(FILES, DEFAULT_FILES), number(SEED, 0));
    for seed in seeds {
        read(seed).unwrap_or_else(|error| panic!("{kind}: the unmutated file must be valid: {error}"));
    }
    let (begun, mut accepted, mut slowest) = (Instant::now(), 0, (Duration::ZERO, first));
    for seed in first..first + files {
        let mut random = Random::new(seed);
        let text = mutated(&seeds[random.below(seeds.len())], seeds, &mut random);
        let fault = |what: &str| -> ! {
            panic!(
                "{kind}, {SEED}={seed}: {what}; the file:\n{}",
                String::from_utf8_lossy(&text).escape_debug()
            )
        };
        let started = processor_time();
        let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| read(&text))) else { fault("it panicked") };
        let took = processor_time() - started;
        slowest = slowest.max((took, seed));
        accepted += u64::from(outcome.is_ok());
        if took > SLOWEST {
            fault(&format!("it took {took:?}"));
        }
        let message = outcome.as_ref().unwrap_or_else(|error| error);
        if let Some(character) = message.chars().find(|c| is_obeyed(*c)) {
            fault(&format!("{character:?} was printed in {message:?}"));
        }
        if let Err(error) = &outcome {
            if error.len() > LONGEST {
                fault(&format!("its error is {} bytes long: {error}", error.len()));
            }
            if !names.iter().any(|name| error.contains(name)) || !has_location(error, names) {
                fault(&format!("its error has no location: {error}"));
            }
        }
    }
    println!(
        "{kind}: {files} files in {:.1} s, {accepted} accepted, {} refused; the slowest, {}, took {:.3} s",
        begun.elapsed().as_secs_f64(),
        files - accepted,
        slowest.1,
        slowest.0.as_secs_f64()
    );
}

/// The processor time of this thread: wall time would include waiting for other processes.
fn processor_time() -> Duration {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux provides schedstat");
    Duration::from_nanos(spent.split(' ').next().and_then(|spent| spent.parse().ok()).expect("nanoseconds"))
}

/// Whether a terminal interprets the character instead of showing it, or shows it elsewhere.
fn is_obeyed(c: char) -> bool {
    let is_bidirectional =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_bidirectional || c.is_control() && c != '\n' && c != '\t'
}

/// Whether an error gives a line number, or is one of those that have none.
fn has_location(error: &str, names: &[&str]) -> bool {
    let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let number_follows =
        |mark: &str| error.match_indices(mark).any(|(at, _)| is_number(&error[at + mark.len()..]));
    number_follows(".toml:")
        || number_follows("line ")
        || number_follows("line: ")
        // An argument has only one line.
        || names.iter().any(|name| !name.contains('.') && error.contains(name))
        || WITHOUT_LOCATION.iter().any(|words| error.contains(words))
}
