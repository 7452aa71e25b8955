//! What the compiler says of each kernel: registers, shared memory and spills.

use super::compiler::Compiler;
use super::sources::{SOURCES, Source};
use super::unavailable::{Unavailable, Version};
use base::parallel;

/// What one kernel takes on one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelReport {
    pub file: &'static str,
    pub kernel: String,
    pub architecture: String,
    /// Per thread.
    pub registers: u32,
    /// Static, in bytes per block.
    pub shared_bytes: u32,
    /// Bytes per thread that are stored to and loaded from local memory for want of registers.
    pub spill_bytes: u32,
}

/// Compiles every source for the architectures, without a driver, and says what the kernels take. With it, the
/// version of NVRTC.
///
/// # Errors
/// NVRTC is missing, or fails on a source.
pub fn compile_kernels(architectures: &[String]) -> Result<(Version, Vec<KernelReport>), Unavailable> {
    let compiler = Compiler::load(u32::MAX)?;
    let pairs: Vec<(&Source, &String)> =
        SOURCES.iter().flat_map(|source| architectures.iter().map(move |name| (source, name))).collect();
    let reports = parallel::map(pairs, |(source, architecture)| {
        let compiled = compiler.compile(source, architecture, &["--ptxas-options=-v"])?;
        Ok(parse(&compiled.log, source.file, architecture))
    });
    let reports = reports.into_iter().collect::<Result<Vec<Vec<KernelReport>>, Unavailable>>()?;
    Ok((compiler.version, reports.concat()))
}

/// Reads the assembler's log: for each kernel a line with its name, one with its spills, one with its registers.
fn parse(log: &str, file: &'static str, architecture: &str) -> Vec<KernelReport> {
    let mut reports: Vec<KernelReport> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or(rest).to_owned();
            let architecture = architecture.to_owned();
            reports.push(KernelReport { file, kernel, architecture, ..KernelReport::default() });
        }
        let Some(report) = reports.last_mut() else { continue };
        let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        let before = |unit: &[&str]| {
            let at = words.windows(unit.len()).position(|window| window == unit)?;
            words.get(at.checked_sub(1)?)?.parse::<u32>().ok()
        };
        report.registers = before(&["registers"]).unwrap_or(report.registers);
        report.shared_bytes = before(&["bytes", "smem"]).unwrap_or(report.shared_bytes);
        for way in ["stores", "loads"] {
            report.spill_bytes += before(&["bytes", "spill", way]).unwrap_or(0);
        }
    }
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_assembler_s_log_is_read() {
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
            file: "a.cu",
            kernel: kernel.to_owned(),
            architecture: "sm_90".to_owned(),
            registers,
            shared_bytes,
            spill_bytes,
        };
        assert_eq!(
            parse(log, "a.cu", "sm_90"),
            [report("add_f32", 10, 0, 0), report("attention_f32", 255, 4096, 56)]
        );
    }
}
