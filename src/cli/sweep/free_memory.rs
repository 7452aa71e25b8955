//! The host memory that is free now.

use std::fs;
use std::path::Path;

/// Bytes that programs can request now without swapping: what the system has available, or what the limits of this
/// process's control groups leave (version 2), if that is less. `None` if unknown.
pub(super) fn free_memory() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let available = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available = available.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"));
    Some(group.map_or(available, |group| available.min(left_in(Path::new("/sys/fs/cgroup"), group))))
}

/// What the limits of a control group and its ancestors leave. Cached pages of files are given back on request.
fn left_in(root: &Path, group: &str) -> u64 {
    let group = root.join(group.trim_start_matches('/'));
    let left = |folder: &Path| {
        let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse::<u64>().ok());
        let used = number("memory.current")?.saturating_sub(cached.unwrap_or(0));
        Some(number("memory.max")?.saturating_sub(used))
    };
    let folders = group.ancestors().take_while(|folder| folder.starts_with(root));
    folders.filter_map(left).min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_limit_of_all_ancestors_counts_without_cached_files() {
        let root = tempfile::tempdir().expect("a folder");
        let group = root.path().join("a/b");
        fs::create_dir_all(&group).expect("a folder");
        let write = |folder: &Path, files: [(&str, &str); 3]| {
            for (name, text) in files {
                fs::write(folder.join(name), text).expect("a file");
            }
        };
        write(&group, [("memory.max", "max\n"), ("memory.current", "10\n"), ("memory.stat", "")]);
        assert_eq!(left_in(root.path(), "/a/b"), u64::MAX);
        let stat = "anon 50\ninactive_file 20\n";
        write(
            &root.path().join("a"),
            [("memory.max", "100\n"), ("memory.current", "70\n"), ("memory.stat", stat)],
        );
        assert_eq!(left_in(root.path(), "/a/b"), 50);
    }
}
