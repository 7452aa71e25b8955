//! An independent reading of the same memory: what a card's driver counts, or what the system says the process has
//! resident.
//!
//! A ledger can agree with itself, so that alone proves little.

use std::fs;

use device::Device;

/// Runs that reserve less than this are not judged: what a process does beside them weighs too much.
const JUDGED_FROM: u64 = 64 << 20;

/// What the two may differ by: 1 MiB and half a percent.
pub fn agrees(reserved: u64, witnessed: u64) -> bool {
    reserved < JUDGED_FROM || reserved.abs_diff(witnessed) <= reserved / 200 + (1 << 20)
}

/// The same for a driver: two percent, and one step more where it reserves so many bytes at a time.
pub fn driver_agrees(reserved: u64, witnessed: u64, step: u64) -> bool {
    let few = reserved / 50;
    reserved < JUDGED_FROM || (reserved - few..=reserved + few + step).contains(&witnessed)
}

/// The growth of what is used since a moment.
#[derive(Clone, Copy, Debug)]
pub enum ExternalCounter {
    /// Of the device pool, as the device's driver counts.
    Driver,
    /// Of both pools, as this process's resident set: over these bytes.
    Resident { baseline: u64 },
}

/// What a witness says, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalReading {
    /// Used at the most, over what was at the beginning.
    pub peak: u64,
    /// Of a driver: what it reserves at a time.
    pub step: Option<u64>,
}

impl ExternalCounter {
    /// Begins now. `None` where neither the device nor the system has such a counter.
    pub fn begin(device: &mut dyn Device) -> Option<ExternalCounter> {
        if device.begin_witness().ok()? {
            return Some(ExternalCounter::Driver);
        }
        // Resets the high-water mark to what is resident now. (`ru_maxrss` would survive exec.)
        fs::write("/proc/self/clear_refs", "5").ok()?;
        Some(ExternalCounter::Resident { baseline: high_water_mark()? })
    }

    /// What was used at the most since the beginning.
    pub fn testimony(&self, device: &mut dyn Device) -> Option<ExternalReading> {
        match self {
            ExternalCounter::Driver => {
                let reading = device.witness().ok()??;
                Some(ExternalReading { peak: reading.peak, step: Some(reading.step) })
            }
            ExternalCounter::Resident { baseline } => {
                Some(ExternalReading { peak: high_water_mark()?.saturating_sub(*baseline), step: None })
            }
        }
    }
}

fn high_water_mark() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_given_two_percent_and_upwards_one_of_its_steps() {
        const RESERVED: u64 = 100 << 20;
        for step in [2 << 20, 32 << 20] {
            let (least, most) = (RESERVED - RESERVED / 50, RESERVED + RESERVED / 50 + step);
            assert!(
                [least, RESERVED, most].iter().all(|&witnessed| driver_agrees(RESERVED, witnessed, step))
            );
            // It reserves more than it is asked for, never less.
            assert!(!driver_agrees(RESERVED, least - 1, step));
            assert!(!driver_agrees(RESERVED, most + 1, step));
        }
    }
}
