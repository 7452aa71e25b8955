//! `allocator`: a word, or a table of what a caching one is told.

use serde::Serialize;

use crate::declare::{Declared, Optional, Section, Variant, section};
use crate::kinds::{Flag, Number, Whole};
use crate::reader::{Keys, Kind, join};
use crate::tree::{Entry, Value, quoted};
use crate::write::Lines;

/// Where memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Allocator {
    /// One request for the whole run; values have planned places in it.
    Arena,
    /// One request for each value.
    Direct,
    /// Of the device's memory: what is freed is kept, and serves the next request that it is large enough for.
    Caching(Caching),
}

/// MiB. Above the 20 MiB of a segment that smaller requests share; no machine has as much as the most.
const SPLIT: Whole = Whole(21..=1 << 32);

const SHARE_BELOW_ONE: Number =
    Number { holds: |share| share > 0.0 && share < 1.0, expected: "a number between 0 and 1" };

section! {
    /// What PyTorch's `PYTORCH_CUDA_ALLOC_CONF` says, under the same names.
    #[derive(Copy)]
    pub struct Caching: Default {
        /// Blocks of this many MiB or more are never split, and serve requests of nearly their size alone.
        pub max_split_size_mb: Option<u64> = Optional(SPLIT), default None;
        /// Whether segments grow, as memory is put behind addresses that were reserved before.
        pub expandable_segments: bool = Flag, default false;
        /// The share of the memory limit above which what has long been unused is given back before more is asked for.
        pub garbage_collection_threshold: Option<f64> = Optional(SHARE_BELOW_ONE), default None;
    }
}

impl Allocator {
    /// By the word that chooses it.
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

/// What the key takes.
pub(super) struct WordOrCaching;

const TABLES: [Variant<Allocator>; 1] = [Variant {
    key: "caching",
    path: "allocator.caching",
    place: "`allocator.caching`",
    keys: Caching::KEYS,
    read: |keys| Caching::read(keys).map(Allocator::Caching),
}];

impl Declared for WordOrCaching {
    type Output = Allocator;

    fn read<'a>(&self, keys: &Keys<'a>, entry: &'a Entry) -> Option<Allocator> {
        if entry.node.table().is_none_or(|table| table.entry(TABLES[0].key).is_none()) {
            return keys.parse(entry, &Word);
        }
        keys.table_of(entry, "allocator", "`allocator`")?.variant(&TABLES)
    }

    fn write(&self, key: &str, value: &Allocator, lines: &mut Lines) {
        let text = match value {
            Allocator::Caching(caching) if *caching != Caching::default() => {
                format!("{{ caching = {} }}", Lines::of(caching, lines.form()).inline())
            }
            plain => quoted(plain.name()),
        };
        lines.line(key, &text);
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = \"caching\"")
    }
}

/// The forms that are not tables.
struct Word;

const WORDS: [Allocator; 3] = [
    Allocator::Arena,
    Allocator::Direct,
    Allocator::Caching(Caching {
        max_split_size_mb: None,
        expandable_segments: false,
        garbage_collection_threshold: None,
    }),
];

impl Kind for Word {
    type Output = Allocator;

    fn parse(&self, value: &Value) -> Option<Allocator> {
        let Value::Text(text) = value else { return None };
        WORDS.into_iter().find(|allocator| allocator.name() == text)
    }

    fn expected(&self) -> String {
        let words: Vec<String> = self.words().into_iter().map(quoted).collect();
        format!("{}, or {{ caching = {{ max_split_size_mb = 128 }} }}", join(&words, "or"))
    }

    fn words(&self) -> Vec<&'static str> {
        WORDS.map(Allocator::name).to_vec()
    }
}
