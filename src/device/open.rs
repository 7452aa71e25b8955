//! Which device there is, and one to work with.

use std::str::FromStr;

use super::{CpuDevice, Device, DeviceError, DeviceKind, Target, cpu_target};
use crate::units::Bytes;

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best there is.
    #[default]
    Auto,
    Cpu,
    Cuda,
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Cuda),
            _ => Err(format!("`{text}` is not a device; use auto, cpu or cuda")),
        }
    }
}

/// This machine as a target, with its memory or the limit that was asked for.
///
/// # Errors
/// The device that was asked for is not to be had: there is no silent fallback.
pub fn detect(choice: DeviceChoice, memory: Option<Bytes>) -> Result<Target, String> {
    match choice {
        DeviceChoice::Auto | DeviceChoice::Cpu => cpu_target(memory).ok_or_else(|| {
            "nothing says how much memory this machine has (no /proc/meminfo): name a limit with `--memory`".to_owned()
        }),
        DeviceChoice::Cuda => {
            Err("this version trains on the CPU only: its CUDA device is not there yet; \
                        use `--device cpu`, or `plan --target FILE` to predict for a card"
                .to_owned())
        }
    }
}

/// The device of a target.
///
/// # Errors
/// The target is not of this machine, or the system gives no threads.
pub fn open(target: &Target) -> Result<Box<dyn Device>, DeviceError> {
    match target.kind {
        DeviceKind::Cpu => Ok(Box::new(CpuDevice::new(target.clone())?)),
        DeviceKind::Cuda => Err(DeviceError::Lost("this version has no CUDA device".to_owned())),
    }
}
