//! Combinations of values of the keys.

use proptest::prelude::{Strategy, any};
use spec::STRATEGY_KEYS;

use crate::keys::{KEYS, Key, MODEL, PARALLEL, Same, UNSAID, meets_needs, position};
use crate::models::{ON_GPU, TRANSFORMERS};
use crate::on_cuda;
use crate::sequential::{BATCH_NORM, SUM};

/// Data for models that do not work on tokens.
const RANDOM: &str = "{ random = { samples = 50, seed = 1 } }";

/// A value index for each key of the list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Choice(pub Vec<usize>);

impl Choice {
    /// The default of every key.
    pub fn plain() -> Choice {
        Choice(vec![0; KEYS.len()])
    }

    /// The default of every key but the model.
    pub fn plain_of_model(&self) -> Choice {
        let model = position(KEYS, MODEL);
        let mut plain = Choice::plain();
        plain.0[model] = self.0[model];
        plain
    }

    /// These values with the model of the run; defaults for those that need another.
    pub fn of_own_model(mut self) -> Choice {
        self.0[position(KEYS, MODEL)] = 0;
        for key in 0..KEYS.len() {
            if !meets_needs(KEYS, &self.0, key) {
                self.0[key] = 0;
            }
        }
        self
    }

    /// Every set key with its value, and data that the model can read.
    fn set_keys(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let setting = |(key, value): (&'static Key, &usize)| (key.name, key.values[*value]);
        let data = (!TRANSFORMERS.contains(&self.value(MODEL))).then_some(("data", RANDOM));
        KEYS.iter().zip(&self.0).map(setting).filter(|(_, value)| *value != UNSAID).chain(data)
    }

    /// All set keys as overrides, such as `recompute = "block"`.
    pub fn settings(&self) -> Vec<String> {
        self.set_keys().map(|(name, value)| format!("{name} = {value}")).collect()
    }

    /// All set keys as lines of a strategy.
    pub fn lines(&self) -> Vec<String> {
        let line = |(name, value): (&str, &str)| match STRATEGY_KEYS.contains(&name) {
            true => format!("{name} = {value}"),
            false => format!("set.{name:?} = {value}"),
        };
        self.set_keys().map(line).collect()
    }

    /// The choice on one device.
    pub fn of_one_rank(mut self) -> Choice {
        self.0[position(KEYS, PARALLEL)] = 0;
        self
    }

    /// Whether the device that tests run on supports it: a GPU supports neither experts nor ranks.
    pub fn trains(&self) -> bool {
        !on_cuda() || ON_GPU.contains(&self.value(MODEL)) && self.0[position(KEYS, PARALLEL)] == 0
    }

    /// The value of a key in experiment syntax.
    pub fn value(&self, name: &str) -> &'static str {
        let key = position(KEYS, name);
        KEYS[key].values[self.0[key]]
    }

    /// The reference run for bitwise comparison: this choice with the bitwise-neutral keys at their defaults.
    pub fn reference(&self) -> Choice {
        let kept = |(key, value): (&Key, &usize)| match key.same.on_test_device() {
            Same::Bitwise if !(self.host_updates() && key.name == "offload") => 0,
            _ => *value,
        };
        Choice(KEYS.iter().zip(&self.0).map(kept).collect())
    }

    /// How closely it matches the plain run of its model: the weakest match of all other keys.
    pub fn same(&self) -> Same {
        let changed = KEYS
            .iter()
            .zip(&self.0)
            .filter(|(key, value)| **value != 0 && key.name != MODEL)
            .map(|(key, _)| key.same.on_test_device());
        let host_rounding = self.host_updates().then_some(Same::Rounding);
        changed
            .chain(host_rounding)
            .fold(Same::Bitwise, |weakest, same| if same > weakest { same } else { weakest })
    }

    /// Whether it normalises by the statistics of smaller micro-batches than the plain run of its model.
    pub fn has_other_statistics(&self) -> bool {
        self.value(MODEL) == BATCH_NORM && self.value("accumulate") != "1"
    }

    /// Whether the first steps are skipped: the gradients of a sum over all outputs overflow fp16 at the default loss scale.
    pub fn skips_steps(&self) -> bool {
        let is_fp16 = ["params", "precision"].iter().any(|key| self.value(key).contains("fp16"));
        self.value(MODEL) == SUM && is_fp16 && self.value("loss_scale") == UNSAID
    }

    /// Whether the host runs optimizer steps for gradients of a GPU. It rounds each product, a GPU multiplies and adds in
    /// one rounding.
    fn host_updates(&self) -> bool {
        on_cuda() && self.value("offload").contains("optimizer")
    }
}

/// Any compatible values: if a requirement is not met, either the other key is changed or this key gets its default.
pub fn any_choice() -> impl Strategy<Value = Choice> {
    let values: Vec<_> = KEYS.iter().map(|key| (0..key.values.len(), any::<bool>())).collect();
    values.prop_map(|drawn| {
        let (mut values, keeps_value): (Vec<usize>, Vec<bool>) = drawn.into_iter().unzip();
        for key in (0..KEYS.len()).filter(|&key| keeps_value[key]) {
            for need in KEYS[key].needs_of(values[key]) {
                let other = position(KEYS, need.key);
                if !need.one_of.contains(&KEYS[other].values[values[other]]) {
                    values[other] = position_of(KEYS[other].values, need.one_of[0]);
                }
            }
        }
        if !Choice(values.clone()).trains() {
            (values[position(KEYS, MODEL)], values[position(KEYS, PARALLEL)]) = (0, 0);
        }
        while let Some(key) = (0..KEYS.len()).find(|&key| !meets_needs(KEYS, &values, key)) {
            values[key] = 0;
        }
        Choice(values)
    })
}

fn position_of(values: &[&str], value: &str) -> usize {
    values.iter().position(|known| *known == value).expect("required values are listed")
}
