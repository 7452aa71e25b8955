//! The commands.

mod check;
mod files;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;

#[derive(clap::Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Check(check::Args),
}

/// Why a command ended without doing what it was asked to.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// The input is wrong.
    pub(crate) fn input(message: String) -> Failure {
        Failure { message, code: 2 }
    }

    /// Several at once.
    pub(crate) fn all(failures: Vec<Failure>) -> Failure {
        let code = failures.iter().map(|failure| failure.code).max().unwrap_or(1);
        let messages: Vec<String> = failures.into_iter().map(|failure| failure.message).collect();
        Failure { message: messages.join("\n\nerror: "), code }
    }
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Check(args) => check::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Nothing can be done where standard error is closed.
            let _ = writeln!(std::io::stderr(), "error: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Prints text; a reader that went away has seen enough.
fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure { message: format!("cannot write the output: {error}"), code: 1 })
        }
        _ => Ok(()),
    }
}
