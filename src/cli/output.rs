//! Where text leaves the program. A reader that went away, as `head` does, is no error.

use std::io::Write;

/// Writes a line of what was asked for to standard output.
pub(super) fn say(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Writes a line about how it goes to standard error.
pub(super) fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
