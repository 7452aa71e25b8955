//! The strategy keys, and some other keys, with the values that tests try. Add a new key of `spec` here: every test that
//! combines keys uses this list.

use crate::models::{DENSE, LISTS_OF_NUMBERS, MODELS, TRANSFORMERS, WITHOUT_BATCH_NORM};
use crate::on_cuda;

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
    pub(crate) fn on_test_device(self) -> Same {
        match self {
            Same::Arithmetic if on_cuda() => Same::Rounding,
            Same::Arithmetic => Same::Bitwise,
            same => same,
        }
    }
}

pub(crate) const MODEL: &str = "model";
pub(crate) const PARALLEL: &str = "parallel";

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

/// One device, and several, the last of which divide more than the samples.
const RANKS: &[&str] = &[
    "{}",
    "{ data = 2 }",
    "{ data = 3 }",
    "{ data = 2, shard = 'optimizer' }",
    "{ data = 2, shard = 'gradients' }",
    "{ data = 2, shard = 'parameters' }",
    "{ data = 2, shard = 'parameters', keep_gathered = true, ahead = 0 }",
    "{ data = 2, shard = 'parameters', reduce = 'step' }",
];
const SHARDED: &[&str] = RANKS.split_at(3).1;
const SHARDED_PARAMETERS: &[&str] = RANKS.split_at(5).1;
/// Of unequal ranks, some activations would be moved on some only.
const WITHOUT_THRESHOLD: &[&str] = &[
    "{}",
    "{ optimizer = true, pinned = false }",
    "{ parameters = true, ahead = 0 }",
    "{ parameters = true, optimizer = true, activations = true }",
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
        name: PARALLEL,
        values: RANKS,
        needs: &[
            Need { of: RANKS.split_at(1).1, key: "allocator", one_of: &[r#""arena""#] },
            Need { of: RANKS.split_at(1).1, key: "graph", one_of: &["false"] },
            Need { of: RANKS.split_at(1).1, key: MODEL, one_of: WITHOUT_BATCH_NORM },
            Need { of: &["{ data = 3 }"], key: "offload", one_of: WITHOUT_THRESHOLD },
            Need { of: SHARDED, key: "rounding", one_of: &[r#""nearest""#] },
            Need { of: SHARDED, key: "place", one_of: &["{}"] },
            Need { of: SHARDED_PARAMETERS, key: "init", one_of: &[r#""device""#, r#""host""#] },
            Need {
                of: SHARDED,
                key: "offload",
                one_of: &["{}", "{ activations = '600 B', pinned = false, ahead = 2 }"],
            },
        ],
        same: Same::Rounding,
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
