//! Resource use of each kernel: registers, shared memory, spills and machine instructions.

use std::fmt;

use super::compiler::{Compiler, digest};
use super::cubin;
use super::sources::{KernelSource, SOURCES};
use super::unavailable::{Unavailable, Version};
use base::parallel;

/// The limit on a kernel's machine instructions. A longer kernel takes seconds to compile and exceeds the instruction
/// cache of a multiprocessor; the usual cause is a branch on run-time types inlined into an unrolled loop.
const MAX_INSTRUCTIONS: u32 = 12_000;

/// Characters of a digest in the table: enough to distinguish versions of a source.
const DIGEST: usize = 16;

/// The resource use of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelReport {
    pub kernel: String,
    /// Per thread.
    pub registers: u32,
    /// Static, in bytes per block.
    pub shared_bytes: u32,
    /// Spilled bytes per thread: stores to plus loads from local memory.
    pub spill_bytes: u32,
    pub instructions: u32,
}

/// A source, an architecture and a version of NVRTC: the figures of the kernels are a pure function of these.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Compilation {
    pub file: String,
    pub architecture: String,
    pub version: Version,
}

impl fmt::Display for Compilation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {} by NVRTC {}", self.file, self.architecture, self.version)
    }
}

/// The kernels of one compilation, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceReport {
    pub compilation: Compilation,
    /// Of all inputs of the compiler.
    pub digest: String,
    pub kernels: Vec<KernelReport>,
}

impl SourceReport {
    /// Faults of the kernels: spills, and too many instructions.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let Compilation { architecture, version, .. } = &self.compilation;
        for KernelReport { kernel, spill_bytes, instructions, .. } in &self.kernels {
            let subject = format!("{kernel} for {architecture} by NVRTC {version}");
            if *spill_bytes > 0 {
                faults.push(format!("{subject} spills registers: {spill_bytes} bytes"));
            }
            if *instructions > MAX_INSTRUCTIONS {
                faults.push(format!(
                    "{subject} has {instructions} instructions; the limit is {MAX_INSTRUCTIONS}"
                ));
            }
        }
        faults
    }
}

/// NVRTC, for the resource use of kernels. Needs no driver.
#[derive(Debug)]
pub struct KernelCompiler(Compiler);

impl KernelCompiler {
    /// # Errors
    /// NVRTC is missing.
    pub fn load() -> Result<KernelCompiler, Unavailable> {
        Ok(KernelCompiler(Compiler::load(u32::MAX)?))
    }

    pub fn version(&self) -> Version {
        self.0.version
    }

    /// Compiles every source for the architectures.
    ///
    /// # Errors
    /// NVRTC fails on a source.
    pub fn compile_all(&self, architectures: &[String]) -> Result<Vec<SourceReport>, Unavailable> {
        self.compile(compilations(self.version(), architectures))
    }

    /// # Errors
    /// NVRTC fails on a source.
    ///
    /// # Panics
    /// A compilation's source does not exist.
    pub fn compile(&self, compilations: Vec<Compilation>) -> Result<Vec<SourceReport>, Unavailable> {
        let compile = |compilation: Compilation| {
            let source = source(&compilation.file).expect("the compilation's source exists");
            let architecture = compilation.architecture.as_str();
            let compiled = self.0.compile(source, architecture, &["--ptxas-options=-v"])?;
            let kernels = kernels(&compiled.log, &compiled.cubin).map_err(|log| Unavailable::Kernel {
                file: source.file,
                architecture: architecture.to_owned(),
                log,
            })?;
            let digest = short_digest(source, &compilation);
            Ok(SourceReport { compilation, digest, kernels })
        };
        parallel::map(compilations, compile).into_iter().collect()
    }
}

/// The compilations of every source for the architectures.
pub(super) fn compilations(version: Version, architectures: &[impl AsRef<str>]) -> Vec<Compilation> {
    let compilation = |source: &KernelSource, architecture: &str| Compilation {
        file: source.file.to_owned(),
        architecture: architecture.to_owned(),
        version,
    };
    let pairs =
        SOURCES.iter().flat_map(|source| architectures.iter().map(move |name| (source, name.as_ref())));
    pairs.map(|(source, architecture)| compilation(source, architecture)).collect()
}

