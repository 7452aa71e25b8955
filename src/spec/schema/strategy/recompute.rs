//! `recompute`: the activations that backward recomputes instead of keeping them. A keyword, a list of block parts, or
//! a table.

use crate::reader::reference::{Accepts, DeclaredKey};
use std::fmt;

use super::Strategy;
use crate::reader::declare::{KeyCodec, KeywordEnum, Writable, keywords};
use crate::reader::error::Problem;
use crate::reader::forms::Form;
use crate::reader::keys::{Keys, ValueParser, join};
use crate::reader::keyword_set::KeywordSet;
use crate::reader::list::List;
use crate::reader::parsers::{Keyword, SHARE, SizeWithUnit, UsizeRange, keyword};
use crate::reader::tree::{Node, Table, Value, quoted};
use crate::reader::write::TableWriter;
use crate::schema::rules::attach_span;
use base::units::Bytes;
use data::KeyedCount;
use ops::OpKind;

const NONE: &str = "none";
const BLOCK: &str = "block";
const AUTO: &str = "auto";

/// The keys of the table form, which takes exactly one of them.
const FORMS: [&str; 4] = ["every", "segments", "save", "budget"];

const PARTS: List<Keyword<BlockPart>> = List {
    of: "block parts",
    example: "[\"mlp\"]",
    may_be_empty: true,
    may_repeat: false,
    element: keyword(),
};
const SAVED: List<Keyword<OpKind>> = List {
    of: "operations",
    example: "[\"linear\"]",
    may_be_empty: true,
    may_repeat: false,
    element: keyword(),
};

/// More blocks than any model has.
const BLOCKS: UsizeRange = UsizeRange(1..=1 << 24);

#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Recompute {
    None,
    /// Recompute every block from its input.
    Block,
    /// Recompute these parts of every block, each from its input. Not empty.
    Parts(KeywordSet<BlockPart>),
    /// Recompute the first of every n blocks.
    Every(usize),
    /// Recompute n segments of equally many blocks, except the last one, each from its input (`checkpoint_sequential`).
    Segments(usize),
    /// Recompute every block from its input, but save the results of these operations (selective activation
    /// checkpointing).
    Save(KeywordSet<OpKind>),
    /// The fastest recompute plan whose peak fits the budget.
    Budget(Budget),
}

/// Upper bound of the device pool's peak memory, start-up and update included.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Budget {
    Bytes(Bytes),
    /// A share of the peak without recomputation.
    Share(f64),
    /// The memory limit.
    Memory,
}

keywords! {
    /// Parts of a block that can be recomputed.
    pub enum BlockPart {
        Attention = "attention",
        Mlp = "mlp",
        /// The results of norms only: each is as large as a block's input and cheap to compute.
        Norm = "norm",
    }
}

impl KeywordEnum for OpKind {
    const ALL: &'static [OpKind] = &[OpKind::Linear, OpKind::Attention, OpKind::Norm];

    fn keyword(self) -> &'static str {
        match self {
            OpKind::Linear => "linear",
            OpKind::Attention => "attention",
            OpKind::Norm => "norm",
        }
    }
}

/// Constructors that map equivalent choices to one value.
impl Recompute {
    fn every(blocks: usize) -> Recompute {
        if blocks == 1 { Recompute::Block } else { Recompute::Every(blocks) }
    }

    /// The last segment is never recomputed.
    fn segments(count: usize) -> Recompute {
        if count == 1 { Recompute::None } else { Recompute::Segments(count) }
    }

    fn saving(saved: KeywordSet<OpKind>) -> Recompute {
        if saved.is_empty() { Recompute::Block } else { Recompute::Save(saved) }
    }

    /// `Attention` and `Mlp` include their norms.
    fn parts(parts: KeywordSet<BlockPart>) -> Recompute {
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
    /// Fails if there are more segments than layers.
    pub(crate) fn segments_have_layers(&self, layers: KeyedCount, tree: &Table) -> Result<(), Problem> {
        let KeyedCount { key, count } = layers;
        match self.recompute {
            Recompute::Segments(segments) if segments > count => Err(attach_span(
                format!("recompute.segments = {segments} exceeds the number of layers, {count} of {key}"),
                &["strategy.recompute.segments", key],
                tree,
                if count == 1 { "use 1".to_owned() } else { format!("use 1 to {count}") },
            )),
            _ => Ok(()),
        }
    }
}

/// As experiment files write it.
impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recompute::None => f.write_str(&quoted(NONE)),
            Recompute::Block => f.write_str(&quoted(BLOCK)),
            Recompute::Parts(parts) => parts.fmt(f),
            Recompute::Every(blocks) => write!(f, "{{ every = {blocks} }}"),
            Recompute::Segments(segments) => write!(f, "{{ segments = {segments} }}"),
            Recompute::Save(kinds) => write!(f, "{{ save = {kinds} }}"),
            Recompute::Budget(Budget::Memory) => f.write_str(&quoted(AUTO)),
            Recompute::Budget(budget) => write!(f, "{{ budget = {} }}", BudgetValue.text(budget)),
        }
    }
}

/// A keyword, a list of block parts, or a table with one key.
pub(super) struct RecomputeCodec;

