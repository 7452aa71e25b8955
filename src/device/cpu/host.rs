//! What this machine is.

use std::fs;

use super::kernels::PRODUCT_WORKSPACE_PER_THREAD;
use crate::device::{DeviceKind, Target};
use crate::units::Bytes;

/// This machine's processor as a target.
pub fn target() -> Target {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Target {
        name: processor_name(),
        kind: DeviceKind::Cpu,
        threads,
        alignment: Bytes(256),
        page: Bytes(4096),
        product_workspace: Bytes(PRODUCT_WORKSPACE_PER_THREAD),
        context: Bytes(0),
        memory: Bytes(memory()),
        limited: false,
    }
}

fn processor_name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// The machine's physical memory, or what the control group allows if that is less.
fn memory() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let physical = total.map_or(u64::MAX, |kib| kib * 1024);
    let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let group =
        group.iter().filter_map(|path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()).min();
    physical.min(group.unwrap_or(u64::MAX))
}