pub(super) fn source(file: &str) -> Option<&'static KernelSource> {
    SOURCES.iter().find(|source| source.file == file)
}

pub(super) fn short_digest(source: &KernelSource, compilation: &Compilation) -> String {
    let mut digest = digest(source, &compilation.architecture, compilation.version);
    digest.truncate(DIGEST);
    digest
}

/// The resource use of all kernels in a compilation's log and machine code, sorted by name.
///
/// # Errors
/// Log and machine code contain different kernels, or none.
fn kernels(log: &str, cubin: &[u8]) -> Result<Vec<KernelReport>, String> {
    let mut kernels = parse(log);
    kernels.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    let mut counts = cubin::instructions(cubin).ok_or("the machine code is not a well-formed ELF file")?;
    counts.sort();
    let names = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    if kernels.is_empty()
        || !kernels.iter().map(|report| &report.kernel).eq(counts.iter().map(|(kernel, _)| kernel))
    {
        return Err(format!(
            "kernels of the assembler's log: {}; kernels of the machine code: {}",
            names(kernels.iter().map(|report| report.kernel.as_str()).collect()),
            names(counts.iter().map(|(kernel, _)| kernel.as_str()).collect()),
        ));
    }
    for (report, (_, count)) in kernels.iter_mut().zip(counts) {
        report.instructions = count;
    }
    Ok(kernels)
}

/// Parses the assembler's log: for each kernel one line each with its name, spills and registers.
fn parse(log: &str) -> Vec<KernelReport> {
    let mut reports: Vec<KernelReport> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or(rest).to_owned();
            reports.push(KernelReport { kernel, ..KernelReport::default() });
        }
        let Some(report) = reports.last_mut() else { continue };
        let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        let before = |unit: &[&str]| {
            let at = words.windows(unit.len()).position(|window| window == unit)?;
            words.get(at.checked_sub(1)?)?.parse::<u32>().ok()
        };
        report.registers = before(&["registers"]).unwrap_or(report.registers);
        report.shared_bytes = before(&["bytes", "smem"]).unwrap_or(report.shared_bytes);
        for direction in ["stores", "loads"] {
            report.spill_bytes += before(&["bytes", "spill", direction]).unwrap_or(0);
        }
    }
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assembler_log_is_parsed() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'add_f32' for 'sm_90'
ptxas info    : Function properties for add_f32
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
ptxas info    : Compiling entry function 'attention_f32' for 'sm_90'
ptxas info    : Function properties for attention_f32
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size, 4096 bytes smem
";
        let report = |kernel: &str, registers, shared_bytes, spill_bytes| KernelReport {
            kernel: kernel.to_owned(),
            registers,
            shared_bytes,
            spill_bytes,
            instructions: 0,
        };
        assert_eq!(parse(log), [report("add_f32", 10, 0, 0), report("attention_f32", 255, 4096, 56)]);
    }

    #[test]
    fn spills_and_kernels_beyond_the_limit_are_faults() {
        let kernel = |name: &str, spill_bytes, instructions| KernelReport {
            kernel: name.to_owned(),
            spill_bytes,
            instructions,
            ..KernelReport::default()
        };
        let report = SourceReport {
            compilation: Compilation {
                file: "a.cu".to_owned(),
                architecture: "sm_90".to_owned(),
                version: Version { major: 13, minor: 0 },
            },
            digest: String::new(),
            kernels: vec![kernel("good", 0, 12_000), kernel("spilling", 16, 8), kernel("long", 0, 12_001)],
        };
        assert_eq!(
            report.faults(),
            [
                "spilling for sm_90 by NVRTC 13.0 spills registers: 16 bytes",
                "long for sm_90 by NVRTC 13.0 has 12001 instructions; the limit is 12000",
            ]
        );
    }
}
