//! A target file: what a machine is that is planned for, as the program or somebody wrote it.

use std::path::Path;

use super::declare::Words;
use super::error::{Error, Problem};
use super::kinds::{Amount, Capability, Count, Flag, Text, word};
use super::load::reason;
use super::parse::parse;
use super::reader::{Keys, Kind, Reader};
use super::source::{Source, Sources};
use super::tree::Table;
use base::regular;
use base::units::Bytes;
use device::{
    self, ASSUMED_CONTEXT, DeviceKind, Figures, LEAST_PRODUCT_WORKSPACE_PER_THREAD, OPERAND_ALIGNMENT, Target,
};

/// More than any machine has; keeps sums of sizes within 64 bits.
const THREADS: Count = Count(1..=1 << 16);
const LARGEST_STEP: u64 = 1 << 30;

const SOME: Amount = Amount { holds: |bytes| bytes > 0, expected: "a size above nothing" };
const ANY: Amount = Amount { holds: |_| true, expected: "a size" };
const STEP: Amount = Amount { holds: is_step, expected: "a power of two of at most 1 GiB" };
const ALIGNMENT_ON_CPU: Amount = Amount {
    holds: |bytes| is_step(bytes) && bytes >= OPERAND_ALIGNMENT,
    expected: "a power of two from 64 B, which a CPU's kernels need, to 1 GiB",
};
const WORKSPACE: Amount = Amount { holds: is_workspace, expected: "a size of at most 1 TiB" };
const WORKSPACE_ON_CPU: Amount = Amount {
    holds: |bytes| is_workspace(bytes) && bytes >= LEAST_PRODUCT_WORKSPACE_PER_THREAD,
    expected: "a size from 192 KiB, which a CPU's kernels need, to 1 TiB",
};

fn is_step(bytes: u64) -> bool {
    bytes.is_power_of_two() && bytes <= LARGEST_STEP
}

fn is_workspace(bytes: u64) -> bool {
    bytes <= 1 << 40
}

/// A machine as it was described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    pub target: Target,
    /// Keys that the file leaves out, and what stands for them.
    pub filled_in: Vec<(&'static str, Bytes)>,
}

impl Words for Figures {
    const ALL: &'static [Figures] = &[Figures::Measured, Figures::DataSheet, Figures::Assumed];
    const LATER: &'static [&'static str] = &[];

    fn word(self) -> &'static str {
        match self {
            Figures::Measured => "measured",
            Figures::DataSheet => "data sheet",
            Figures::Assumed => "assumed",
        }
    }
}

/// Reads a target file.
///
/// # Errors
/// It cannot be read, is no TOML, or has keys that there are not, or values that no machine has or this program cannot work
/// with: all of them at once.
pub fn read_target(path: &Path) -> Result<Described, Error> {
    let mut sources = Sources::default();
    read(path, &mut sources).map_err(|problems| sources.error(&problems))
}

fn read(path: &Path, sources: &mut Sources) -> Result<Described, Vec<Problem>> {
    let name = path.display().to_string();
    let text = regular::read_to_string(path)
        .map_err(|error| Problem::new(format!("cannot read the target file {name}: {}", reason(&error))))?;
    // No key of it is a path.
    let source = sources.add(Source { name, directory: Default::default(), text, numbered: true });
    let table = parse(sources.text(source), source, 0)?;
    let reader = Reader::target(sources, &|_| None);
    let described = described(&reader, &table);
    reader.finish(described)
}

fn described<'a>(reader: &'a Reader<'a>, table: &'a Table) -> Option<Described> {
    let mut keys = reader.keys(table, "", "a target file");
    let name = required(&mut keys, "name", Text, "the device's name, as `name = \"my card\"`");
    let kind = required(&mut keys, "kind", word::<DeviceKind>(), "`kind = \"cuda\"` or `kind = \"cpu\"`");
    let memory = required(&mut keys, "memory", SOME, "all memory that it has, as `memory = \"24 GiB\"`");
    // What is wrong with other keys is found whatever it is.
    let on_cpu = kind == Some(DeviceKind::Cpu);
    let capability = keys.optional("capability", Capability);
    let threads = match on_cpu {
        true => {
            required(&mut keys, "threads", THREADS, "how many it computes with, as `threads = 8`").map(Some)
        }
        false => keys.optional("threads", THREADS),
    };
    let alignment = keys.optional("alignment", if on_cpu { ALIGNMENT_ON_CPU } else { STEP });
    let page = keys.optional("page", STEP);
    let workspace = keys.optional("product_workspace", if on_cpu { WORKSPACE_ON_CPU } else { WORKSPACE });
    let context = keys.optional("context", ANY);
    let limited = keys.optional("limited", Flag);
    let host_memory = keys.optional("host_memory", SOME);
    let figures = keys.optional("figures", word::<Figures>());
    keys.finish();

    let (name, memory, threads, capability) = (name?, memory?, threads?, capability?);
    let (blank, figures) = match kind? {
        DeviceKind::Cpu => (device::described_processor(&name, threads?, memory), figures?),
        DeviceKind::Cuda => {
            let blank = device::described_card(&name, capability.clone(), memory, ASSUMED_CONTEXT);
            (blank, figures?.or(context?.is_none().then_some(Figures::Assumed)))
        }
    };
    let mut filled_in = Vec::new();
    let mut or = |key: &'static str, written: Option<Bytes>, blank: Bytes| {
        if written.is_none() {
            filled_in.push((key, blank));
        }
        written.unwrap_or(blank)
    };
    let target = Target {
        capability,
        threads: threads.unwrap_or(blank.threads),
        alignment: or("alignment", alignment?, blank.alignment),
        page: or("page", page?, blank.page),
        product_workspace: or("product_workspace", workspace?, blank.product_workspace),
        context: or("context", context?, blank.context),
        limited: limited?.unwrap_or(blank.limited),
        host_memory: host_memory?,
        figures: figures.unwrap_or_default(),
        ..blank
    };
    Some(Described { target, filled_in })
}

/// A key that nothing can stand for.
fn required<'a, K: Kind>(keys: &mut Keys<'a>, key: &'a str, kind: K, write: &str) -> Option<K::Output> {
    match keys.entry(key) {
        Some(entry) => keys.parse(entry, &kind),
        None => {
            keys.missing(key, write);
            None
        }
    }
}

#[cfg(test)]
mod tests;
