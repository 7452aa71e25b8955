//! Detects this machine's processor and memory.

use std::fs;
use std::io;
use std::path::Path;

use super::kernels::PRODUCT_WORKSPACE_PER_THREAD;
use crate::{DeviceKind, Figures, Target};
use base::units::Bytes;

/// This machine's processor as a target, with its own memory or the requested limit. `None` if the memory size is
/// unknown.
///
/// # Errors
/// /proc/cpuinfo exists but cannot be read: with another name, the target would be another machine.
pub fn target(limit: Option<Bytes>) -> io::Result<Option<Target>> {
    let Some(memory) = limit.or_else(|| memory().map(Bytes)) else { return Ok(None) };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(Some(Target { limited: limit.is_some(), ..described(&processor_name()?, threads, memory) }))
}

/// A processor as a target. The remaining properties are the same for all processors.
pub fn described(name: &str, threads: usize, memory: Bytes) -> Target {
    Target {
        name: name.to_owned(),
        kind: DeviceKind::Cpu,
        capability: None,
        threads,
        alignment: Bytes(256),
        page: Bytes(4096),
        product_workspace: Bytes(PRODUCT_WORKSPACE_PER_THREAD),
        context: Bytes(0),
        communicator: None,
        memory,
        limited: false,
        host_memory: None,
        figures: Figures::Measured,
        rank: 0,
    }
}

fn processor_name() -> io::Result<String> {
    const FILE: &str = "/proc/cpuinfo";
    let info = match fs::read_to_string(FILE) {
        Ok(info) => info,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(io::Error::new(error.kind(), format!("cannot read {FILE}: {error}"))),
    };
    let name =
        info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    Ok(name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned()))
}

/// The machine's physical memory, or this process's control group limit if that is smaller.
fn memory() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let physical = total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(groups.lines().filter_map(group_limit).fold(physical, u64::min))
}

/// The smallest limit of a control group and its ancestors. A line of `/proc/self/cgroup` is `number:controllers:path`;
/// in version 2, `controllers` is empty.
fn group_limit(line: &str) -> Option<u64> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    let (root, file) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let group = Path::new(root).join(path.trim_start_matches('/'));
    let within = group.ancestors().take_while(|folder| folder.starts_with(root));
    within.filter_map(|folder| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok()).min()
}
