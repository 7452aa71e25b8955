//! The machine properties that predictions need.

use serde::Serialize;

use super::Pool;
use super::cpu::LEAST_PRODUCT_WORKSPACE_PER_THREAD;
use base::units::Bytes;
use ops::{Processor, WorkspaceLimits};

/// NCCL's memory on a card if it was not measured.
pub const ASSUMED_COMMUNICATOR: Bytes = Bytes(1 << 30);

/// Compute threads of a card's host. Targets do not declare this number yet.
pub(super) const HOST_THREADS: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    Cpu,
    Cuda,
}

/// The origin of a target's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Figures {
    /// All figures come from the device, its driver or the target file.
    #[default]
    #[serde(rename = "measured")]
    Measured,
    /// From the data sheet of a known card that is not present.
    #[serde(rename = "data sheet")]
    DataSheet,
    /// The context size is assumed.
    #[serde(rename = "assumed")]
    Assumed,
}

impl Figures {
    /// The caution that outputs based on these figures print, unless all were measured.
    pub fn caution(self) -> Option<&'static str> {
        match self {
            Figures::Measured => None,
            Figures::DataSheet => Some("from its data sheet, not measured with this program"),
            Figures::Assumed => Some("its context size is assumed, not measured with this program"),
        }
    }

    fn are_measured(&self) -> bool {
        *self == Figures::Measured
    }
}

/// A machine as a small TOML file (`plan --target FILE`), saved with every run, so that a laptop can plan for another
/// machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    /// The processor's or the card's name.
    pub name: String,
    pub kind: DeviceKind,
    /// A card's compute capability, such as `9.0`. Programs do not depend on it; speed and run ids do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
    /// Threads per operation; 1 for a card.
    pub threads: usize,
    /// Alignment of values within a larger allocation.
    pub alignment: Bytes,
    /// Requests to the system are rounded up to multiples of this.
    pub page: Bytes,
    /// Limit on a matmul's workspace, per thread.
    pub product_workspace: Bytes,
    /// Memory that the device's context occupies before the first allocation.
    pub context: Bytes,
    /// Memory that a card's library for exchanges between ranks (NCCL) occupies. `None`: assumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communicator: Option<Bytes>,
    /// Total memory, context included.
    pub memory: Bytes,
    /// Whether `memory` is a requested limit rather than the machine's total.
    pub limited: bool,
    /// Limit on all host pools together. `None`: limited by the machine only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_memory: Option<Bytes>,
    /// The origin of the figures. Not part of a run's id: with correct figures, it is the same run.
    #[serde(skip_serializing_if = "Figures::are_measured")]
    pub figures: Figures,
    /// Index of the device's rank among those of a run. Not in target files: plans are of the first rank, which needs the
    /// most memory.
    #[serde(skip)]
    pub rank: usize,
}

/// Requested limits, in place of the machine's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub memory: Option<Bytes>,
    pub host_memory: Option<Bytes>,
}

impl Limits {
    /// These limits; missing ones are taken from `others`.
    pub fn or(self, others: Limits) -> Limits {
        Limits { memory: self.memory.or(others.memory), host_memory: self.host_memory.or(others.host_memory) }
    }
}

impl Target {
    /// The workspace limits for operations on a pool.
    pub fn workspace_limits(&self, home: Pool) -> WorkspaceLimits {
        let own = |processor| WorkspaceLimits {
            processor,
            threads: self.threads,
            product_bytes_per_thread: self.product_workspace.0,
        };
        match (self.kind, home) {
            (DeviceKind::Cpu, _) => own(Processor::Cpu),
            (DeviceKind::Cuda, Pool::Device) => own(Processor::Cuda),
            // Targets declare nothing about a card's host.
            (DeviceKind::Cuda, Pool::Host | Pool::Pinned) => WorkspaceLimits {
                processor: Processor::Cpu,
                threads: HOST_THREADS,
                product_bytes_per_thread: LEAST_PRODUCT_WORKSPACE_PER_THREAD,
            },
        }
    }

    /// Bytes available to the device pool.
    pub fn available(&self) -> u64 {
        self.available_at(Pool::Device)
    }

    /// Bytes available to all pools of a home together.
    pub fn available_at(&self, home: Pool) -> u64 {
        match home {
            Pool::Device => self.memory.0.saturating_sub(self.context.0),
            Pool::Host | Pool::Pinned => self.host_memory.map_or(u64::MAX, |memory| memory.0),
        }
    }

    /// Whether the memory of a home is limited.
    pub fn limits(&self, home: Pool) -> bool {
        match home {
            Pool::Device => self.memory.0 < u64::MAX,
            Pool::Host | Pool::Pinned => self.host_memory.is_some(),
        }
    }

    /// The bytes by which `bytes` in a home's pools exceed its memory.
    pub fn short_of(&self, home: Pool, bytes: u64) -> u64 {
        match home {
            Pool::Device => self.context.0.saturating_add(bytes).saturating_sub(self.memory.0),
            Pool::Host | Pool::Pinned => bytes.saturating_sub(self.available_at(home)),
        }
    }

    /// The device of one of the ranks of a run: those on one machine's processors share its threads and its memory, unless
    /// the memory is a requested limit, which is each device's own. A card's communicator lies beside its context.
    pub fn of_rank(&self, ranks: usize) -> Target {
        if ranks == 1 {
            return self.clone();
        }
        if self.kind == DeviceKind::Cuda {
            let communicator = self.communicator.unwrap_or(ASSUMED_COMMUNICATOR);
            let context = Bytes(self.context.0.saturating_add(communicator.0));
            return Target { context, ..self.clone() };
        }
        let memory = if self.limited { self.memory } else { Bytes(self.memory.0 / ranks as u64) };
        Target { threads: (self.threads / ranks).max(1), memory, ..self.clone() }
    }

    /// The same device with another memory size.
    pub fn with_memory(self, memory: Bytes) -> Target {
        Target { memory, limited: true, ..self }
    }

    /// The same device under these limits.
    pub fn limited_to(self, Limits { memory, host_memory }: Limits) -> Target {
        let target = Target { host_memory: host_memory.or(self.host_memory), ..self };
        match memory {
            Some(memory) => target.with_memory(memory),
            None => target,
        }
    }

    /// The same device and host with unlimited memory.
    pub fn boundless(&self) -> Target {
        Target { host_memory: None, ..self.clone() }.with_memory(Bytes(u64::MAX))
    }
}
