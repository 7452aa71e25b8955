//! Where text leaves the program.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use unicode_width::UnicodeWidthStr;

use super::failure::Failure;
use super::terminal;
use compare::{LEAST_WIDTH, wrap};

/// Whether only what was asked for, and what is wrong, is to be said.
static QUIET: AtomicBool = AtomicBool::new(false);

pub(super) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

pub(super) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Writes what was asked for to standard output. A reader that went away, as `head` does, has seen enough.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    print_raw(&visible(text))
}

/// The same for text that a terminal may obey.
pub(super) fn print_raw(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::machine(format!("cannot write the output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard output on the way to files that matter more.
pub(super) fn say(text: &str) {
    if !is_quiet() {
        let _ = writeln!(io::stdout().lock(), "{}", visible(&fitted(text)));
    }
}

/// Broken between words where a terminal is narrower.
fn fitted(text: &str) -> Cow<'_, str> {
    let Some(width) = terminal::width() else { return Cow::Borrowed(text) };
    let width = width.max(LEAST_WIDTH);
    text.split('\n')
        .map(|line| if line.width() > width { wrap(line, width) } else { line.to_owned() })
        .collect::<Vec<_>>()
        .join("\n")
        .into()
}

/// Writes a line about how it goes to standard error.
pub(super) fn mention(text: &str) {
    if !is_quiet() {
        note(text);
    }
}

/// Writes a line about what is wrong to standard error. Nobody is left to tell where that is closed too.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", visible(text));
}

/// What a terminal would obey, or show in another order, as a sign for it: names, paths and lines of files are whatever
/// somebody wrote there. Line breaks and tabs are this program's own.
pub(super) fn visible(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| sign(c) == c) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(sign).collect())
}

/// One character for one, so that what is marked beneath stays beneath.
fn sign(c: char) -> char {
    match c {
        '\n' | '\t' => c,
        // The pictures of control characters stand in their order.
        '\0'..='\x1f' => char::from_u32(0x2400 + c as u32).unwrap_or(char::REPLACEMENT_CHARACTER),
        '\x7f' => '\u{2421}',
        '\u{80}'..='\u{9f}' => char::REPLACEMENT_CHARACTER,
        // Annotations, embeddings, overrides and isolates of direction.
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
