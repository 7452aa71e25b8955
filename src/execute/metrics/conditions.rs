//! Load and clock of the CPU while a run is timed.

use std::fs;

/// One-minute load average.
pub(crate) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// The current clock of the fastest core.
pub(crate) fn clock_mhz() -> Option<f64> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let clocks = info.lines().filter(|line| line.starts_with("cpu MHz"));
    let clocks = clocks.filter_map(|line| line.split_once(':')?.1.trim().parse::<f64>().ok());
    clocks.max_by(f64::total_cmp)
}
