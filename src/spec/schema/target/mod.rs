//! Target files: the properties of the machine that predictions are for, written by the program or by hand.

use std::path::Path;

use super::hints::TARGET;
use crate::reader::declare::KeywordEnum;
use crate::reader::error::{Error, Problem};
use crate::reader::forms::Form;
use crate::reader::keys::{Keys, Reader, ValueParser};
use crate::reader::other_files::{Wanted, other_file};
use crate::reader::parse::parse;
use crate::reader::parsers::{
    BYTE_RATE, Boolean, ByteSize, ComputeCapability, FLOP_RATE, NonEmptyText, UsizeRange, keyword,
};
use crate::reader::reference::{Accepts, DeclaredKey};
use crate::reader::source::{SourceText, Sources};
use crate::reader::tree::{Table, Value};
use base::rates::{BytesPerSecond, FlopsPerSecond};
use base::regular;
use base::units::Bytes;
use device::{
    self, ASSUMED_CONTEXT, DeviceKind, Figures, KnownCard, LEAST_PRODUCT_WORKSPACE_PER_THREAD,
    OPERAND_ALIGNMENT, Target,
};

/// More than any machine has; keeps sums of sizes within 64 bits.
const THREADS: UsizeRange = UsizeRange(1..=1 << 16);
/// At most the largest number of ranks.
const CARDS: UsizeRange = UsizeRange(1..=4096);
const LARGEST_POWER: u64 = 1 << 30;

const POSITIVE_SIZE: ByteSize = ByteSize { holds: |bytes| bytes > 0, expected: "a size above 0" };
const ANY_SIZE: ByteSize = ByteSize { holds: |_| true, expected: "a size" };
const POWER_OF_TWO: ByteSize =
    ByteSize { holds: is_power_of_two_size, expected: "a power of two of at most 1 GiB" };
const ALIGNMENT_ON_CPU: ByteSize = ByteSize {
    holds: |bytes| is_power_of_two_size(bytes) && bytes >= OPERAND_ALIGNMENT,
    expected: "a power of two from 64 B, the least that CPU kernels need, to 1 GiB",
};
const WORKSPACE: ByteSize = ByteSize { holds: is_workspace, expected: "a size of at most 1 TiB" };
const WORKSPACE_ON_CPU: ByteSize = ByteSize {
    holds: |bytes| is_workspace(bytes) && bytes >= LEAST_PRODUCT_WORKSPACE_PER_THREAD,
    expected: "a size from 192 KiB, the least that CPU kernels need, to 1 TiB",
};

fn is_power_of_two_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && bytes <= LARGEST_POWER
}

fn is_workspace(bytes: u64) -> bool {
    bytes <= 1 << 40
}

/// A target read from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    pub target: Target,
    pub node: NodeRates,
    /// Keys that the file does not set, and the values used instead.
    pub filled_in: Vec<(&'static str, Bytes)>,
}

/// Rates of the node that a card is in, which time estimates need: of its host, of the links, and of the network to other
/// nodes. They change no memory and are part of no run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeRates {
    /// Bytes per second from device to host memory, and as many back.
    pub link: Option<BytesPerSecond>,
    /// Bytes per second that the host's operations read and write.
    pub host_bandwidth: Option<BytesPerSecond>,
    /// Rate of the host's fp32 matmuls.
    pub host_flops: Option<FlopsPerSecond>,
    /// Cards of a node.
    pub cards: Option<usize>,
    /// Bytes per second between a card and others of its node, in each direction.
    pub card_link: Option<BytesPerSecond>,
    /// A card's share of its node's bytes per second to other nodes, in each direction.
    pub network: Option<BytesPerSecond>,
}

impl NodeRates {
    /// These rates; missing ones are taken from `others`.
    pub fn or(self, others: NodeRates) -> NodeRates {
        NodeRates {
            link: self.link.or(others.link),
            host_bandwidth: self.host_bandwidth.or(others.host_bandwidth),
            host_flops: self.host_flops.or(others.host_flops),
            cards: self.cards.or(others.cards),
            card_link: self.card_link.or(others.card_link),
            network: self.network.or(others.network),
        }
    }

    /// As lines of a target file.
    pub fn to_toml(self) -> String {
        let NodeRates { link, host_bandwidth, host_flops, cards, card_link, network } = self;
        let rate = |key, rate: Option<BytesPerSecond>| rate.map(|rate| format!("{key} = \"{rate}\"\n"));
        let lines = [
            rate("link", link),
            host_bandwidth.map(|_| format!("host_threads = {HOST_THREADS}\n")),
            rate("host_bandwidth", host_bandwidth),
            host_flops.map(|rate| format!("host_flops = \"{rate}\"\n")),
            cards.map(|cards| format!("cards = {cards}\n")),
            rate("card_link", card_link),
            rate("network", network),
        ];
        lines.into_iter().flatten().collect()
    }
}

