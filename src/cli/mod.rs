//! The commands.

pub mod compare;

use std::process::ExitCode;

use clap::Parser;

/// Compares memory strategies for training neural networks
#[derive(Debug, Parser)]
#[command(version)]
enum Command {
    Compare(compare::Args),
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    match Command::parse() {
        Command::Compare(args) => args.run(),
    }
}
