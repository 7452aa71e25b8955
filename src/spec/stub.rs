//! (stands in for writing a resolved configuration as an experiment)

use super::RunConfig;

/// The configuration as an experiment of one run.
pub fn to_toml(config: &RunConfig) -> String {
    toml::to_string(config).unwrap_or_default()
}