impl KeyCodec for RecomputeCodec {
    type Output = Recompute;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<Recompute> {
        let table = match &node.value {
            Value::Table(table) => table,
            Value::List(_) => {
                return PARTS
                    .read(keys, key, node)
                    .map(|parts| Recompute::parts(parts.into_iter().collect()));
            }
            _ => return keys.parse(key, node, &RecomputeValue),
        };
        let mut keys = keys.table_of(key, node, "recompute", "`recompute`")?;
        let names: Vec<&str> = table.entries.iter().map(|entry| entry.key.as_str()).collect();
        let read = match names[..] {
            ["every"] => keys.key("every", None, BLOCKS).map(Recompute::every),
            ["segments"] => keys.key("segments", None, BLOCKS).map(Recompute::segments),
            ["save"] => {
                keys.key("save", None, SAVED).map(|saved| Recompute::saving(saved.into_iter().collect()))
            }
            ["budget"] => keys.key("budget", None, BudgetValue).map(Recompute::Budget),
            // Request all keys, so that an unknown one is reported with the list of known ones.
            _ => {
                for form in FORMS {
                    let _ = keys.entry(form);
                }
                None
            }
        };
        let reader = keys.reader();
        keys.finish();
        // `finish` has reported unknown keys already.
        if read.is_none() && names.len() != 1 && names.iter().all(|key| FORMS.contains(key)) {
            reader.problem(
                Problem::new("`recompute` takes one of `every`, `segments`, `save` and `budget`")
                    .at(node.span)
                    .help(format!("use {}", RecomputeValue.expected())),
            );
        }
        read
    }

    fn write(&self, key: &str, value: &Recompute, lines: &mut TableWriter) {
        lines.line(key, &value.to_string());
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = \"block\"")
    }

    fn accepts(&self) -> Accepts {
        let key = |key, doc, accepts| DeclaredKey::new(key, doc, accepts, None);
        Accepts::parsed(&RecomputeValue).or_one_of(vec![
            key("every", "Recompute the first of every n blocks.", BLOCKS.accepts()),
            key(
                "segments",
                "Recompute n segments of equally many blocks, except the last one (`checkpoint_sequential`).",
                BLOCKS.accepts(),
            ),
            key(
                "save",
                "Recompute every block, but save the results of these operations (selective activation checkpointing).",
                SAVED.accepts(),
            ),
            key("budget", "The fastest recompute plan whose peak fits.", BudgetValue.accepts()),
        ])
    }
}

/// The keywords.
struct RecomputeValue;

impl ValueParser for RecomputeValue {
    type Output = Recompute;

    fn parse(&self, value: &Value) -> Option<Recompute> {
        match value {
            Value::Text(text) if text == NONE => Some(Recompute::None),
            Value::Text(text) if text == BLOCK => Some(Recompute::Block),
            Value::Text(text) if text == AUTO => Some(Recompute::Budget(Budget::Memory)),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        let parts: Vec<String> = BlockPart::ALL.iter().map(|part| quoted(part.keyword())).collect();
        format!(
            "\"none\", \"block\", \"auto\", a list of any of {}, or a table: {{ every = 2 }}, {{ segments = 4 }}, {{ save = [\"linear\"] }} or \
             {{ budget = 0.5 }}",
            join(&parts, "and")
        )
    }

    fn forms(&self) -> Vec<Form> {
        [vec![Form::words(&self.keywords())], PARTS.accepts().forms].concat()
    }

    fn keywords(&self) -> Vec<&'static str> {
        vec![NONE, BLOCK, AUTO]
    }

    /// A list element without its brackets, or a budget without its table.
    fn meant(&self, value: &Value) -> Option<String> {
        let part = match value {
            Value::Text(text) => BlockPart::ALL.iter().find(|part| part.keyword() == text),
            _ => None,
        };
        match part {
            Some(part) => Some(format!("[{}]", quoted(part.keyword()))),
            // An integer is never a share.
            None if matches!(value, Value::Integer(_)) => None,
            None => BudgetValue.parse(value).map(|budget| Recompute::Budget(budget).to_string()),
        }
    }
}

/// A size in bytes with its unit, or a share of the peak without recomputation.
struct BudgetValue;

impl ValueParser for BudgetValue {
    type Output = Budget;

    fn parse(&self, value: &Value) -> Option<Budget> {
        match value {
            Value::Text(_) => SizeWithUnit.parse(value).map(Budget::Bytes),
            _ => SHARE.parse(value).map(Budget::Share),
        }
    }

    fn expected(&self) -> String {
        "a size with its unit, such as \"4 GiB\", or a share from 0 to 1 of the peak without recomputation, such as 0.5"
            .to_owned()
    }

    fn forms(&self) -> Vec<Form> {
        [SizeWithUnit.forms(), SHARE.forms()].concat()
    }
}

impl Writable for BudgetValue {
    fn text(&self, budget: &Budget) -> String {
        match budget {
            Budget::Bytes(bytes) => SizeWithUnit.text(bytes),
            Budget::Share(share) => SHARE.text(share),
            Budget::Memory => quoted(AUTO),
        }
    }
}
