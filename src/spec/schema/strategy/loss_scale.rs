//! `loss_scale`: a keyword, a number, or a table.

use crate::reader::reference::Accepts;

use super::Precision;
use crate::reader::declare::{KeyCodec, KeyTable, Variant, key_table};
use crate::reader::forms::Form;
use crate::reader::keys::{Keys, ValueParser};
use crate::reader::parsers::{ABOVE_ONE, BELOW_ONE, SCALE, STEPS};
use crate::reader::tree::{Node, Value};
use crate::reader::write::TableWriter;

/// Factor that multiplies the loss so that fp16 gradients do not underflow.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum LossScale {
    Static(f64),
    Dynamic(DynamicLossScale),
}

key_table! {
    /// Dynamic loss scale: backs off when a gradient overflows, grows after a number of steps without overflow.
    /// PyTorch: `torch.amp.GradScaler`.
    #[derive(Copy)]
    pub struct DynamicLossScale: Default {
        /// Scale of the first step (`init_scale`).
        pub initial: f64 = SCALE, default 65536.0;
        /// Factor applied to the scale after a step with an overflow, which is skipped (`backoff_factor`).
        pub backoff: f64 = BELOW_ONE, default 0.5;
        /// Factor applied to the scale after `interval` consecutive steps without overflow (`growth_factor`).
        pub growth: f64 = ABOVE_ONE, default 2.0;
        /// Consecutive steps without overflow after which the scale grows (`growth_interval`).
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

    /// The default: dynamic with fp16, else none. `precision` is `None` if it could not be read.
    pub(super) fn default_for(precision: impl Into<Option<Precision>>) -> Option<LossScale> {
        let needed = precision.into() == Some(Precision::Fp16);
        needed.then(|| LossScale::Dynamic(DynamicLossScale::default()))
    }
}

/// A number, "dynamic" or `{ dynamic = { ... } }`; `Optional` adds "off".
pub(super) struct LossScaleCodec;

const TABLES: [Variant<LossScale>; 1] = [Variant {
    key: "dynamic",
    path: "loss_scale.dynamic",
    place: "`loss_scale.dynamic`",
    doc: DynamicLossScale::DOC,
    keys: DynamicLossScale::KEYS,
    reference: DynamicLossScale::reference,
    read: |keys| DynamicLossScale::read(keys).map(LossScale::Dynamic),
}];

impl KeyCodec for LossScaleCodec {
    type Output = LossScale;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<LossScale> {
        if node.table().is_none() {
            return keys.parse(key, node, &LossScaleValue);
        }
        keys.table_of(key, node, "loss_scale", "`loss_scale`")?.variant(&TABLES)
    }

    fn write(&self, key: &str, value: &LossScale, lines: &mut TableWriter) {
        let text = match value {
            LossScale::Static(scale) => format!("{scale:?}"),
            LossScale::Dynamic(dynamic) => {
                format!("{{ dynamic = {} }}", TableWriter::of(dynamic, lines.form()).inline())
            }
        };
        lines.line(key, &text);
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = \"dynamic\"")
    }

    fn accepts(&self) -> Accepts {
        Accepts::value(format!("\"dynamic\", or {}", SCALE.expected), LossScaleValue.forms())
            .or_tables(&TABLES)
    }
}

/// The values that are not tables.
struct LossScaleValue;

impl ValueParser for LossScaleValue {
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

    fn forms(&self) -> Vec<Form> {
        [vec![Form::words(&["dynamic"])], SCALE.forms()].concat()
    }
}
