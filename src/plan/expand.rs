//! Sweep axes x strategies = points, each resolved.

use std::path::PathBuf;

use crate::device::DeviceKind;
use crate::spec::RunConfig;
use crate::units::Bytes;

/// One experiment file, expanded.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    pub name: String,
    pub file: PathBuf,
    /// The strategy that ratios are against.
    pub baseline: String,
    /// The kind of device it makes sense on, if only one.
    pub requires: Option<DeviceKind>,
    /// `[target] memory`
    pub memory: Option<Bytes>,
    pub repeats: usize,
    /// Swept keys, in the order of the file: those of `[sweep]`, then those inside strategies.
    pub axes: Vec<String>,
    /// In table order.
    pub points: Vec<Point>,
}

/// One point of the expanded sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The strategy's label, `name/key=value` for one of a sweep inside a strategy.
    pub strategy: String,
    /// A value for each of the experiment's axes that this point lies on, as written in TOML.
    pub axes: Vec<(String, String)>,
    /// Complete, or why this combination makes no sense.
    pub config: Result<RunConfig, String>,
    /// The keys that the strategy set itself (not `[defaults]`) to something else than they would be without
    /// it, each with the configuration as it would be without that one key.
    pub without: Vec<(String, RunConfig)>,
}
