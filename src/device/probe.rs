//! Probes a device in a child process: the size of its context, and its rates.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Once};

use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGCHLD;
use signal_hook::flag;

/// The result of a probe: one line of JSON on its standard output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// Card memory in use, by the driver's counter, after all modules were loaded and had run; 0 for the CPU.
    pub context_bytes: u64,
    /// Notes for the user, one line each.
    pub notes: Vec<String>,
    /// If rates were requested: of fp32 matmuls, bf16 matmuls, and copies.
    pub product_flops_per_s: Option<f64>,
    pub bf16_product_flops_per_s: Option<f64>,
    pub copy_bytes_per_s: Option<f64>,
}

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("the probe of the device could not be started: {0}")]
    NotStarted(io::Error),
    /// The probe's error message.
    #[error("{0}")]
    Failed(String),
    #[error("the probe of the device {}", describe_exit(.0))]
    Died(ExitStatus),
}

fn describe_exit(status: &ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (_, Some(signal)) => format!("was killed by signal {signal}"),
        (code, None) => format!("ended with code {} and no message", code.unwrap_or(-1)),
    }
}

/// A command that runs this program in a child process. It uses `/proc/self/exe` if present: the file at the program's
/// path may have been rebuilt since the start, and two versions must not mix.
///
/// The parent process may have set SIGCHLD to be ignored, which would discard the exit status of children. So a handler
/// is registered.
///
/// # Errors
/// The path of this program is unknown.
pub fn this_program() -> io::Result<Command> {
    static SIGCHLD_HANDLED: Once = Once::new();
    let mut registered = Ok(());
    SIGCHLD_HANDLED.call_once(|| registered = flag::register(SIGCHLD, Arc::default()).map(drop));
    registered?;
    let running = Path::new("/proc/self/exe");
    let program = if running.exists() { running.to_path_buf() } else { std::env::current_exe()? };
    let mut command = Command::new(program);
    command.arg0("runner");
    Ok(command)
}

/// Probes the card with this ordinal, or the CPU, with or without measuring its rates.
///
/// # Errors
/// The device cannot be used, or the probe fails.
pub fn in_child(ordinal: Option<usize>, rates: bool) -> Result<ProbeReport, ProbeError> {
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
    let message = String::from_utf8_lossy(&output.stderr);
    let message = message.trim().trim_start_matches("error: ");
    Err(if message.is_empty() {
        ProbeError::Died(output.status)
    } else {
        ProbeError::Failed(message.to_owned())
    })
}
