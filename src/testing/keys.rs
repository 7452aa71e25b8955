//! The keys of a strategy with the values that tests try. A key that `spec` learns is added here, once: every test that
//! combines keys takes them from this list. Those outside the crate include this file by its path.
#![allow(dead_code)] // each of them uses its part

use proptest::prelude::{Strategy, any};

use crate::on_cuda;

/// A key, as experiments write it.
#[derive(Clone, Debug)]
pub struct Key {
    pub name: &'static str,
    /// The first is the default; `UNSAID` where what that is depends on other keys.
    pub values: &'static [&'static str],
    /// What some of its values need of other keys; the default needs nothing.
    pub needs: &'static [Need],
    pub same: Same,
}

/// These values of a key need another key to have one of its own.
#[derive(Clone, Debug)]
pub struct Need {
    pub of: &'static [&'static str],
    pub key: &'static str,
    pub one_of: &'static [&'static str],
}

/// What a run has in common with the same run without the key.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Same {
    /// Every bit of the losses, the parameters and the optimizer's state.
    Bitwise,
    /// Bitwise where the host is the device; a card and the host's processor round differently.
    Arithmetic,
    /// The losses in fp32, but for the order of sums.
    Rounding,
    /// The losses, but for this share of them.
    Training(f32),
    /// Nothing but what it begins with: something else is trained.
    Start,
}

impl Same {
    /// On the device that tests run on.
    fn here(self) -> Same {
        match self {
            Same::Arithmetic if on_cuda() => Same::Rounding,
            Same::Arithmetic => Same::Bitwise,
            same => same,
        }
    }
}

/// The value of a key that is not written.
pub const UNSAID: &str = "";

/// What runs are trained with, as experiments write it: optimizers, with the states and terms that they may have.
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

/// An optimizer, and what else is said in `[train]` of how parameters move.
pub type Updates = &'static [&'static str];

