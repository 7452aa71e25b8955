//! An independent reading of the same memory: what a card's driver counts, or what the system says the process has
//! resident.
//!
//! A ledger can agree with itself, so that alone proves little.

use std::fs;

use crate::device::Device;

/// Runs that reserve less than this are not judged: what a process does beside them weighs too much.
const JUDGED_FROM: u64 = 64 << 20;

/// What the two may differ by: 1 MiB and half a percent.
pub fn agrees(reserved: u64, witnessed: u64) -> bool {
    reserved < JUDGED_FROM || reserved.abs_diff(witnessed) <= reserved / 200 + (1 << 20)
}

/// The same for a driver, which reserves memory in steps of 2 MiB: one of them and two percent.
pub fn driver_agrees(reserved: u64, witnessed: u64) -> bool {
    reserved < JUDGED_FROM || reserved.abs_diff(witnessed) <= reserved / 50 + (2 << 20)
}

/// The growth of what is used since a moment.
#[derive(Clone, Copy, Debug)]
pub enum Witness {
    /// Of the device pool, as the device's driver counts.
    Driver,
    /// Of both pools, as this process's resident set: over these bytes.
    Resident { baseline: u64 },
}

impl Witness {
    /// Begins now. `None` where neither the device nor the system has such a counter.
    pub fn begin(device: &mut dyn Device) -> Option<Witness> {
        if device.begin_witness().ok()? {
            return Some(Witness::Driver);
        }
        // Resets the high-water mark to what is resident now. (`ru_maxrss` would survive exec.)
        fs::write("/proc/self/clear_refs", "5").ok()?;
        Some(Witness::Resident { baseline: high_water_mark()? })
    }

    /// Bytes that were used at the most, over those at the beginning.
    pub fn peak(&self, device: &mut dyn Device) -> Option<u64> {
        match self {
            Witness::Driver => Some(device.witness().ok()??.peak),
            Witness::Resident { baseline } => Some(high_water_mark()?.saturating_sub(*baseline)),
        }
    }
}

fn high_water_mark() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
