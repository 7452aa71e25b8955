//! What the planner must know of a machine to predict a run on it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::ops::WorkspaceLimits;
use crate::units::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    Cpu,
    Cuda,
}

/// A small TOML file (`plan --target FILE`), saved with every run, so that a laptop can plan for a machine it
/// does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The processor's or the card's name.
    pub name: String,
    pub kind: DeviceKind,
    /// Threads that work on one operation; 1 for a card.
    pub threads: usize,
    /// Values inside a larger allocation begin at multiples of this.
    pub alignment: Bytes,
    /// Memory asked of the system comes in multiples of this.
    pub page: Bytes,
    /// What a matrix product may use of memory for packing, per thread.
    pub product_workspace: Bytes,
    /// What the device takes for itself before the first allocation.
    pub context: Bytes,
    /// Memory there is, context included.
    pub memory: Bytes,
    /// Whether `memory` is a limit that was asked for, not the machine's own.
    pub limited: bool,
}

impl Target {
    /// The target's bounds on scratch memory.
    pub fn workspace_limits(&self) -> WorkspaceLimits {
        WorkspaceLimits { threads: self.threads, product_bytes_per_thread: self.product_workspace.0 }
    }

    /// Bytes that the device pool may hold.
    pub fn available(&self) -> u64 {
        self.memory.0.saturating_sub(self.context.0)
    }

    /// Behaves like the same device with this much memory.
    pub fn with_memory(self, memory: Bytes) -> Target {
        Target { memory, limited: true, ..self }
    }

    /// Reads a target file; the error says what is wrong with it and where.
    pub fn read(path: &Path) -> Result<Target, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read the target file {}: {error}", path.display()))?;
        toml::from_str(&text).map_err(|error| format!("{} is not a target file: {error}", path.display()))
    }
}
