//! The strategy keys, and some other keys, with the values that tests try. Add a new key of `spec` here: every test that
//! combines keys uses this list.
#![allow(dead_code)] // each user needs only some items

use proptest::prelude::{Strategy, any};
use spec::STRATEGY_KEYS;

use crate::models::{DENSE, LISTS_OF_NUMBERS, MODELS, ON_GPU, TRANSFORMERS};
use crate::on_cuda;
use crate::sequential::BATCH_NORM;

/// A key in experiment syntax.
#[derive(Clone, Debug)]
pub struct Key {
    pub name: &'static str,
    /// The first is the default; `UNSAID` if the default depends on other keys.
    pub values: &'static [&'static str],
    /// Values that it requires of other keys; the default requires nothing.
    pub needs: &'static [Need],
    pub same: Same,
}

/// The values `of` a key require that key `key` has one of the values `one_of`.
#[derive(Clone, Debug)]
pub struct Need {
    pub of: &'static [&'static str],
    pub key: &'static str,
    pub one_of: &'static [&'static str],
}

/// How closely a run matches the same run without the key.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Same {
    /// Losses, parameters and optimizer state are bitwise equal.
    Bitwise,
    /// Bitwise equal on the CPU. On a GPU only up to rounding, because GPU and host round differently.
    Arithmetic,
    /// The fp32 losses are equal up to the order of sums.
    Rounding,
    /// The losses are equal up to this relative difference.
    Training(f32),
    /// Only the initial state is equal: the run trains something else.
    Start,
}

impl Same {
    /// The requirement on the device that tests run on.
    fn on_test_device(self) -> Same {
        match self {
            Same::Arithmetic if on_cuda() => Same::Rounding,
            Same::Arithmetic => Same::Bitwise,
            same => same,
        }
    }
}

pub(crate) const MODEL: &str = "model";

/// The value of a key that is not set.
pub const UNSAID: &str = "";

/// Optimizers in experiment syntax, with their states and terms.
pub const OPTIMIZERS: &[Updates] = &[
    &["optimizer.adamw = { lr = 1e-2, weight_decay = 0.1 }"],
    &["optimizer.adafactor = { lr = 1e-2, weight_decay = 0.1 }", "schedule.constant.warmup = 3"],
    &["optimizer.muon = { lr = 1e-2, adamw = { lr = 1e-2 } }"],
    &[
        "optimizer.muon = { lr = 1e-2, adamw = { lr = 1e-3 }, nesterov = false, ns_steps = 2, adjust = 'match_rms_adamw', groups = [{ match = 'blocks.1', lr = 1e-3 }] }",
        "schedule.linear = { warmup = 1, floor = 0.2 }",
    ],
    &["optimizer.adam = { lr = 1e-2, weight_decay = 0.1, decay = 'all' }"],
    &["optimizer.lion = { lr = 1e-3, weight_decay = 0.1 }"],
    &[
        "optimizer.adamw = { lr = 1e-2, groups = [{ match = 'blocks.1', lr = 1e-3 }, { match = '*', weight_decay = 0.2 }] }",
        "schedule.constant.warmup = 2",
    ],
    &["optimizer.sgd = { lr = 0.1 }", "schedule.linear = { warmup = 1, floor = 0.2 }"],
    &["optimizer.sgd = { lr = 0.1, momentum = 0.9, weight_decay = 0.1 }", "schedule.cosine.total = 5"],
    &[
        "optimizer.sgd = { lr = 0.05, momentum = 0.9, nesterov = true, decay = 'all' }",
        "schedule.warmup_stable_decay.decay = 2",
    ],
];

/// An optimizer and other settings of `[train]` that affect updates.
pub type Updates = &'static [&'static str];

