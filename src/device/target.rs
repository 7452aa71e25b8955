//! What the planner must know of a machine to predict a run on it.

use serde::Serialize;

use super::cpu::LEAST_PRODUCT_WORKSPACE_PER_THREAD;
use super::{Pool, Rank};
use base::units::Bytes;
use ops::{Processor, WorkspaceLimits};

/// Threads of a card's host that compute: no target says yet how many it has.
pub(super) const HOST_THREADS: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    Cpu,
    Cuda,
}

/// How the figures of a target are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Figures {
    /// The device, its driver or whoever describes it says them all.
    #[default]
    #[serde(rename = "measured")]
    Measured,
    /// A known card's, which was nowhere at hand.
    #[serde(rename = "data sheet")]
    DataSheet,
    /// What its context takes is assumed.
    #[serde(rename = "assumed")]
    Assumed,
}

impl Figures {
    /// What every output says that rests on them, unless they were measured.
    pub fn caution(self) -> Option<&'static str> {
        match self {
            Figures::Measured => None,
            Figures::DataSheet => Some("from its data sheet, not measured with this program"),
            Figures::Assumed => Some("what its context takes is assumed, not measured with this program"),
        }
    }

    fn are_measured(&self) -> bool {
        *self == Figures::Measured
    }
}

/// A small TOML file (`plan --target FILE`), saved with every run, so that a laptop can plan for a machine it
/// does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    /// The processor's or the card's name.
    pub name: String,
    pub kind: DeviceKind,
    /// Of a card: what its processors can do, such as `9.0`. Programs do not depend on it; speed does, and so do ids of
    /// runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
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
    /// What the host's pools may hold together. Without it nothing limits them but what the machine has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_memory: Option<Bytes>,
    /// How these are known. No part of a run's id: it is the same run where they are right.
    #[serde(skip_serializing_if = "Figures::are_measured")]
    pub figures: Figures,
    /// Which share of a run's samples it sees. No target file says it: nothing brings ranks together yet.
    #[serde(skip)]
    pub rank: Rank,
}

/// Limits that were asked for, in place of what the machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub memory: Option<Bytes>,
    pub host_memory: Option<Bytes>,
}

impl Limits {
    /// These, and those of others that they do not say.
    pub fn or(self, others: Limits) -> Limits {
        Limits { memory: self.memory.or(others.memory), host_memory: self.host_memory.or(others.host_memory) }
    }
}

impl Target {
    /// The bounds on scratch memory of what is computed in a pool.
    pub fn workspace_limits(&self, home: Pool) -> WorkspaceLimits {
        let own = |processor| WorkspaceLimits {
            processor,
            threads: self.threads,
            product_bytes_per_thread: self.product_workspace.0,
        };
        match (self.kind, home) {
            (DeviceKind::Cpu, _) => own(Processor::Cpu),
            (DeviceKind::Cuda, Pool::Device) => own(Processor::Cuda),
            // All that is known of a card's host.
            (DeviceKind::Cuda, Pool::Host | Pool::Pinned) => WorkspaceLimits {
                processor: Processor::Cpu,
                threads: HOST_THREADS,
                product_bytes_per_thread: LEAST_PRODUCT_WORKSPACE_PER_THREAD,
            },
        }
    }

    /// Bytes that the device pool may hold.
    pub fn available(&self) -> u64 {
        self.available_at(Pool::Device)
    }

    /// Bytes that the pools of a home may hold together.
    pub fn available_at(&self, home: Pool) -> u64 {
        match home {
            Pool::Device => self.memory.0.saturating_sub(self.context.0),
            Pool::Host | Pool::Pinned => self.host_memory.map_or(u64::MAX, |memory| memory.0),
        }
    }

    /// Whether the memory of a home has an end.
    pub fn limits(&self, home: Pool) -> bool {
        match home {
            Pool::Device => self.memory.0 < u64::MAX,
            Pool::Host | Pool::Pinned => self.host_memory.is_some(),
        }
    }

    /// What the memory of a home lacks for so many bytes in its pools.
    pub fn short_of(&self, home: Pool, bytes: u64) -> u64 {
        match home {
            Pool::Device => self.context.0.saturating_add(bytes).saturating_sub(self.memory.0),
            Pool::Host | Pool::Pinned => bytes.saturating_sub(self.available_at(home)),
        }
    }

    /// Behaves like the same device with this much memory.
    pub fn with_memory(self, memory: Bytes) -> Target {
        Target { memory, limited: true, ..self }
    }

    /// Behaves as if it had no more than that.
    pub fn limited_to(self, Limits { memory, host_memory }: Limits) -> Target {
        let target = Target { host_memory: host_memory.or(self.host_memory), ..self };
        match memory {
            Some(memory) => target.with_memory(memory),
            None => target,
        }
    }

    /// The same device and host with all the memory in the world.
    pub fn boundless(&self) -> Target {
        Target { host_memory: None, ..self.clone() }.with_memory(Bytes(u64::MAX))
    }
}
