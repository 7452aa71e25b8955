//! `allocator`: a keyword, or a table with the options of the caching allocator.

use std::ops::Bound::Excluded;

use crate::reader::reference::Accepts;

use crate::reader::declare::{KeyCodec, KeyTable, Optional, Variant, key_table};
use crate::reader::forms::Form;
use crate::reader::keys::{Keys, ValueParser, join};
use crate::reader::parsers::{Boolean, FloatRange, U64Range};
use crate::reader::tree::{Node, Value, quoted};
use crate::reader::write::TableWriter;

/// Where memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Allocator {
    /// One request for the whole run; values have planned offsets in it.
    Arena,
    /// One request per value.
    Direct,
    /// A caching allocator for device memory: freed blocks are kept, and serve the next request that fits.
    Caching(Caching),
}

/// In MiB. Above the 20 MiB of the segments that small requests share; the upper bound exceeds every machine's memory.
const SPLIT: U64Range = U64Range(21..=1 << 32);

const SHARE_BELOW_ONE: FloatRange =
    FloatRange { bounds: (Excluded(0.0), Excluded(1.0)), expected: "a number between 0 and 1" };

key_table! {
    /// The options of PyTorch's `PYTORCH_CUDA_ALLOC_CONF`, under the same names.
    #[derive(Copy)]
    pub struct Caching: Default {
        /// Blocks of at least this size, in MiB, are never split and only serve requests of nearly their size.
        pub max_split_size_mb: Option<u64> = Optional(SPLIT), default None;
        /// Whether segments grow: physical memory is mapped behind address ranges that were reserved before.
        pub expandable_segments: bool = Boolean, default false;
        /// Share of the memory limit above which segments that were long unused are returned before more memory is
        /// requested.
        pub garbage_collection_threshold: Option<f64> = Optional(SHARE_BELOW_ONE), default None;
    }
}

impl Allocator {
    /// The keyword that selects it.
    pub fn name(self) -> &'static str {
        match self {
            Allocator::Arena => "arena",
            Allocator::Direct => "direct",
            Allocator::Caching(_) => "caching",
        }
    }

    pub fn is_caching(self) -> bool {
        matches!(self, Allocator::Caching(_))
    }
}

/// A keyword or `{ caching = { ... } }`.
pub(super) struct AllocatorCodec;

const TABLES: [Variant<Allocator>; 1] = [Variant {
    key: "caching",
    path: "allocator.caching",
    place: "`allocator.caching`",
    doc: Caching::DOC,
    keys: Caching::KEYS,
    reference: Caching::reference,
    read: |keys| Caching::read(keys).map(Allocator::Caching),
}];

impl KeyCodec for AllocatorCodec {
    type Output = Allocator;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<Allocator> {
        if node.table().is_none_or(|table| table.entry(TABLES[0].key).is_none()) {
            return keys.parse(key, node, &AllocatorKeyword);
        }
        keys.table_of(key, node, "allocator", "`allocator`")?.variant(&TABLES)
    }

    fn write(&self, key: &str, value: &Allocator, lines: &mut TableWriter) {
        let text = match value {
            Allocator::Caching(caching) if *caching != Caching::default() => {
                format!("{{ caching = {} }}", TableWriter::of(caching, lines.form()).inline())
            }
            plain => quoted(plain.name()),
        };
        lines.line(key, &text);
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = \"caching\"")
    }

    fn accepts(&self) -> Accepts {
        Accepts::parsed(&AllocatorKeyword).or_tables(&TABLES)
    }
}

/// The values that are not tables.
struct AllocatorKeyword;

const KEYWORDS: [Allocator; 3] = [
    Allocator::Arena,
    Allocator::Direct,
    Allocator::Caching(Caching {
        max_split_size_mb: None,
        expandable_segments: false,
        garbage_collection_threshold: None,
    }),
];

impl ValueParser for AllocatorKeyword {
    type Output = Allocator;

    fn parse(&self, value: &Value) -> Option<Allocator> {
        let Value::Text(text) = value else { return None };
        KEYWORDS.into_iter().find(|allocator| allocator.name() == text)
    }

    fn expected(&self) -> String {
        let words: Vec<String> = self.keywords().into_iter().map(quoted).collect();
        format!("{}, or {{ caching = {{ max_split_size_mb = 128 }} }}", join(&words, "or"))
    }

    fn forms(&self) -> Vec<Form> {
        vec![Form::words(&self.keywords())]
    }

    fn keywords(&self) -> Vec<&'static str> {
        KEYWORDS.map(Allocator::name).to_vec()
    }
}
