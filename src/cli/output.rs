//! Standard output and standard error.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use super::failure::Failure;
use super::fitted::fitted;
use super::terminal;
use base::brief;

/// Whether `--quiet` was given.
static QUIET: AtomicBool = AtomicBool::new(false);

pub(super) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

pub(super) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Writes data or a table to standard output as it is. A closed pipe (`head`) is not an error.
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

/// Writes text for people to standard output, wrapped.
pub(super) fn show(text: &str) -> Result<(), Failure> {
    print(&fitted(text, terminal::text_width()))
}

/// The same for text with escape sequences of our own.
pub(super) fn show_raw(text: &str) -> Result<(), Failure> {
    print_raw(&fitted(text, terminal::text_width()))
}

/// Writes an informational line to standard output, unless `--quiet`. Errors are ignored: files matter more.
pub(super) fn say(text: &str) {
    if !is_quiet() {
        let _ = writeln!(io::stdout().lock(), "{}", visible(&fitted(text, terminal::text_width())));
    }
}

/// Writes a progress line to standard error, unless `--quiet`.
pub(super) fn mention(text: &str) {
    if !is_quiet() {
        note(text);
    }
}

/// Writes a warning or an error to standard error, wrapped if that is a terminal. A log keeps one line per message. A closed
/// standard error is ignored.
pub(super) fn note(text: &str) {
    note_raw(&format!("{}\n", visible(text)));
}

/// The same for lines with escape sequences of our own.
pub(super) fn note_raw(text: &str) {
    let text = match terminal::error_width() {
        Some(width) => Cow::Owned(fitted(text, width)),
        None => Cow::Borrowed(text),
    };
    let _ = write!(io::stderr().lock(), "{text}");
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
        c if brief::is_directional(c) => char::REPLACEMENT_CHARACTER,
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
