//! `loss_scale`: a word, a number, or a table.

use serde::Serialize;

use super::Precision;
use crate::declare::{Declared, Section, Variant, section};
use crate::kinds::{ABOVE_ONE, BELOW_ONE, SCALE, STEPS};
use crate::reader::{Keys, Kind};
use crate::tree::{Entry, Value};
use crate::write::Lines;

/// What the loss is multiplied by, so that gradients do not vanish in half precision.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum LossScale {
    Static(f64),
    Dynamic(DynamicLossScale),
}

section! {
    /// Backs off when a gradient overflows, grows when none has for a while.
    #[derive(Copy)]
    pub struct DynamicLossScale: Default {
        pub initial: f64 = SCALE, default 65536.0;
        /// What the scale is multiplied by after a step that overflowed.
        pub backoff: f64 = BELOW_ONE, default 0.5;
        /// What it is multiplied by after `interval` steps in a row that did not.
        pub growth: f64 = ABOVE_ONE, default 2.0;
        pub interval: usize = STEPS, default 2000;
    }
}

impl LossScale {
    pub fn initial(&self) -> f64 {
        match self {
            LossScale::Static(scale) => *scale,
            LossScale::Dynamic(dynamic) => dynamic.initial,
        }
    }

    /// What gradients are scaled by where nothing is said of it; `None` where the precision could not be read.
    pub(super) fn unless_said(precision: impl Into<Option<Precision>>) -> Option<LossScale> {
        let needed = precision.into() == Some(Precision::Fp16);
        needed.then(|| LossScale::Dynamic(DynamicLossScale::default()))
    }
}

/// What the key takes, beside "off".
pub(super) struct Scale;

const TABLES: [Variant<LossScale>; 1] = [Variant {
    key: "dynamic",
    path: "loss_scale.dynamic",
    place: "`loss_scale.dynamic`",
    keys: DynamicLossScale::KEYS,
    read: |keys| DynamicLossScale::read(keys).map(LossScale::Dynamic),
}];

impl Declared for Scale {
    type Output = LossScale;

    fn read<'a>(&self, keys: &Keys<'a>, entry: &'a Entry) -> Option<LossScale> {
        if entry.node.table().is_none() {
            return keys.parse(entry, &WordOrNumber);
        }
        keys.table_of(entry, "loss_scale", "`loss_scale`")?.variant(&TABLES)
    }

    fn write(&self, key: &str, value: &LossScale, lines: &mut Lines) {
        let text = match value {
            LossScale::Static(scale) => format!("{scale:?}"),
            LossScale::Dynamic(dynamic) => {
                format!("{{ dynamic = {} }}", Lines::of(dynamic, lines.form()).inline())
            }
        };
        lines.line(key, &text);
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = \"dynamic\"")
    }
}

/// The forms that are not tables.
struct WordOrNumber;

impl Kind for WordOrNumber {
    type Output = LossScale;

    fn parse(&self, value: &Value) -> Option<LossScale> {
        match value {
            Value::Text(text) if text == "dynamic" => Some(LossScale::Dynamic(DynamicLossScale::default())),
            value => SCALE.parse(value).map(LossScale::Static),
        }
    }

    fn expected(&self) -> String {
        format!("\"dynamic\", {}, \"off\", or {{ dynamic = {{ initial = 65536 }} }}", SCALE.expected)
    }
}
