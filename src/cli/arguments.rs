//! Parsing of the command line: help, version and errors.

use std::ffi::OsString;
use std::io;

use clap::Parser;

use super::Cli;
use super::failure::{ExitStatus, Failure};
use super::output::{note, visible};
use base::brief;

/// Parses the command line.
///
/// # Errors
/// The exit status, after help or an error was printed.
pub(super) fn read() -> Result<Cli, ExitStatus> {
    Cli::try_parse().map_err(|error| tell(&error).unwrap_or_else(Failure::report))
}

/// Prints the error or the requested help. Messages quote arguments as given, so the arguments are parsed again with control
/// characters made visible, which gives the same message with its colours.
fn tell(error: &clap::Error) -> Result<ExitStatus, Failure> {
    match Cli::try_parse_from(std::env::args_os().map(shown)) {
        Err(shown) if shown.kind() == error.kind() => match shown.print() {
            Err(error) if !shown.use_stderr() && error.kind() != io::ErrorKind::BrokenPipe => {
                return Err(Failure::machine(format!("cannot write the output: {error}")));
            }
            _ => {}
        },
        _ => note(brief::lines(error.render().to_string().trim_end()).as_ref()),
    }
    Ok(if error.use_stderr() { ExitStatus::WrongInput } else { ExitStatus::Complete })
}

/// What a message can bear of an argument.
fn shown(argument: OsString) -> OsString {
    let argument = argument.to_string_lossy();
    OsString::from(visible(&brief::line(&argument)).into_owned())
}
