//! Standard output and standard error.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use unicode_width::UnicodeWidthStr;

use super::failure::Failure;
use super::terminal;
use compare::{LEAST_WIDTH, wrap};

/// Whether `--quiet` was given.
static QUIET: AtomicBool = AtomicBool::new(false);

pub(super) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

pub(super) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Writes a command's result to standard output. A closed pipe (`head`) is not an error.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    print_raw(&visible(text))
}

/// The same for text with escape sequences of our own.
pub(super) fn print_raw(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::machine(format!("cannot write the output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes an informational line to standard output, unless `--quiet`. Errors are ignored: files matter more.
pub(super) fn say(text: &str) {
    if !is_quiet() {
        let _ = writeln!(io::stdout().lock(), "{}", visible(&fitted(text)));
    }
}

/// Wraps text to the terminal's width.
fn fitted(text: &str) -> Cow<'_, str> {
    let Some(width) = terminal::width() else { return Cow::Borrowed(text) };
    let width = width.max(LEAST_WIDTH);
    text.split('\n')
        .map(|line| if line.width() > width { wrap(line, width) } else { line.to_owned() })
        .collect::<Vec<_>>()
        .join("\n")
        .into()
}

/// Writes a progress line to standard error, unless `--quiet`.
pub(super) fn mention(text: &str) {
    if !is_quiet() {
        note(text);
    }
}

/// Writes a warning or an error to standard error. A closed standard error is ignored.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", visible(text));
}

/// Replaces control and bidirectional characters by visible symbols, since names, paths and lines of files may hold any. Line
/// breaks and tabs stay.
pub(super) fn visible(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| sign(c) == c) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(sign).collect())
}

/// One character for one, so that markers in the line below stay aligned.
fn sign(c: char) -> char {
    match c {
        '\n' | '\t' => c,
        // Unicode's control pictures are in the order of the control characters.
        '\0'..='\x1f' => char::from_u32(0x2400 + c as u32).unwrap_or(char::REPLACEMENT_CHARACTER),
        '\x7f' => '\u{2421}',
        '\u{80}'..='\u{9f}' => char::REPLACEMENT_CHARACTER,
        // Directional marks, embeddings, overrides and isolates.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            char::REPLACEMENT_CHARACTER
        }
        _ => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_told_nothing_but_text() {
        assert!(matches!(visible("a table\n\tof 3 µs, naïve, 数"), Cow::Borrowed(_)));
        assert_eq!(visible("\x1b[31mred\r\0\x7f\u{9b}2J\u{202e}gnp"), "␛[31mred␍␀␡\u{fffd}2J\u{fffd}gnp");
    }
}
