//! The user's cache folder.

use std::path::PathBuf;

/// The folder `RUNNER_CACHE_DIR`, or else `runner` in the user's cache folder (`XDG_CACHE_HOME` or `HOME`); `None` if
/// no variable is set.
pub fn folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("RUNNER_CACHE_DIR")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("runner")))
        .or_else(|| Some(variable("HOME")?.join(".cache/runner")))
}
