//! The instruction set for which a run's digest holds.

use std::fs;

use device::{Device, DeviceKind};
use ops::DType;

/// The processor's units that the CPU kernels use: `plain`, `avx2`, `avx512`, `avx512_bf16` or `amx`. Empty on a card, whose
/// name tells its units.
pub(crate) fn of(device: &dyn Device) -> String {
    if device.target().kind != DeviceKind::Cpu {
        return String::new();
    }
    let name = match device.multiplies(DType::BF16) {
        true if has_matrix_units() => "amx",
        true => "avx512_bf16",
        false => vectors(),
    };
    name.to_owned()
}

/// Whether the system lists the matrix units. Both units for bf16 imply AVX-512.
fn has_matrix_units() -> bool {
    fs::read_to_string("/proc/cpuinfo")
        .is_ok_and(|info| info.split_whitespace().any(|flag| flag == "amx_bf16"))
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
