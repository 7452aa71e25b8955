//! The command line: one file per command.

mod advise;
mod aligned;
mod arguments;
mod chance;
mod check;
mod collect;
mod columns;
mod compare;
mod compile_kernels;
mod completions;
mod data_sets;
mod devices;
mod encode_text;
mod estimates;
mod execute_run;
mod explain;
mod export;
mod failure;
mod files;
mod filter;
mod fits;
mod fitted;
mod framework;
mod held_data;
mod init;
mod inputs;
mod keys;
mod manual;
mod messages;
mod models;
mod output;
mod plan;
mod probe_device;
mod progress;
mod reference;
mod report;
mod run_selector;
mod sample_lengths;
mod schema;
mod status;
mod submit;
mod sweep;
mod table;
mod target;
mod terminal;
#[cfg(test)]
mod tests;
mod timeout;
mod torch;

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};

use failure::Failure;

/// Measures and compares memory strategies for training neural networks.
#[derive(Debug, Parser)]
#[command(name = "runner", version)]
struct Cli {
    /// Suppress progress; print results and errors only
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train every combination, each in a process of its own, and compare them
    Sweep(sweep::Args),
    /// Submit a sweep to Slurm: an array of tasks for each group of runs with similar needs, then a job that prints the tables
    Submit(submit::Args),
    /// Predict the memory of every combination without training
    Plan(plan::Args),
    /// Write a commented experiment for a model, data and a machine
    Init(init::Args),
    /// Show which memory remedies let a model train on a card, in PyTorch and here
    Fits(fits::Args),
    /// Search the combinations of strategy keys for the fastest run that fits the memory
    Advise(advise::Args),
    /// Show which runs of sweeps are done, running (by whom, since when), failed or missing
    Status(status::Args),
    /// Merge results folders of several clusters and machines into one table for `compare`
    Collect(collect::Args),
    /// Compare the strategies in result tables
    Compare(compare::Args),
    /// Write the comparison as a web page with plots, or one plot as SVG
    Report(report::Args),
    /// Describe the columns of result tables
    Columns(columns::Args),
    /// Describe the keys of experiment files
    Keys(keys::Args),
    /// Print the JSON Schema of experiment files, for editors and linters of TOML
    Schema(schema::Args),
    /// Validate experiments and check that their data exists, without training
    Check(check::Args),
    /// Explain a run: values live at its peak, what would lower it, and where time goes
    Explain(explain::Args),
    /// Write a run as a PyTorch script whose memory is predicted
    Export(export::Args),
    /// List devices with their rates, and missing libraries
    Devices(devices::Args),
    /// List the Hugging Face families that can be described, and the built-in configurations with their sizes
    Models(models::Args),
    /// Print a shell's completion script
    Completions(completions::Args),
    /// Write a man page for each command
    Manual(manual::Args),
    #[command(hide = true)]
    CompileKernels(compile_kernels::Args),
    #[command(hide = true)]
    EncodeText(encode_text::Args),
    #[command(hide = true)]
    ExecuteRun(execute_run::Args),
    #[command(hide = true)]
    ProbeDevice(probe_device::Args),
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let began = Instant::now();
    // Before anything else: a signal that comes earlier ends a sweep with another code than 130. The child of a sweep has
    // no handlers.
    let is_sweep = std::env::args_os().skip(1).any(|argument| argument == "sweep");
    let signals = is_sweep.then(sweep::Signals::watch);
    let cli = match arguments::read() {
        Ok(cli) => cli,
        Err(status) => return status.into(),
    };
    if cli.quiet {
        output::be_quiet();
    }
    let status = match cli.command {
        Command::Sweep(args) => sweep::run(args, signals),
        Command::Submit(args) => submit::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Init(args) => init::run(args),
        Command::Fits(args) => fits::run(args),
        Command::Advise(args) => advise::run(args),
        Command::Status(args) => status::run(args),
        Command::Collect(args) => collect::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Report(args) => report::run(args),
        Command::Columns(args) => columns::run(args),
        Command::Keys(args) => keys::run(args),
        Command::Schema(args) => schema::run(args),
        Command::Check(args) => check::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Export(args) => export::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Models(args) => models::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Manual(args) => manual::run(args),
        Command::CompileKernels(args) => compile_kernels::run(args),
        Command::EncodeText(args) => encode_text::run(args),
        Command::ExecuteRun(args) => execute_run::run(args, began),
        Command::ProbeDevice(args) => probe_device::run(args),
    };
    status.unwrap_or_else(Failure::report).into()
}
