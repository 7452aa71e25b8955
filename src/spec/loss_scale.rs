//! `loss_scale`: a word, a number, or a table.

use super::kinds::{ABOVE_ONE, BELOW_ONE, SCALE};
use super::reader::{Keys, Kind};
use super::resolved::{DynamicLossScale, LossScale, Precision};
use super::sections::STEPS;
use super::tree::Value;

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

/// What gradients are scaled by: as is said, or dynamically where nothing is said of fp16.
pub(super) fn read<'a>(keys: &mut Keys<'a>, precision: Option<Precision>) -> Option<Option<LossScale>> {
    let Some(entry) = keys.entry("loss_scale") else {
        let needed = precision? == Precision::Fp16 && !keys.is_off("loss_scale");
        return Some(needed.then(|| LossScale::Dynamic(DynamicLossScale::default())));
    };
    if entry.node.table().is_none() {
        return keys.optional("loss_scale", WordOrNumber);
    }
    let keys = keys.table("loss_scale", "loss_scale", "`loss_scale`")?;
    let (_, keys) = keys.variant(&[("dynamic", "loss_scale.dynamic", "`loss_scale.dynamic`")])?;
    Some(Some(LossScale::Dynamic(dynamic(keys)?)))
}

fn dynamic(mut keys: Keys<'_>) -> Option<DynamicLossScale> {
    let default = DynamicLossScale::default();
    let initial = keys.or("initial", default.initial, SCALE);
    let backoff = keys.or("backoff", default.backoff, BELOW_ONE);
    let growth = keys.or("growth", default.growth, ABOVE_ONE);
    let interval = keys.or("interval", default.interval, STEPS);
    keys.finish();
    Some(DynamicLossScale { initial: initial?, backoff: backoff?, growth: growth?, interval: interval? })
}
