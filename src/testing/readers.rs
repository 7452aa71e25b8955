//! What must hold whenever a file is read, tried on many files that were mutated.
#![allow(clippy::print_stdout)] // the figures of a long run

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::mutation::{Random, mutated};

/// How many files of each kind are read, and the seed of the first. Each has the next number for its own, which a failure names:
/// with that and one file it is repeated.
const FILES: &str = "RUNNER_TEST_MUTATIONS";
const SEED: &str = "RUNNER_TEST_SEED";
const FILES_OF_EVERY_TEST: u64 = 2500;

/// The longest that reading a file may take of a processor, and the longest that the error of one may be, in bytes.
const SLOWEST: Duration = Duration::from_secs(2);
pub const LONGEST: usize = 64 << 10;

/// What is absent has no line, nor has what is about all of a file, or about a tensor; and nobody says where a name is too deep.
const UNPLACED: [&str; 11] = [
    "is no safetensors file",
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

/// Reads files mutated from `seeds`. What reading one comes to is all that a user would see: what is printed, or an error, which
/// has to name one of `names`.
pub fn read_mutated(
    kind: &str,
    seeds: &[Vec<u8>],
    names: &[&str],
    read: impl Fn(&[u8]) -> Result<String, String>,
) {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (files, first) = (number(FILES, FILES_OF_EVERY_TEST), number(SEED, 0));
    for seed in seeds {
        read(seed).unwrap_or_else(|error| panic!("{kind}: what is not mutated is right: {error}"));
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
        let started = of_processor();
        let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| read(&text))) else { fault("it panicked") };
        let took = of_processor() - started;
        slowest = slowest.max((took, seed));
        accepted += u64::from(outcome.is_ok());
        if took > SLOWEST {
            fault(&format!("it took {took:?}"));
        }
        let said = outcome.as_ref().unwrap_or_else(|error| error);
        if let Some(sign) = said.chars().find(|c| is_obeyed(*c)) {
            fault(&format!("{sign:?} was let through in {said:?}"));
        }
        if let Err(error) = &outcome {
            if error.len() > LONGEST {
                fault(&format!("its error is {} bytes long: {error}", error.len()));
            }
            if !names.iter().any(|name| error.contains(name)) || !is_placed(error, names) {
                fault(&format!("its error does not say where: {error}"));
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

/// The time that this thread had a processor for: others may keep it waiting for longer than reading takes.
fn of_processor() -> Duration {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts it");
    Duration::from_nanos(spent.split(' ').next().and_then(|spent| spent.parse().ok()).expect("nanoseconds"))
}

/// Whether a terminal does something else than show it, or shows it elsewhere.
pub fn is_obeyed(c: char) -> bool {
    let is_bidirectional =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_bidirectional || c.is_control() && c != '\n' && c != '\t'
}

/// Whether an error names a line, unless it is about what is not there.
fn is_placed(error: &str, names: &[&str]) -> bool {
    let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let behind = |mark: &str| error.match_indices(mark).any(|(at, _)| is_number(&error[at + mark.len()..]));
    behind(".toml:")
        || behind("line ")
        || behind("line: ")
        // An argument is one line.
        || names.iter().any(|name| !name.contains('.') && error.contains(name))
        || UNPLACED.iter().any(|words| error.contains(words))
}