/// The threads that operations on a card's host run on: the only value of `host_threads`.
pub const HOST_THREADS: usize = 1;

/// The value of `host_threads`.
struct HostThreads;

impl ValueParser for HostThreads {
    type Output = usize;

    fn parse(&self, value: &Value) -> Option<usize> {
        (*value == Value::Integer(HOST_THREADS as i128)).then_some(HOST_THREADS)
    }

    fn expected(&self) -> String {
        format!("{HOST_THREADS}, the number of threads that operations on a card's host run on")
    }

    fn forms(&self) -> Vec<Form> {
        vec![Form::Integer(HOST_THREADS as u64..=HOST_THREADS as u64)]
    }
}

impl KeywordEnum for DeviceKind {
    const ALL: &'static [DeviceKind] = &[DeviceKind::Cpu, DeviceKind::Cuda];

    fn keyword(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
        }
    }
}

impl KeywordEnum for Figures {
    const ALL: &'static [Figures] = &[Figures::Measured, Figures::DataSheet, Figures::Assumed];

    fn keyword(self) -> &'static str {
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
/// The file cannot be read, is not TOML, or has unknown keys or values out of range: all problems in one error.
pub fn read_target(path: &Path) -> Result<Described, Error> {
    let mut sources = Sources::default();
    read(path, &mut sources).map_err(|problems| sources.error(&problems))
}

fn read(path: &Path, sources: &mut Sources) -> Result<Described, Vec<Problem>> {
    let name = path.display().to_string();
    let instead = || {
        let other = other_file(path, Wanted::Target)?;
        Some(Problem::new(other.message(path, Wanted::Target)).help(other.help))
    };
    let text = regular::read_to_string(path).map_err(|error| {
        let failed =
            || Problem::new(format!("cannot read the target file {name}: {}", regular::reason(&error)));
        instead().unwrap_or_else(failed)
    })?;
    // None of its keys is a path, so it needs no directory.
    let source = sources.add(SourceText { name, directory: Default::default(), text, numbered: true });
    let table =
        parse(sources.text(source), source, 0).map_err(|problems| instead().map_or(problems, Vec::from))?;
    let is_target = table.entries.iter().any(|entry| ["kind", "memory"].contains(&entry.key.as_str()));
    if !is_target && let Some(problem) = instead() {
        return Err(problem.into());
    }
    let reader = Reader::complete(&TARGET, sources, &|_| None);
    let described = described(&reader, &table);
    reader.finish(described)
}

/// The keys of a target file, which `described` reads.
pub(crate) fn reference() -> Vec<DeclaredKey> {
    let (kind, figures) = (keyword::<DeviceKind>(), keyword::<Figures>());
    let required = |key, doc, accepts| DeclaredKey::new(key, doc, accepts, None);
    let key = |key, doc, accepts, default| DeclaredKey::new(key, doc, accepts, Some(default));
    let (of_cards, measured) = ("that of every card", "unknown");
    let of_name = "that of a known card's board";
    vec![
        required("name", "Name of the device.", Accepts::parsed(&NonEmptyText)),
        required("kind", "Kind of the device.", Accepts::parsed(&kind)),
        required("memory", "Total memory of the device.", Accepts::parsed(&POSITIVE_SIZE)),
        key("capability", "Compute capability of a card.", Accepts::parsed(&ComputeCapability), "none"),
        key(
            "threads",
            "Compute threads of a CPU, which must have the key.",
            Accepts::parsed(&THREADS),
            of_cards,
        ),
        key("alignment", "Alignment of values in memory.", Accepts::parsed(&POWER_OF_TWO), of_cards),
        key(
            "page",
            "Size that memory is obtained in multiples of.",
            Accepts::parsed(&POWER_OF_TWO),
            of_cards,
        ),
        key("product_workspace", "Workspace of matmuls.", Accepts::parsed(&WORKSPACE), of_cards),
        key("context", "Memory that a CUDA context takes.", Accepts::parsed(&ANY_SIZE), "assumed"),
        key(
            "communicator",
            "Memory that NCCL takes on a card of a run with ranks.",
            Accepts::parsed(&ANY_SIZE),
            "assumed",
        ),
        key(
            "limited",
            "Whether `memory` is a limit below that of the device.",
            Accepts::parsed(&Boolean),
            "`false`",
        ),
        key("host_memory", "Memory of the host.", Accepts::parsed(&POSITIVE_SIZE), "no limit"),
        key("figures", "Origin of the figures.", Accepts::parsed(&figures), "`\"measured\"`"),
        key(
            "link",
            "Rate of the link between a card and its host, per direction.",
            Accepts::parsed(&BYTE_RATE),
            measured,
        ),
        key(
            "host_threads",
            "Threads that operations on a card's host run on.",
            Accepts::parsed(&HostThreads),
            "`1`",
        ),
        key(
            "host_bandwidth",
            "Bytes that operations on a card's host read and write, per second.",
            Accepts::parsed(&BYTE_RATE),
            measured,
        ),
        key("host_flops", "Rate of the host's fp32 matmuls.", Accepts::parsed(&FLOP_RATE), measured),
        key("cards", "Cards of a node.", Accepts::parsed(&CARDS), of_name),
        key(
            "card_link",
            "Rate between a card and others of its node, per direction.",
            Accepts::parsed(&BYTE_RATE),
            of_name,
        ),
        key(
            "network",
            "Rate between a node and others, per direction, divided by `cards`.",
            Accepts::parsed(&BYTE_RATE),
            measured,
        ),
    ]
}

fn described<'a>(reader: &'a Reader<'a>, table: &'a Table) -> Option<Described> {
    let mut keys = reader.keys(table, "", "a target file");
    let name = required(&mut keys, "name", NonEmptyText, "the device's name, such as `name = \"my card\"`");
    let kind = required(&mut keys, "kind", keyword::<DeviceKind>(), "`kind = \"cuda\"` or `kind = \"cpu\"`");
    let memory =
        required(&mut keys, "memory", POSITIVE_SIZE, "its total memory, such as `memory = \"24 GiB\"`");
    // An unknown kind does not hide problems of the other keys.
    let on_cpu = kind == Some(DeviceKind::Cpu);
    let capability = keys.optional("capability", ComputeCapability);
    let threads = match on_cpu {
        true => {
            required(&mut keys, "threads", THREADS, "the number of compute threads, such as `threads = 8`")
                .map(Some)
        }
        false => keys.optional("threads", THREADS),
    };
    let alignment = keys.optional("alignment", if on_cpu { ALIGNMENT_ON_CPU } else { POWER_OF_TWO });
    let page = keys.optional("page", POWER_OF_TWO);
    let workspace = keys.optional("product_workspace", if on_cpu { WORKSPACE_ON_CPU } else { WORKSPACE });
    let context = keys.optional("context", ANY_SIZE);
    let communicator = keys.optional("communicator", ANY_SIZE);
    let limited = keys.optional("limited", Boolean);
    let host_memory = keys.optional("host_memory", POSITIVE_SIZE);
    let figures = keys.optional("figures", keyword::<Figures>());
    let has_cards = name.as_deref().and_then(KnownCard::named).is_some_and(|card| card.cards().is_some());
    let node = node_rates(reader, &mut keys, on_cpu, has_cards);
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
        communicator: communicator?,
        limited: limited?.unwrap_or(blank.limited),
        host_memory: host_memory?,
        figures: figures.unwrap_or_default(),
        ..blank
    };
    Some(Described { target, node: node?, filled_in })
}

