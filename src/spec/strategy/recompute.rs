//! `recompute`: what is computed again in backward instead of kept. A word, a list of parts of blocks, or a table.

use std::fmt;

use serde::Serialize;

use super::Strategy;
use crate::declare::{Declared, Words, Writable, words};
use crate::error::Problem;
use crate::kinds::{Count, SHARE, Size};
use crate::reader::{Keys, Kind};
use crate::rules::blame;
use crate::tree::{Entry, Table, Value, quoted};
use crate::word_set::{ListOf, WordSet, list_of};
use crate::write::Lines;
use base::units::Bytes;
use data::Given;
use ops::OpKind;

const NONE: &str = "none";
const BLOCK: &str = "block";
const AUTO: &str = "auto";

/// The keys of a table, of which it has one.
const FORMS: [&str; 4] = ["every", "segments", "save", "budget"];

/// No model has more of them.
const BLOCKS: Count = Count(1..=1 << 24);

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Recompute {
    None,
    /// All of every block but its input.
    Block,
    /// These parts of every block, each but for its input; there are some.
    Parts(WordSet<BlockPart>),
    /// The first of so many blocks in a row.
    Every(usize),
    /// So many stretches of equally many blocks, but for the last one, each but for its input.
    Segments(usize),
    /// All of every block but its input and what these operations give.
    Save(WordSet<OpKind>),
    /// What costs the least time of all that meets it.
    Budget(Budget),
}

/// The most that the device's pool may ever take of its memory, start-up and update included.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
pub enum Budget {
    Bytes(Bytes),
    /// A share of what it takes where nothing is computed again.
    Share(f64),
    /// As much as there is.
    Memory,
}

words! {
    /// What a block has.
    pub enum BlockPart {
        Attention = "attention",
        Mlp = "mlp",
        /// What norms give alone: it takes as much as a block's input, and little to compute.
        Norm = "norm",
    }
}

impl Words for OpKind {
    const ALL: &'static [OpKind] = &[OpKind::Linear, OpKind::Attention, OpKind::Norm];
    const LATER: &'static [&'static str] = &[];

    fn word(self) -> &'static str {
        match self {
            OpKind::Linear => "linear",
            OpKind::Attention => "attention",
            OpKind::Norm => "norm",
        }
    }
}

/// One name for each choice.
impl Recompute {
    fn every(blocks: usize) -> Recompute {
        if blocks == 1 { Recompute::Block } else { Recompute::Every(blocks) }
    }

    /// The last of them is kept whole.
    fn segments(count: usize) -> Recompute {
        if count == 1 { Recompute::None } else { Recompute::Segments(count) }
    }

    fn but_for(saved: WordSet<OpKind>) -> Recompute {
        if saved.is_empty() { Recompute::Block } else { Recompute::Save(saved) }
    }

    /// Norms are part of attention and mlp.
    fn of_parts(parts: WordSet<BlockPart>) -> Recompute {
        let whole = [BlockPart::Attention, BlockPart::Mlp];
        if parts.is_empty() {
            Recompute::None
        } else if whole.iter().all(|part| parts.contains(*part)) {
            Recompute::Parts(whole.into_iter().collect())
        } else {
            Recompute::Parts(parts)
        }
    }
}

impl Strategy {
    /// A segment has a block at least.
    pub(crate) fn segments_have_blocks(&self, blocks: Given, tree: &Table) -> Result<(), Problem> {
        let Given { key, count } = blocks;
        match self.recompute {
            Recompute::Segments(segments) if segments > count => Err(blame(
                format!("recompute.segments = {segments} is more than there are blocks, {key} = {count}"),
                &["strategy.recompute.segments", key],
                tree,
                if count == 1 { "1 does".to_owned() } else { format!("1 to {count} do") },
            )),
            _ => Ok(()),
        }
    }
}

/// As files have it.
impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recompute::None => f.write_str(&quoted(NONE)),
            Recompute::Block => f.write_str(&quoted(BLOCK)),
            Recompute::Parts(parts) => f.write_str(&list_of().text(parts)),
            Recompute::Every(blocks) => write!(f, "{{ every = {blocks} }}"),
            Recompute::Segments(segments) => write!(f, "{{ segments = {segments} }}"),
            Recompute::Save(kinds) => write!(f, "{{ save = {} }}", list_of().text(kinds)),
            Recompute::Budget(Budget::Memory) => f.write_str(&quoted(AUTO)),
            Recompute::Budget(budget) => write!(f, "{{ budget = {} }}", SizeOrShare.text(budget)),
        }
    }
}