/// What follows `params` where nothing is said of it.
const STORED_IN: &[&str] = &[UNSAID, r#""fp32""#, r#""bf16""#, r#""fp16""#];
const AS_PARAMS: &[Need] = &[
    Need { of: &[r#""bf16""#], key: "params", one_of: &[r#""bf16""#] },
    Need { of: &[r#""fp16""#], key: "params", one_of: &[r#""fp16""#] },
];

const IN_BACKWARD: &[&str] = &[r#""in_backward""#];

/// Without adapters, and with some beside every kind of base.
const ADAPTED: &[&str] = &[
    r#""off""#,
    r#"{ rank = 3, alpha = 4.5, targets = ["*"] }"#,
    r#"{ rank = 1, alpha = 2, targets = ["attention.qkv", "mlp"], base = "bf16" }"#,
    r#"{ rank = 2, alpha = 8, targets = ["mlp.out"], base = "fp32" }"#,
    r#"{ rank = 2, alpha = 4, targets = ["*.out"], base = "int8" }"#,
    r#"{ rank = 2, alpha = 4, targets = ["mlp.up"], base = "nf4" }"#,
    r#"{ rank = 2, alpha = 4, targets = ["mlp"], base = "nf4", double_quantization = false }"#,
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
        // The last scale grows while a test trains.
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
        needs: &[],
        same: Same::Bitwise,
    },
    Key {
        name: "freeze",
        values: &["[]", r#"["embedding", "blocks.0"]"#, r#"["blocks.*.attention"]"#],
        needs: &[],
        same: Same::Start,
    },
    Key {
        name: "lora",
        values: ADAPTED,
        needs: &[Need { of: ADAPTED.split_at(1).1, key: "freeze", one_of: &["[]"] }],
        same: Same::Start,
    },
    Key {
        name: "place",
        values: &[
            "{}",
            r#"{ embedding = "host", head = "host", "blocks.0" = "host" }"#,
            r#"{ "blocks.*" = "host", "blocks.0" = "device", "blocks.0.mlp" = "host" }"#,
        ],
        needs: &[],
        same: Same::Arithmetic,
    },
    Key { name: "attention", values: &[r#""fused""#, r#""materialized""#], needs: &[], same: Same::Rounding },
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
        needs: &[],
        same: Same::Bitwise,
    },
    Key {
        name: "leak",
        values: &[r#""off""#, r#""loss""#, r#""logits""#, r#""graph""#],
        needs: &[Need { of: &[r#""loss""#, r#""logits""#, r#""graph""#], key: "graph", one_of: &["false"] }],
        same: Same::Bitwise,
    },
    Key { name: "gradients", values: &[r#""free""#, r#""zero""#], needs: &[], same: Same::Bitwise },
    // Not of a strategy, but they decide what a batch has.
    Key { name: "train.shuffle", values: &["false", "true"], needs: &[], same: Same::Start },
    Key {
        name: "train.last_batch",
        values: &[r#""drop""#, r#""keep""#],
        needs: &[Need { of: &[r#""keep""#], key: "train.shuffle", one_of: &["true"] }],
        same: Same::Start,
    },
    // Not of a strategy, but one asks for its absence.
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
        name: "graph",
        values: &["false", "true"],
        needs: &[Need { of: &["true"], key: "allocator", one_of: &[r#""arena""#] }],
        same: Same::Bitwise,
    },
];

/// Some `accumulate` of the list divides this many samples, and another does not.
pub const BATCH_SIZE: usize = 8;

/// A value for each key of the list, by its position among the key's values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Choice(pub Vec<usize>);

impl Choice {
    /// The default of every key.
    pub fn plain() -> Choice {
        Choice(vec![0; KEYS.len()])
    }

    /// Every key that is said, with its value.
    fn said(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let setting = |(key, value): (&'static Key, &usize)| (key.name, key.values[*value]);
        KEYS.iter().zip(&self.0).map(setting).filter(|(_, value)| *value != UNSAID)
    }

    /// `recompute = "block"` of every key, as overrides.
    pub fn settings(&self) -> Vec<String> {
        self.said().map(|(name, value)| format!("{name} = {value}")).collect()
    }

    /// The same as lines of a strategy.
    pub fn lines(&self) -> Vec<String> {
        let line = |(name, value): (&str, &str)| match name.contains('.') {
            true => format!("set.{name:?} = {value}"),
            false => format!("{name} = {value}"),
        };
        self.said().map(line).collect()
    }

    /// What experiments write of this key.
    pub fn value(&self, name: &str) -> &'static str {
        let key = position(KEYS, name);
        KEYS[key].values[self.0[key]]
    }

    /// The run with these updates that this one must equal bit for bit: without the keys that change no bit.
    pub fn reference(&self, updates: Updates) -> Choice {
        // A card and the host's processor sum in their own orders, and the last bit of a number may decide about a code.
        let sums = updates.iter().any(|update| update.contains("adafactor") || update.contains("muon"));
        let host_rounds = self.host_updates() && (sums || self.value("optimizer_state").contains("8bit"));
        let kept = |(key, value): (&Key, &usize)| match key.same.here() {
            Same::Bitwise if !(host_rounds && key.name == "offload") => 0,
            _ => *value,
        };
        Choice(KEYS.iter().zip(&self.0).map(kept).collect())
    }

    /// What it has in common with the plain run: as little as any of its keys.
    pub fn same(&self) -> Same {
        let changed =
            KEYS.iter().zip(&self.0).filter(|(_, value)| **value != 0).map(|(key, _)| key.same.here());
        let moved = self.host_updates().then_some(Same::Rounding);
        changed.chain(moved).fold(Same::Bitwise, |least, same| if same > least { same } else { least })
    }

    /// Whether the host's processor updates what a card computes.
    fn host_updates(&self) -> bool {
        on_cuda() && self.value("offload").contains("optimizer")
    }
}

impl Key {
    /// What one of its values needs.
    pub fn needs_of(&self, value: usize) -> impl Iterator<Item = &'static Need> {
        let value = self.values[value];
        self.needs.iter().filter(move |need| need.of.contains(&value))
    }
}

/// Whether the keys that a value needs have the values that it needs.
pub fn meets_needs(keys: &[Key], values: &[usize], key: usize) -> bool {
    keys[key].needs_of(values[key]).all(|need| {
        let other = position(keys, need.key);
        need.one_of.contains(&keys[other].values[values[other]])
    })
}

pub fn position(keys: &[Key], name: &str) -> usize {
    keys.iter().position(|key| key.name == name).unwrap_or_else(|| panic!("`{name}` is not in the list"))
}

/// Any values that go together: where a key lacks what its value needs, either others get what it needs or it gets its default.
pub fn any_choice() -> impl Strategy<Value = Choice> {
    let values: Vec<_> = KEYS.iter().map(|key| (0..key.values.len(), any::<bool>())).collect();
    values.prop_map(|drawn| {
        let (mut values, insists): (Vec<usize>, Vec<bool>) = drawn.into_iter().unzip();
        for key in (0..KEYS.len()).filter(|&key| insists[key]) {
            for need in KEYS[key].needs_of(values[key]) {
                let other = position(KEYS, need.key);
                if !need.one_of.contains(&KEYS[other].values[values[other]]) {
                    values[other] = position_of(KEYS[other].values, need.one_of[0]);
                }
            }
        }
        while let Some(key) = (0..KEYS.len()).find(|&key| !meets_needs(KEYS, &values, key)) {
            values[key] = 0;
        }
        Choice(values)
    })
}

fn position_of(values: &[&str], value: &str) -> usize {
    values.iter().position(|known| *known == value).expect("keys need values that there are")
}
