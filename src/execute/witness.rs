//! An independent reading of the same memory: what the system says the process has resident.
//!
//! A ledger can agree with itself, so that alone proves little.

use std::fs;

/// Runs that reserve less than this are not judged: what a process does beside them weighs too much.
const JUDGED_FROM: u64 = 64 << 20;

/// What the two may differ by: 1 MiB and half a percent.
pub fn agrees(reserved: u64, witnessed: u64) -> bool {
    reserved < JUDGED_FROM || reserved.abs_diff(witnessed) <= reserved / 200 + (1 << 20)
}

/// The growth of this process's resident set since a moment.
#[derive(Clone, Copy, Debug)]
pub struct Witness {
    baseline: u64,
}

impl Witness {
    /// Begins now. `None` where the system has no such counter.
    pub fn begin() -> Option<Witness> {
        // Resets the high-water mark to what is resident now. (`ru_maxrss` would survive exec.)
        fs::write("/proc/self/clear_refs", "5").ok()?;
        Some(Witness { baseline: high_water_mark()? })
    }

    /// Bytes that were resident at the most, over those at the beginning.
    pub fn peak(&self) -> Option<u64> {
        Some(high_water_mark()?.saturating_sub(self.baseline))
    }
}

fn high_water_mark() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
