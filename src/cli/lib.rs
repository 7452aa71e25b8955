//! The commands: one file each.

mod arguments;
mod chance;
mod check;
mod columns;
mod compare;
mod compile_kernels;
mod completions;
mod data_sets;
mod devices;
mod execute_run;
mod explain;
mod failure;
mod files;
mod filter;
mod inputs;
mod manual;
mod output;
mod plan;
mod probe_device;
mod progress;
mod report;
mod sweep;
mod table;
mod target;
mod terminal;
#[cfg(test)]
mod tests;

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};

use failure::Failure;

/// Compares memory strategies for training neural networks, by measuring them.
#[derive(Debug, Parser)]
#[command(name = "runner", version)]
struct Cli {
    /// Say nothing but what was asked for, and what is wrong
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train every combination, each in a process of its own, and compare them
    Sweep(sweep::Args),
    /// Predict the memory of every combination, without training
    Plan(plan::Args),
    /// Compare the strategies in tables of results
    Compare(compare::Args),
    /// Print what the columns of results mean
    Columns(columns::Args),
    /// Check experiments, and whether their data is there, without running them
    Check(check::Args),
    /// Print the program of a run, with what is live at each operation and where its time went
    Explain(explain::Args),
    /// List the devices there are, how fast they are, and what is missing
    Devices(devices::Args),
    /// Print what a shell needs to complete commands and options
    Completions(completions::Args),
    /// Write a page for `man` about each command
    Manual(manual::Args),
    #[command(hide = true)]
    CompileKernels(compile_kernels::Args),
    #[command(hide = true)]
    ExecuteRun(execute_run::Args),
    #[command(hide = true)]
    ProbeDevice(probe_device::Args),
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let began = Instant::now();
    let cli = match arguments::read() {
        Ok(cli) => cli,
        Err(status) => return status.into(),
    };
    if cli.quiet {
        output::be_quiet();
    }
    let status = match cli.command {
        Command::Sweep(args) => sweep::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Columns(args) => columns::run(args),
        Command::Check(args) => check::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Manual(args) => manual::run(args),
        Command::CompileKernels(args) => compile_kernels::run(args),
        Command::ExecuteRun(args) => execute_run::run(args, began),
        Command::ProbeDevice(args) => probe_device::run(args),
    };
    status.unwrap_or_else(Failure::report).into()
}
