//! `dropout`: probabilities with which elements are dropped in training.

use std::ops::Bound::Included;

use crate::reader::declare::{InlineTable, KeyCodec, Writable, inline_table, key_table};
use crate::reader::forms::Form;
use crate::reader::keys::{Keys, ValueParser};
use crate::reader::parsers::FloatRange;
use crate::reader::reference::Accepts;
use crate::reader::tree::{Node, Value};
use crate::reader::write::TableWriter;

key_table! {
    /// Dropout probabilities. Dropped elements become 0, and the others are scaled so that the expected sum stays the
    /// same.
    #[derive(Copy)]
    pub struct Dropout: Default {
        /// Dropout of the embeddings, where the residual stream begins.
        pub embedding: f64 = RATE, default 0.0;
        /// Dropout of the attention weights, after the softmax.
        pub attention: f64 = RATE, default 0.0;
        /// Dropout of what attention and feed-forward layers add to the residual stream.
        pub residual: f64 = RATE, default 0.0;
    }
}

pub(in crate::schema) const RATE: FloatRange =
    FloatRange { bounds: (Included(0.0), Included(0.9999)), expected: "a probability from 0 to 0.9999" };

const TABLE: InlineTable<Dropout> =
    inline_table("dropout", "`dropout`", "embedding = 0.1, attention = 0.1, residual = 0.1");

impl Dropout {
    pub fn is_any(&self) -> bool {
        *self != Dropout::default()
    }

    /// One rate for all three.
    fn uniform(rate: f64) -> Dropout {
        Dropout { embedding: rate, attention: rate, residual: rate }
    }
}

/// One probability for all places, or a table with one per place.
pub(super) struct DropoutCodec;

impl KeyCodec for DropoutCodec {
    type Output = Dropout;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<Dropout> {
        if node.table().is_some() { TABLE.read(keys, key, node) } else { keys.parse(key, node, &UniformRate) }
    }

    fn write(&self, key: &str, value: &Dropout, lines: &mut TableWriter) {
        if *value == Dropout::uniform(value.residual) {
            lines.line(key, &RATE.text(&value.residual));
        } else {
            TABLE.write(key, value, lines);
        }
    }

    fn example(&self, key: &str) -> String {
        TABLE.example(key)
    }

    fn accepts(&self) -> Accepts {
        Accepts::table::<Dropout>().or(RATE.expected, RATE.forms())
    }
}

struct UniformRate;

impl ValueParser for UniformRate {
    type Output = Dropout;

    fn parse(&self, value: &Value) -> Option<Dropout> {
        RATE.parse(value).map(Dropout::uniform)
    }

    fn expected(&self) -> String {
        let FloatRange { expected, .. } = RATE;
        format!("{expected} for all places, or {}", TABLE.example("dropout"))
    }

    fn forms(&self) -> Vec<Form> {
        RATE.forms()
    }
}