/// Values of keys that default to `params`.
const STORED_IN: &[&str] = &[UNSAID, r#""fp32""#, r#""bf16""#, r#""fp16""#];
const AS_PARAMS: &[Need] = &[
    Need { of: &[r#""bf16""#], key: "params", one_of: &[r#""bf16""#] },
    Need { of: &[r#""fp16""#], key: "params", one_of: &[r#""fp16""#] },
];

const IN_BACKWARD: &[&str] = &[r#""in_backward""#];

/// Data for models that do not work on tokens.
const RANDOM: &str = "{ random = { samples = 50, seed = 1 } }";

/// No adapters, and adapters with every kind of base.
const ADAPTED: &[&str] = &[
    r#""off""#,
    r#"{ rank = 3, alpha = 4.5, targets = ["*"] }"#,
    r#"{ rank = 2, alpha = 4, targets = ["*.out"], base = "int8" }"#,
    r#"{ rank = 1, alpha = 2, targets = ["attention.qkv", "mlp"], base = "bf16" }"#,
    r#"{ rank = 2, alpha = 8, targets = ["mlp.out"], base = "fp32" }"#,
    r#"{ rank = 2, alpha = 4, targets = ["mlp.*up"], base = "nf4" }"#,
    r#"{ rank = 2, alpha = 4, targets = ["mlp"], base = "nf4", double_quantization = false }"#,
    r#"{ rank = 2, alpha = 4, targets = ["attention.q", "attention.v", "mlp"], dropout = 0.1, rslora = true }"#,
    r#"{ rank = 1, alpha = 4, targets = ["attention.v"], trained = ["embedding", "head"], base = "int8" }"#,
    r#"{ rank = 2, alpha = 4, targets = ["all-linear"], dropout = 0.1, base = "nf4", tables = "bf16" }"#,
];

/// Those of feed-forward layers, which experts cannot have.
const ADAPTED_MLP: &[&str] = ADAPTED.split_at(3).1.split_at(5).0;

/// Nothing, and every kind of collected outputs.
const COLLECTED: &[&str] = &[
    r#""off""#,
    r#""logits""#,
    r#""loss""#,
    r#"{ what = "logits", to = "host" }"#,
    r#"{ what = "logits", concatenate = true }"#,
    r#"{ what = "logits", to = "host", concatenate = true }"#,
    r#"{ what = "loss", to = "host", concatenate = true }"#,
];

const CACHING: &[&str] = &[
    r#""caching""#,
    "{ caching = { max_split_size_mb = 21, garbage_collection_threshold = 0.6 } }",
    "{ caching = { expandable_segments = true } }",
];

pub const KEYS: &[Key] = &[
    Key { name: "accumulate", values: &["1", "2", "3"], needs: &[], same: Same::Rounding },
    Key {
        name: "params",
        values: &[r#""fp32""#, r#""bf16""#, r#""fp16""#],
        needs: &[],
        same: Same::Training(0.03),
    },
    Key {
        name: "master_weights",
        values: &["true", "false"],
        needs: &[Need { of: &["false"], key: "params", one_of: &[r#""bf16""#, r#""fp16""#] }],
        same: Same::Training(0.03),
    },
    Key { name: "gradient_dtype", values: STORED_IN, needs: AS_PARAMS, same: Same::Training(0.03) },
    Key { name: "residual", values: STORED_IN, needs: AS_PARAMS, same: Same::Training(0.03) },
    Key {
        name: "precision",
        values: &[UNSAID, r#""fp32""#, r#""tf32""#, r#""bf16""#, r#""fp16""#],
        needs: &[
            Need { of: &[r#""fp32""#, r#""tf32""#], key: "params", one_of: &[r#""fp32""#] },
            Need { of: &[r#""bf16""#], key: "params", one_of: &[r#""fp32""#, r#""bf16""#] },
            Need { of: &[r#""fp16""#], key: "params", one_of: &[r#""fp32""#, r#""fp16""#] },
        ],
        same: Same::Training(0.01),
    },
    Key {
        name: "loss_scale",
        // The last scale grows during a test.
        values: &[UNSAID, r#""off""#, "128", "{ dynamic = { initial = 1024, interval = 2 } }"],
        needs: &[Need {
            of: &["128", "{ dynamic = { initial = 1024, interval = 2 } }"],
            key: "precision",
            one_of: &[r#""fp16""#],
        }],
        same: Same::Training(0.01),
    },
    Key {
        name: "optimizer_state",
        values: &[r#""fp32""#, r#""bf16""#, r#""8bit""#],
        needs: &[],
        same: Same::Training(0.03),
    },
    Key {
        name: "quantize",
        values: &["{}", "{ from = 0, embeddings = true }", "{ from = 200 }"],
        needs: &[Need {
            of: &["{ from = 0, embeddings = true }", "{ from = 200 }"],
            key: "optimizer_state",
            one_of: &[r#""8bit""#],
        }],
        same: Same::Training(0.03),
    },
    Key {
        name: "rounding",
        values: &[r#""nearest""#, r#""stochastic""#],
        needs: &[Need { of: &[r#""stochastic""#], key: "optimizer_state", one_of: &[r#""bf16""#] }],
        same: Same::Training(0.03),
    },
    Key {
        name: "recompute",
        values: &[
            r#""none""#,
            r#""block""#,
            r#"["mlp"]"#,
            r#"["attention", "norm"]"#,
            "{ every = 2 }",
            "{ segments = 2 }",
            r#"{ save = ["linear", "attention"] }"#,
            "{ budget = 0.9 }",
            r#""auto""#,
        ],
        needs: &[Need { of: &[r#"["mlp"]"#, r#"["attention", "norm"]"#], key: MODEL, one_of: TRANSFORMERS }],
        same: Same::Bitwise,
    },
    Key {
        name: "freeze",
        values: &["[]", r#"["embedding", "blocks.0"]"#, r#"["blocks.*.attention"]"#],
        needs: &[Need { of: &[r#"["blocks.*.attention"]"#], key: MODEL, one_of: TRANSFORMERS }],
        same: Same::Start,
    },
    Key {
        name: "lora",
        values: ADAPTED,
        needs: &[
            Need { of: ADAPTED.split_at(1).1, key: "freeze", one_of: &["[]"] },
            Need { of: ADAPTED_MLP, key: MODEL, one_of: DENSE },
            Need { of: ADAPTED.split_at(1).1, key: MODEL, one_of: TRANSFORMERS },
        ],
        same: Same::Start,
    },
    Key {
        name: "place",
        values: &[
            "{}",
            r#"{ embedding = "host", head = "host", "blocks.0" = "host" }"#,
            r#"{ "blocks.*" = "host", "blocks.0" = "device", "blocks.0.mlp" = "host" }"#,
        ],
        needs: &[Need {
            of: &[r#"{ "blocks.*" = "host", "blocks.0" = "device", "blocks.0.mlp" = "host" }"#],
            key: MODEL,
            one_of: TRANSFORMERS,
        }],
        same: Same::Arithmetic,
    },
    Key { name: "attention", values: &[r#""fused""#, r#""materialized""#], needs: &[], same: Same::Rounding },
    Key { name: "conv_workspace", values: &["\"16 MiB\"", "\"1 KiB\""], needs: &[], same: Same::Rounding },
    Key { name: "loss_chunks", values: &["1", "2", "7"], needs: &[], same: Same::Rounding },
    Key {
        name: "release",
        values: &[r#""eager""#, r#""scope""#, r#""step""#],
        needs: &[],
        same: Same::Bitwise,
    },
    Key {
        name: "keep",
        values: &["[]", r#"["logits"]"#, r#"["blocks.0.*.x", "hidden"]"#],
        needs: &[Need {
            of: &[r#"["logits"]"#, r#"["blocks.0.*.x", "hidden"]"#],
            key: MODEL,
            one_of: TRANSFORMERS,
        }],
        same: Same::Bitwise,
    },
    Key {
        name: "leak",
        values: &[r#""off""#, r#""loss""#, r#""logits""#, r#""graph""#],
        needs: &[Need { of: &[r#""loss""#, r#""logits""#, r#""graph""#], key: "graph", one_of: &["false"] }],
        same: Same::Bitwise,
    },
    Key { name: "gradients", values: &[r#""free""#, r#""zero""#], needs: &[], same: Same::Bitwise },
    // Not strategy keys, but they determine the content of batches.
    Key { name: "train.shuffle", values: &["false", "true"], needs: &[], same: Same::Start },
    Key {
        name: "train.last_batch",
        values: &[r#""drop""#, r#""keep""#],
        needs: &[Need { of: &[r#""keep""#], key: "train.shuffle", one_of: &["true"] }],
        same: Same::Start,
    },
    // Not a strategy key, but a strategy requires it to be off.
    Key { name: "train.clip_norm", values: &["1.0", r#""off""#], needs: &[], same: Same::Start },
    Key {
        name: "update",
        values: &[r#""after_backward""#, r#""in_backward""#],
        needs: &[
            Need { of: IN_BACKWARD, key: "train.clip_norm", one_of: &[r#""off""#] },
            Need { of: IN_BACKWARD, key: "loss_scale", one_of: &[r#""off""#] },
            Need { of: IN_BACKWARD, key: "accumulate", one_of: &["1"] },
            Need { of: IN_BACKWARD, key: "gradients", one_of: &[r#""free""#] },
        ],
        same: Same::Bitwise,
    },
    Key {
        name: "allocator",
        values: &[
            r#""arena""#,
            r#""direct""#,
            r#""caching""#,
            "{ caching = { max_split_size_mb = 21, garbage_collection_threshold = 0.6 } }",
            "{ caching = { expandable_segments = true } }",
        ],
        needs: &[],
        same: Same::Bitwise,
    },
    Key {
        name: "empty_cache",
        values: &[r#""never""#, r#""step""#, r#""micro""#],
        needs: &[Need { of: &[r#""step""#, r#""micro""#], key: "allocator", one_of: CACHING }],
        same: Same::Bitwise,
    },
    // Not strategy keys, but they determine the memory of evaluations.
    Key { name: "evaluation.batch_size", values: &[r#""off""#, "3", "5"], needs: &[], same: Same::Rounding },
    Key {
        name: "evaluation.collect",
        values: COLLECTED,
        needs: &[Need { of: COLLECTED.split_at(1).1, key: "graph", one_of: &["false"] }],
        same: Same::Bitwise,
    },
    Key { name: "evaluation_pass", values: &[r#""no_grad""#, r#""grad""#], needs: &[], same: Same::Bitwise },
    Key {
        name: "init",
        values: &[r#""device""#, r#""host""#, r#""lazy""#],
        needs: &[],
        same: Same::Arithmetic,
    },
    Key {
        name: "offload",
        values: &[
            "{}",
            "{ optimizer = true, pinned = false }",
            "{ parameters = true, ahead = 0 }",
            "{ activations = '600 B', pinned = false, ahead = 2 }",
            "{ parameters = true, optimizer = true, activations = true }",
        ],
        needs: &[],
        same: Same::Bitwise,
    },
    Key {
        name: "loader",
        values: &[
            "{}",
            "{ workers = 2, prefetch = 2 }",
            "{ workers = 1, prefetch = 1, pinned = false, dtype = 'u16' }",
            "{ workers = 3, delay = 0.1 }",
            "{ dtype = 'u16' }",
            "{ workers = 1, source = 'ram' }",
            "{ prefetch = 2, workers = 1, source = 'device', dtype = 'u16' }",
        ],
        needs: &[],
        same: Same::Bitwise,
    },
    Key {
        name: "input_dtype",
        values: &[r#""fp32""#, r#""bf16""#, r#""fp16""#],
        needs: &[Need { of: &[r#""bf16""#, r#""fp16""#], key: MODEL, one_of: LISTS_OF_NUMBERS }],
        same: Same::Training(0.01),
    },
    Key {
        name: "graph",
        values: &["false", "true"],
        needs: &[Need { of: &["true"], key: "allocator", one_of: &[r#""arena""#] }],
        same: Same::Bitwise,
    },
    // Not a strategy key. A value of a key that applies to some models only needs one of them.
    Key { name: MODEL, values: MODELS, needs: &[], same: Same::Start },
];

/// The number of samples: divisible by one listed `accumulate`, but not by another.
pub const BATCH_SIZE: usize = 8;

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

    /// Whether the device that tests run on supports the model: a GPU supports no experts.
    pub fn trains(&self) -> bool {
        !on_cuda() || ON_GPU.contains(&self.value(MODEL))
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

    /// Whether the host runs optimizer steps for gradients of a GPU. It rounds each product, a GPU multiplies and adds in
    /// one rounding.
    fn host_updates(&self) -> bool {
        on_cuda() && self.value("offload").contains("optimizer")
    }
}

impl Key {
    /// The requirements of one of its values.
    pub(crate) fn needs_of(&self, value: usize) -> impl Iterator<Item = &'static Need> {
        let value = self.values[value];
        self.needs.iter().filter(move |need| need.of.contains(&value))
    }
}

/// Whether the requirements of a key's value are met.
pub fn meets_needs(keys: &[Key], values: &[usize], key: usize) -> bool {
    keys[key].needs_of(values[key]).all(|need| {
        let other = position(keys, need.key);
        need.one_of.contains(&keys[other].values[values[other]])
    })
}

pub fn position(keys: &[Key], name: &str) -> usize {
    keys.iter().position(|key| key.name == name).unwrap_or_else(|| panic!("`{name}` is not in the list"))
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
            values[position(KEYS, MODEL)] = 0;
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