/// The rates of a card's node. A CPU has none of these keys. `has_cards`: whether its name supplies `cards`.
fn node_rates<'a>(
    reader: &'a Reader<'a>,
    keys: &mut Keys<'a>,
    on_cpu: bool,
    has_cards: bool,
) -> Option<NodeRates> {
    let of_host = ["link", "host_threads", "host_bandwidth", "host_flops"];
    let of_ranks = ["communicator", "cards", "card_link", "network"];
    for key in of_host.into_iter().chain(of_ranks) {
        if let Some(entry) = keys.entry(key).filter(|_| on_cpu) {
            let why = match key {
                key if of_ranks.contains(&key) => "ranks on a CPU exchange in shared memory",
                _ => "a CPU's device and host pools are one memory",
            };
            let problem = format!("`{key}` is a key of cards: {why}");
            reader.problem(Problem::new(problem).at(entry.key_span).help("remove it"));
        }
    }
    let (link, threads) = (keys.optional("link", BYTE_RATE), keys.optional("host_threads", HostThreads));
    let (bandwidth, flops) =
        (keys.optional("host_bandwidth", BYTE_RATE), keys.optional("host_flops", FLOP_RATE));
    if let Some(entry) = keys.entry("network").filter(|_| !on_cpu && !has_cards)
        && keys.entry("cards").is_none()
    {
        let problem = Problem::new("`network` has no effect without `cards`: ranks may all be in one node");
        reader.problem(problem.at(entry.key_span).help("add the cards of a node, such as `cards = 8`"));
    }
    let cards = keys.optional("cards", CARDS);
    let (card_link, network) = (keys.optional("card_link", BYTE_RATE), keys.optional("network", BYTE_RATE));
    threads?;
    Some(NodeRates {
        link: link?,
        host_bandwidth: bandwidth?,
        host_flops: flops?,
        cards: cards?,
        card_link: card_link?,
        network: network?,
    })
}

/// A required key.
fn required<'a, K: ValueParser>(
    keys: &mut Keys<'a>,
    key: &'a str,
    kind: K,
    write: &str,
) -> Option<K::Output> {
    match keys.entry(key) {
        Some(entry) => keys.parse(key, &entry.node, &kind),
        None => {
            keys.missing(key, write);
            None
        }
    }
}

#[cfg(test)]
mod tests;
