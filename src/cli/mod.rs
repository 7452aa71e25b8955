//! The commands: one file each.

mod check;
mod compare;
mod data_sets;
mod execute_run;
mod failure;
mod files;
mod output;
mod progress;
mod sweep;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::Failure;

/// Compares memory strategies for training neural networks, by measuring them.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Sweep(sweep::Args),
    Check(check::Args),
    Compare(compare::Args),
    #[command(hide = true)]
    ExecuteRun(execute_run::Args),
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let status = match Cli::parse().command {
        Command::Sweep(args) => sweep::run(args),
        Command::Check(args) => check::run(args),
        Command::Compare(args) => compare::run(args),
        Command::ExecuteRun(args) => execute_run::run(args),
    };
    status.unwrap_or_else(Failure::report).into()
}
