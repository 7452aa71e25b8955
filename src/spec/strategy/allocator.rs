//! `allocator`: a word, or a table of what a caching one is told.

use serde::Serialize;

use super::{EmptyCache, Strategy};
use crate::spec::declare::{Declared, Optional, Section, Variant, Words, section};
use crate::spec::error::Problem;
use crate::spec::kinds::{Flag, Number, Whole};
use crate::spec::reader::{Keys, Kind, join};
use crate::spec::rules::blame;
use crate::spec::tree::{Entry, Table, Value, quoted};
use crate::spec::write::Lines;

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

impl Strategy {
    /// A captured stretch holds the addresses of its values.
    pub(in crate::spec) fn graphs_need_an_arena(&self, tree: &Table) -> Result<(), Problem> {
        if !self.graph || self.allocator == Allocator::Arena {
            return Ok(());
        }
        let name = quoted(self.allocator.name());
        Err(blame(
            format!(
                "graph = true replays work on the same addresses; allocator = {name} gives others each time"
            ),
            &["strategy.graph", "strategy.allocator"],
            tree,
            "allocator = \"arena\" does, or graph = false",
        ))
    }

    /// Both are for segments of fixed sizes, which are given back, or left undivided, as a whole.
    pub(in crate::spec) fn segments_grow_or_stay_whole(&self, tree: &Table) -> Result<(), Problem> {
        let Allocator::Caching(caching) = self.allocator else { return Ok(()) };
        let other = match caching {
            Caching { expandable_segments: false, .. } => return Ok(()),
            Caching { max_split_size_mb: Some(_), .. } => "max_split_size_mb",
            Caching { garbage_collection_threshold: Some(_), .. } => "garbage_collection_threshold",
            _ => return Ok(()),
        };
        Err(blame(
            format!("{other} is for segments of fixed sizes; with expandable_segments = true they grow"),
            &[
                &format!("strategy.allocator.caching.{other}"),
                "strategy.allocator.caching.expandable_segments",
            ],
            tree,
            format!("leave {other} out, or expandable_segments = false"),
        ))
    }

    pub(in crate::spec) fn empties_a_cache(&self, tree: &Table) -> Result<(), Problem> {
        if self.empty_cache == EmptyCache::Never || self.allocator.is_caching() {
            return Ok(());
        }
        let (word, name) = (quoted(self.empty_cache.word()), quoted(self.allocator.name()));
        Err(blame(
            format!("empty_cache = {word} gives back what a cache holds; allocator = {name} keeps none"),
            &["strategy.empty_cache", "strategy.allocator"],
            tree,
            "allocator = \"caching\" does, or empty_cache = \"never\"",
        ))
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
        if entry.node.table().is_none() {
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
