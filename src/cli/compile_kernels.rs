//! `compile-kernels`: compiles every kernel of the CUDA device and says what it takes of a card's registers. It needs
//! NVRTC alone. For those who write kernels, not for those who train.

use super::failure::{ExitStatus, Failure};
use super::output;
use device::KernelReport;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// An architecture, such as sm_90; as many as are wanted
    #[arg(long = "arch", value_name = "ARCH", required = true)]
    architectures: Vec<String>,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let (version, reports) = device::compile_kernels(&args.architectures).map_err(Failure::machine)?;
    output::print(&format!("NVRTC {version}\n{}", table(&reports)))?;
    let spilling = reports.iter().filter(|report| report.spill_bytes > 0).count();
    if spilling == 0 {
        return Ok(ExitStatus::Complete);
    }
    Err(Failure::machine(format!("{spilling} of {} compiled kernels spill registers", reports.len())))
}

fn table(reports: &[KernelReport]) -> String {
    let mut text = format!(
        "{:<40} {:<8} {:>9} {:>12} {:>11}\n",
        "kernel", "arch", "registers", "shared bytes", "spill bytes"
    );
    for report in reports {
        let KernelReport { kernel, architecture, registers, shared_bytes, spill_bytes, .. } = report;
        text.push_str(&format!(
            "{kernel:<40} {architecture:<8} {registers:>9} {shared_bytes:>12} {spill_bytes:>11}\n"
        ));
    }
    text
}
