//! What only a process of its own can find out about a device: what its context takes, and how fast it is.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Once};

use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGCHLD;
use signal_hook::flag;

/// What a probe found out: a line of JSON on its standard output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probed {
    /// What the driver counted as taken of the card once everything was loaded and had run; 0 for the processor.
    pub context_bytes: u64,
    /// What the user should know, a line each.
    pub notes: Vec<String>,
    /// Where rates were asked for: of fp32 and of bf16 products, and of copies.
    pub product_flops_per_s: Option<f64>,
    pub bf16_product_flops_per_s: Option<f64>,
    pub copy_bytes_per_s: Option<f64>,
}

/// Why a probe found nothing out.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("the probe of the device could not be started: {0}")]
    NotStarted(io::Error),
    /// The probe's own words.
    #[error("{0}")]
    Failed(String),
    #[error("the probe of the device {}", ended(.0))]
    Died(ExitStatus),
}

fn ended(status: &ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (_, Some(signal)) => format!("was killed by signal {signal}"),
        (code, None) => format!("ended with code {} and said nothing", code.unwrap_or(-1)),
    }
}

/// This program again, for something that it does in a process of its own. By way of the running process where there
/// is one: the file at its path may have been built anew since it began, and two versions must not mix.
///
/// Who started this process may have had it ignore the ends of its children, and would then never learn how one ended.
///
/// # Errors
/// The system does not say which program this is.
pub fn this_program() -> io::Result<Command> {
    static HEARS: Once = Once::new();
    let mut hears = Ok(());
    HEARS.call_once(|| hears = flag::register(SIGCHLD, Arc::default()).map(drop));
    hears?;
    let running = Path::new("/proc/self/exe");
    let program = if running.exists() { running.to_path_buf() } else { std::env::current_exe()? };
    let mut command = Command::new(program);
    command.arg0("runner");
    Ok(command)
}

/// Probes the card of an ordinal, or the processor, with or without measuring its rates.
///
/// # Errors
/// The device cannot be used, or the probe does not end well.
pub fn in_child(ordinal: Option<usize>, rates: bool) -> Result<Probed, ProbeError> {
    let mut command = this_program().map_err(ProbeError::NotStarted)?;
    command.arg("probe-device");
    if let Some(ordinal) = ordinal {
        command.args(["--ordinal", &ordinal.to_string()]);
    }
    if rates {
        command.arg("--rates");
    }
    let output = command.stdin(Stdio::null()).output().map_err(ProbeError::NotStarted)?;
    if let (true, Ok(probed)) = (output.status.success(), serde_json::from_slice(&output.stdout)) {
        return Ok(probed);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().trim_start_matches("error: ");
    Err(if said.is_empty() { ProbeError::Died(output.status) } else { ProbeError::Failed(said.to_owned()) })
}
