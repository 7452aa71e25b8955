//! What the planner must know of a machine to predict a run on it.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::de::DeTable;

use super::cpu::{LEAST_PRODUCT_WORKSPACE_PER_THREAD, OPERAND_ALIGNMENT};
use super::{Pool, Rank};
use crate::ops::{Processor, WorkspaceLimits};
use crate::regular;
use crate::units::Bytes;

/// More than any machine has; keeps sums of sizes within 64 bits.
const MOST_THREADS: usize = 1 << 16;
const MOST_WORKSPACE: u64 = 1 << 40;
const LARGEST_PAGE: u64 = 1 << 30;

/// Threads of a card's host that compute: no target says yet how many it has.
pub(super) const HOST_THREADS: usize = 1;

/// Why a file describes no machine.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("cannot read the target file {file}: {error}")]
    Unreadable { file: String, error: io::Error },
    #[error("{file} is not a target file: {error}")]
    NotATarget { file: String, error: toml::de::Error },
    #[error("{file}, line {line}: `{key}` {must}")]
    Impossible { file: String, line: usize, key: &'static str, must: String },
}

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
    /// Of a card: what its processors can do, such as `9.0`. Programs do not depend on it; speed does, and so do ids of
    /// runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory: Option<Bytes>,
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

    /// Reads a target file.
    ///
    /// # Errors
    /// It cannot be read, or names values that no machine has or this program cannot work with.
    pub fn read(path: &Path) -> Result<Target, TargetError> {
        let file = path.display().to_string();
        let text = match regular::read_to_string(path) {
            Ok(text) => text,
            Err(error) => return Err(TargetError::Unreadable { file, error }),
        };
        let target: Target = match toml::from_str(&text) {
            Ok(target) => target,
            Err(error) => return Err(TargetError::NotATarget { file, error }),
        };
        match target.impossible() {
            Some((key, must)) => Err(TargetError::Impossible { file, line: line_of(key, &text), key, must }),
            None => Ok(target),
        }
    }

    /// The first key whose value cannot be, and what it must be instead.
    fn impossible(&self) -> Option<(&'static str, String)> {
        let steps = |bytes: Bytes| bytes.0.is_power_of_two() && bytes.0 <= LARGEST_PAGE;
        let step = || format!("must be a power of two of at most {}", Bytes(LARGEST_PAGE));
        let workspace = self.product_workspace.0;
        // A card's library packs nothing, or as it likes.
        let on_cpu = self.kind == DeviceKind::Cpu;
        if !(1..=MOST_THREADS).contains(&self.threads) {
            return Some(("threads", format!("must be from 1 to {MOST_THREADS}")));
        }
        if !steps(self.alignment) {
            return Some(("alignment", step()));
        }
        if on_cpu && self.alignment.0 < OPERAND_ALIGNMENT {
            return Some(("alignment", format!("must be at least {} on a CPU", Bytes(OPERAND_ALIGNMENT))));
        }
        if !steps(self.page) {
            return Some(("page", step()));
        }
        if on_cpu && workspace < LEAST_PRODUCT_WORKSPACE_PER_THREAD {
            let least = Bytes(LEAST_PRODUCT_WORKSPACE_PER_THREAD);
            return Some(("product_workspace", format!("must be at least {least} on a CPU")));
        }
        if workspace > MOST_WORKSPACE {
            return Some(("product_workspace", format!("must be at most {}", Bytes(MOST_WORKSPACE))));
        }
        let nothing = |key| (key, "must be more than nothing".to_owned());
        if self.memory.0 == 0 {
            return Some(nothing("memory"));
        }
        (self.host_memory == Some(Bytes(0))).then(|| nothing("host_memory"))
    }
}

/// Where a key of a target file stands.
fn line_of(key: &str, text: &str) -> usize {
    let table = DeTable::parse(text).map(toml::Spanned::into_inner).unwrap_or_default();
    let at = table.iter().find(|(name, _)| name.get_ref() == key).map_or(0, |(name, _)| name.span().start);
    text[..at].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::target;

    /// What is said of the test target with some of its keys changed.
    fn said_of(change: impl FnOnce(&mut Target)) -> String {
        let mut target = target();
        change(&mut target);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("target.toml");
        std::fs::write(&file, toml::to_string(&target).unwrap()).unwrap();
        match Target::read(&file) {
            Ok(read) => {
                assert_eq!(read, target);
                String::new()
            }
            Err(error) => error.to_string().replace(file.to_str().unwrap(), "FILE"),
        }
    }

    #[test]
    fn this_machine_is_possible() {
        assert_eq!(
            super::super::cpu_target(Some(Bytes(1 << 30))).unwrap().and_then(|target| target.impossible()),
            None
        );
        assert_eq!(said_of(|_| ()), "");
    }

    #[test]
    fn impossible_values_name_file_and_key() {
        let step = "must be a power of two of at most 1.00 GiB";
        assert_eq!(said_of(|target| target.threads = 0), "FILE, line 3: `threads` must be from 1 to 65536");
        for wrong in [0, 96, 2 << 30] {
            let alignment = said_of(|target| target.alignment = Bytes(wrong));
            assert_eq!(alignment, format!("FILE, line 4: `alignment` {step}"));
            assert_eq!(said_of(|target| target.page = Bytes(wrong)), format!("FILE, line 5: `page` {step}"));
        }
        let alignment = said_of(|target| target.alignment = Bytes(32));
        assert_eq!(alignment, "FILE, line 4: `alignment` must be at least 64 B on a CPU");
        let memory = said_of(|target| target.memory = Bytes(0));
        assert_eq!(memory, "FILE, line 8: `memory` must be more than nothing");
        let host_memory = said_of(|target| target.host_memory = Some(Bytes(0)));
        assert_eq!(host_memory, "FILE, line 10: `host_memory` must be more than nothing");
        assert_eq!(said_of(|target| target.host_memory = Some(Bytes(1))), "");
        let too_little = Bytes(LEAST_PRODUCT_WORKSPACE_PER_THREAD - 1);
        assert_eq!(
            said_of(|target| target.product_workspace = too_little),
            "FILE, line 6: `product_workspace` must be at least 192 KiB on a CPU"
        );
    }

    #[test]
    fn a_card_needs_no_room_to_pack() {
        let card = |target: &mut Target| {
            target.kind = DeviceKind::Cuda;
            target.product_workspace = Bytes(0);
        };
        assert_eq!(said_of(card), "");
    }
}
