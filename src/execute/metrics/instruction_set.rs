//! The instruction set for which a run's digest holds.

use std::{fs, io};

use device::{Device, DeviceKind};
use ops::DType;

use crate::error::RunError;

/// The processor's units that the CPU kernels use: `plain`, `avx2`, `avx512`, `avx512_bf16` or `amx`. Empty on a card, whose
/// name tells its units.
///
/// # Errors
/// The system's list of units exists but cannot be read: other units would be another machine.
pub(crate) fn of(device: &dyn Device) -> Result<String, RunError> {
    if device.target().kind != DeviceKind::Cpu {
        return Ok(String::new());
    }
    let name = match device.multiplies(DType::BF16) {
        true if has_matrix_units()? => "amx",
        true => "avx512_bf16",
        false => vectors(),
    };
    Ok(name.to_owned())
}

/// Whether the system lists the matrix units. Both units for bf16 imply AVX-512.
fn has_matrix_units() -> Result<bool, RunError> {
    const FILE: &str = "/proc/cpuinfo";
    match fs::read_to_string(FILE) {
        Ok(info) => Ok(info.split_whitespace().any(|flag| flag == "amx_bf16")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(RunError::Read { file: FILE.to_owned(), error }),
    }
}

#[cfg(target_arch = "x86_64")]
fn vectors() -> &'static str {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    match avx2 {
        true if is_x86_feature_detected!("avx512f") => "avx512",
        true => "avx2",
        false => "plain",
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn vectors() -> &'static str {
    "plain"
}
