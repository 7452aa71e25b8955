//! `compile-kernels`, a hidden command for developers of kernels: compiles every CUDA kernel and prints its registers,
//! shared memory, spills and machine instructions, or compares them with registers.lock. It needs NVRTC, but no card.

use std::fs;
use std::path::{Path, PathBuf};

use super::failure::{ExitStatus, Failure};
use super::output;
use base::regular;
use device::{KernelCompiler, KernelReport, RegistersLock, SourceReport};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// An architecture, such as sm_90; may be repeated
    #[arg(long = "arch", value_name = "ARCH", required_unless_present = "lock")]
    architectures: Vec<String>,
    /// Path of registers.lock: check that it is current; with --arch, compare every compiled kernel with it
    #[arg(long, value_name = "FILE")]
    lock: Option<PathBuf>,
    /// Also compile one source for one architecture, chosen by a hash of this text, and compare it with the table
    #[arg(long, value_name = "SEED", requires = "lock", conflicts_with = "architectures")]
    sample: Option<String>,
    /// Compile the missing and stale entries and write them to the table
    #[arg(long, requires = "lock", conflicts_with_all = ["architectures", "sample"])]
    write: bool,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let Args { architectures, lock, sample, write } = args;
    match (lock, sample) {
        (None, _) => compile(&architectures, None),
        (Some(file), _) if write => update(&file),
        (Some(file), None) if !architectures.is_empty() => compile(&architectures, Some(&file)),
        (Some(file), sample) => check(&file, sample.as_deref()),
    }
}

/// Compiles every source and, given a table, compares with it.
fn compile(architectures: &[String], lock: Option<&Path>) -> Result<ExitStatus, Failure> {
    let lock = lock.map(read).transpose()?;
    let compiler = KernelCompiler::load().map_err(Failure::machine)?;
    let version = compiler.version();
    let reports = compiler.compile_all(architectures).map_err(Failure::machine)?;
    output::print(&format!("NVRTC {version}\n{}", table(&reports)))?;
    let mut problems: Vec<String> = reports.iter().flat_map(SourceReport::faults).collect();
    let mut outdated = Vec::new();
    if let Some(lock) = lock {
        if RegistersLock::covers(version) {
            outdated = lock.problems();
            problems.extend(lock.differences(&reports));
        } else {
            output::print(&format!("not compared: {}\n", uncovered(&compiler)))?;
        }
    }
    complete(problems, outdated)
}

/// Checks a table's digests, and compiles one sample entry to compare its figures.
fn check(file: &Path, sample: Option<&str>) -> Result<ExitStatus, Failure> {
    let lock = read(file)?;
    let outdated = lock.problems();
    let (Some(seed), true) = (sample, outdated.is_empty()) else { return complete(Vec::new(), outdated) };
    let compiler = KernelCompiler::load().map_err(Failure::machine)?;
    let sample = RegistersLock::sample(compiler.version(), seed)
        .ok_or_else(|| Failure::machine(uncovered(&compiler)))?;
    output::print(&format!("compiling {sample}\n"))?;
    let reports = compiler.compile(vec![sample]).map_err(Failure::machine)?;
    output::print(&table(&reports))?;
    complete(lock.differences(&reports), Vec::new())
}

/// Compiles the table's missing and stale entries for this version of NVRTC.
fn update(file: &Path) -> Result<ExitStatus, Failure> {
    let mut lock = if file.exists() { read(file)? } else { RegistersLock::default() };
    let compiler = KernelCompiler::load().map_err(Failure::machine)?;
    let version = compiler.version();
    if !RegistersLock::covers(version) {
        return Err(Failure::machine(uncovered(&compiler)));
    }
    let reports = compiler.compile(lock.outdated(version)).map_err(Failure::machine)?;
    for difference in lock.differences(&reports) {
        output::print(&format!("{difference}\n"))?;
    }
    output::print(&format!("NVRTC {version}: compiled {} sources\n", reports.len()))?;
    let faults: Vec<String> = reports.iter().flat_map(SourceReport::faults).collect();
    lock.update(reports);
    fs::write(file, lock.render())
        .map_err(|error| Failure::machine(format!("cannot write {}: {error}", file.display())))?;
    complete(faults, Vec::new())
}

fn read(file: &Path) -> Result<RegistersLock, Failure> {
    let text = fs::read_to_string(file).map_err(|error| {
        Failure::input(format!("cannot read {}: {}", file.display(), regular::reason(&error)))
    })?;
    RegistersLock::parse(&text).map_err(|error| Failure::input(format!("{}, {error}", file.display())))
}

fn uncovered(compiler: &KernelCompiler) -> String {
    format!("the table covers NVRTC {1}, not {0}", compiler.version(), RegistersLock::covered())
}

/// Fails with problems of compiled kernels (`problems`) and of the table (`outdated`).
fn complete(mut problems: Vec<String>, outdated: Vec<String>) -> Result<ExitStatus, Failure> {
    if !outdated.is_empty() {
        problems.extend(outdated);
        problems.push(format!(
            "help: `{}` compiles the missing and stale entries and writes the table",
            RegistersLock::UPDATE
        ));
    }
    match problems.is_empty() {
        true => Ok(ExitStatus::Complete),
        false => Err(Failure::machine(problems.join("\n"))),
    }
}

fn table(reports: &[SourceReport]) -> String {
    let mut text = format!(
        "{:<52} {:<8} {:>9} {:>12} {:>11} {:>12}\n",
        "kernel", "arch", "registers", "shared bytes", "spill bytes", "instructions"
    );
    for SourceReport { compilation, kernels, .. } in reports {
        for KernelReport { kernel, registers, shared_bytes, spill_bytes, instructions } in kernels {
            let architecture = &compilation.architecture;
            text.push_str(&format!(
                "{kernel:<52} {architecture:<8} {registers:>9} {shared_bytes:>12} {spill_bytes:>11} {instructions:>12}\n"
            ));
        }
    }
    text
}
