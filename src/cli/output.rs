//! Where text leaves the program.

use std::io::{self, Write};

use super::failure::Failure;

/// Writes what was asked for to standard output. A reader that went away, as `head` does, has seen enough.
pub(super) fn print(text: &str) -> Result<(), Failure> {
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
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// Writes a line about how it goes to standard error. Nobody is left to tell where that is closed too.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
