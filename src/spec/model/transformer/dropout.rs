//! `dropout`: what is left out by chance while a model learns.

use crate::declare::{Declared, Inline, Writable, inline, section};
use crate::kinds::Number;
use crate::reader::{Keys, Kind};
use crate::tree::{Entry, Value};
use crate::write::Lines;

section! {
    /// Chances of each element to be dropped: to become 0, while the others grow so that sums stay on average what they are.
    #[derive(Copy)]
    pub struct Dropout: Default {
        /// Of the residual stream where it begins.
        pub embedding: f64 = RATE, default 0.0;
        /// Of the weights of attention, after their softmax.
        pub attention: f64 = RATE, default 0.0;
        /// Of what each part of a block adds to the residual stream.
        pub residual: f64 = RATE, default 0.0;
    }
}

pub(in crate::model) const RATE: Number =
    Number { holds: |rate| (0.0..=0.9999).contains(&rate), expected: "a chance from 0 to 0.9999" };

const TABLE: Inline<Dropout> =
    inline("dropout", "`dropout`", "embedding = 0.1, attention = 0.1, residual = 0.1");

impl Dropout {
    pub fn is_any(&self) -> bool {
        *self != Dropout::default()
    }

    /// The same everywhere.
    fn of_all(rate: f64) -> Dropout {
        Dropout { embedding: rate, attention: rate, residual: rate }
    }
}

/// One chance for all places, or a table of them.
pub(super) struct Rates;

impl Declared for Rates {
    type Output = Dropout;

    fn read<'a>(&self, keys: &Keys<'a>, entry: &'a Entry) -> Option<Dropout> {
        if entry.node.table().is_some() { TABLE.read(keys, entry) } else { keys.parse(entry, &OneRate) }
    }

    fn write(&self, key: &str, value: &Dropout, lines: &mut Lines) {
        if *value == Dropout::of_all(value.residual) {
            lines.line(key, &RATE.text(&value.residual));
        } else {
            TABLE.write(key, value, lines);
        }
    }

    fn example(&self, key: &str) -> String {
        TABLE.example(key)
    }
}

struct OneRate;

impl Kind for OneRate {
    type Output = Dropout;

    fn parse(&self, value: &Value) -> Option<Dropout> {
        RATE.parse(value).map(Dropout::of_all)
    }

    fn expected(&self) -> String {
        let Number { expected, .. } = RATE;
        format!("{expected} for all places, or {}", TABLE.example("dropout"))
    }
}
