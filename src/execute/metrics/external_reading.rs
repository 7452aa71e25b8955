//! External readings: independent measurements of the ledger's memory, from the GPU driver's counter or the process's
//! resident set. The ledger alone could be consistent and still wrong.

use std::fs;

use device::Device;

/// Runs that reserve less than this are not compared: the process's own memory would dominate.
const MIN_COMPARED_BYTES: u64 = 64 << 20;

/// Whether reserved bytes and the resident set agree: to within 1 MiB and 0.5 %.
pub fn agrees(reserved: u64, external: u64) -> bool {
    reserved < MIN_COMPARED_BYTES || reserved.abs_diff(external) <= reserved / 200 + (1 << 20)
}

/// Whether reserved bytes and the driver's counter agree: to within 2 %, and upwards by `step` more, the driver's
/// granularity.
pub fn driver_agrees(reserved: u64, external: u64, step: u64) -> bool {
    let tolerance = reserved / 50;
    reserved < MIN_COMPARED_BYTES || (reserved - tolerance..=reserved + tolerance + step).contains(&external)
}

/// A counter of memory that has been used since it began.
#[derive(Clone, Copy, Debug)]
pub enum ExternalCounter {
    /// The driver's counter of the device pool.
    Driver,
    /// This process's resident set, for both pools. `baseline` are the resident bytes at the beginning.
    Resident { baseline: u64 },
}

/// A reading of an external counter, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalReading {
    /// Peak growth since the beginning.
    pub peak: u64,
    /// Granularity of the driver's reservations. `None` for the resident set.
    pub step: Option<u64>,
}

impl ExternalCounter {
    /// Begins counting. `None` if neither the device nor the system has a counter.
    pub fn begin(device: &mut dyn Device) -> Option<ExternalCounter> {
        if device.begin_external_reading().ok()? {
            return Some(ExternalCounter::Driver);
        }
        // Resets the high-water mark to the current resident set. (`ru_maxrss` would survive exec.)
        fs::write("/proc/self/clear_refs", "5").ok()?;
        Some(ExternalCounter::Resident { baseline: high_water_mark()? })
    }

    /// The peak since the beginning.
    pub fn read(&self, device: &mut dyn Device) -> Option<ExternalReading> {
        match self {
            ExternalCounter::Driver => {
                let reading = device.external_reading().ok()??;
                Some(ExternalReading { peak: reading.peak, step: Some(reading.step) })
            }
            ExternalCounter::Resident { baseline } => {
                Some(ExternalReading { peak: high_water_mark()?.saturating_sub(*baseline), step: None })
            }
        }
    }
}

/// The largest resident set of this process so far, in bytes.
pub fn high_water_mark() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_may_differ_by_two_percent_and_upwards_by_one_step() {
        const RESERVED: u64 = 100 << 20;
        for step in [2 << 20, 32 << 20] {
            let (least, most) = (RESERVED - RESERVED / 50, RESERVED + RESERVED / 50 + step);
            assert!([least, RESERVED, most].iter().all(|&external| driver_agrees(RESERVED, external, step)));
            // The driver never reserves less than requested.
            assert!(!driver_agrees(RESERVED, least - 1, step));
            assert!(!driver_agrees(RESERVED, most + 1, step));
        }
    }
}