/// What the key takes.
pub(super) struct RecomputeParser;

impl Declared for RecomputeParser {
    type Output = Recompute;

    fn read<'a>(&self, keys: &Keys<'a>, entry: &'a Entry) -> Option<Recompute> {
        let Some(table) = entry.node.table() else { return keys.parse(entry, &WordOrList) };
        let mut keys = keys.table_of(entry, "recompute", "`recompute`")?;
        let said: Vec<&str> = table.entries.iter().map(|entry| entry.key.as_str()).collect();
        let read = match said[..] {
            ["every"] => keys.key("every", None, BLOCKS).map(Recompute::every),
            ["segments"] => keys.key("segments", None, BLOCKS).map(Recompute::segments),
            ["save"] => keys.key("save", None, list_of()).map(Recompute::but_for),
            ["budget"] => keys.key("budget", None, SizeOrShare).map(Recompute::Budget),
            // What is not known is told with what is.
            _ => {
                for form in FORMS {
                    let _ = keys.entry(form);
                }
                None
            }
        };
        let reader = keys.reader();
        keys.finish();
        // What is unknown has been told already.
        if read.is_none() && said.len() != 1 && said.iter().all(|key| FORMS.contains(key)) {
            reader.problem(
                Problem::new("`recompute` takes one of `every`, `segments`, `save` and `budget`")
                    .at(entry.node.span)
                    .help(format!("it can be {}", WordOrList.expected())),
            );
        }
        read
    }

    fn write(&self, key: &str, value: &Recompute, lines: &mut Lines) {
        lines.line(key, &value.to_string());
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = \"block\"")
    }
}

/// The forms that are no tables.
struct WordOrList;

impl Kind for WordOrList {
    type Output = Recompute;

    fn parse(&self, value: &Value) -> Option<Recompute> {
        let parts: ListOf<BlockPart> = list_of();
        match value {
            Value::Text(text) if text == NONE => Some(Recompute::None),
            Value::Text(text) if text == BLOCK => Some(Recompute::Block),
            Value::Text(text) if text == AUTO => Some(Recompute::Budget(Budget::Memory)),
            value => parts.parse(value).map(Recompute::of_parts),
        }
    }

    fn expected(&self) -> String {
        let parts: ListOf<BlockPart> = list_of();
        format!(
            "\"none\", \"block\", \"auto\", {}, or a table: {{ every = 2 }}, {{ segments = 4 }}, {{ save = [\"linear\"] }} or \
             {{ budget = 0.5 }}",
            parts.expected()
        )
    }

    fn words(&self) -> Vec<&'static str> {
        vec![NONE, BLOCK, AUTO]
    }

    /// What stands without its brackets or braces.
    fn meant(&self, value: &Value) -> Option<String> {
        let part = match value {
            Value::Text(text) => BlockPart::ALL.iter().find(|part| part.word() == text),
            _ => None,
        };
        match part {
            Some(part) => Some(format!("[{}]", quoted(part.word()))),
            // A whole number is no share of anything.
            None if matches!(value, Value::Integer(_)) => None,
            None => SizeOrShare.parse(value).map(|budget| Recompute::Budget(budget).to_string()),
        }
    }
}

/// A size in bytes with its unit, or a share.
struct SizeOrShare;

impl Kind for SizeOrShare {
    type Output = Budget;

    fn parse(&self, value: &Value) -> Option<Budget> {
        match value {
            Value::Text(_) => Size.parse(value).map(Budget::Bytes),
            _ => SHARE.parse(value).map(Budget::Share),
        }
    }

    fn expected(&self) -> String {
        "a size with its unit, such as \"4 GiB\", or a share of what is needed with \"none\", such as 0.5"
            .to_owned()
    }
}

impl Writable for SizeOrShare {
    fn text(&self, budget: &Budget) -> String {
        match budget {
            Budget::Bytes(bytes) => quoted(&bytes.exact()),
            Budget::Share(share) => SHARE.text(share),
            Budget::Memory => quoted(AUTO),
        }
    }
}
