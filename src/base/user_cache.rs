//! Where a user's programs keep what they can make again.

use std::path::PathBuf;

/// The folder that `RUNNER_CACHE_DIR` names, or this program's in the user's cache, if the environment says where that is.
pub fn folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("RUNNER_CACHE_DIR")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("runner")))
        .or_else(|| Some(variable("HOME")?.join(".cache/runner")))
}
