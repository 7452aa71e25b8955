//! The keys of a strategy with the values that tests try. A key that `spec` learns is added here, once: every test that
//! combines keys takes them from this list. Those outside the crate include this file by its path.
#![allow(dead_code)] // each of them uses its part

use proptest::prelude::Strategy;

/// A key, as experiments write it.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// The first is the default; `UNSAID` where what that is depends on other keys.
    pub(crate) values: &'static [&'static str],
    /// The first of its values that needs anything of other keys; the default does not.
    pub(crate) first_in_need: usize,
    /// What it and those after it need: other keys, each with one of these values.
    pub(crate) needs: &'static [(&'static str, &'static [&'static str])],
    pub(crate) same: Same,
}

/// What a run has in common with the same run without the key.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) enum Same {
    /// Every bit of the losses, the parameters and the optimizer's state.
    Bitwise,
    /// The losses in fp32, but for the order of sums.
    Rounding,
    /// The losses, but for this share of them.
    Training(f32),
    /// Nothing but what it begins with: something else is trained.
    Start,
}

/// The value of a key that is not written.
pub(crate) const UNSAID: &str = "";

/// What runs are trained with, as experiments write it: optimizers, with the states and terms that they may have.
pub(crate) const OPTIMIZERS: &[&str] = &[
    "adamw = { lr = 1e-2, weight_decay = 0.1 }",
    "sgd = { lr = 0.1 }",
    "sgd = { lr = 0.1, momentum = 0.9, weight_decay = 0.1 }",
    "sgd = { lr = 0.05, momentum = 0.9, nesterov = true, decay = 'all' }",
];

pub(crate) const KEYS: &[Key] = &[
    Key { name: "accumulate", values: &["1", "2", "3"], first_in_need: 1, needs: &[], same: Same::Rounding },
    Key {
        name: "precision",
        values: &[r#""fp32""#, r#""tf32""#, r#""bf16""#, r#""fp16""#],
        first_in_need: 1,
        needs: &[],
        same: Same::Training(0.01),
    },
    Key {
        name: "loss_scale",
        // The last scale grows while a test trains.
        values: &[UNSAID, r#""off""#, "128", "{ dynamic = { initial = 1024, interval = 2 } }"],
        first_in_need: 2,
        needs: &[("precision", &[r#""fp16""#])],
        same: Same::Training(0.01),
    },
    Key {
        name: "optimizer_state",
        values: &[r#""fp32""#, r#""bf16""#, r#""8bit""#],
        first_in_need: 1,
        needs: &[],
        same: Same::Training(0.03),
    },
    Key {
        name: "rounding",
        values: &[r#""nearest""#, r#""stochastic""#],
        first_in_need: 1,
        needs: &[("optimizer_state", &[r#""bf16""#])],
        same: Same::Training(0.03),
    },
    Key {
        name: "recompute",
        values: &[r#""none""#, r#""block""#],
        first_in_need: 1,
        needs: &[],
        same: Same::Bitwise,
    },
    Key {
        name: "freeze",
        values: &["[]", r#"["embedding", "blocks.0"]"#, r#"["blocks.*.attention"]"#],
        first_in_need: 1,
        needs: &[],
        same: Same::Start,
    },
    Key {
        name: "lora",
        values: &[
            r#""off""#,
            r#"{ rank = 3, alpha = 4.5, targets = ["*"] }"#,
            r#"{ rank = 1, alpha = 2, targets = ["attention.qkv", "mlp"], base = "bf16" }"#,
            r#"{ rank = 2, alpha = 4, targets = ["*.out"], base = "int8" }"#,
            r#"{ rank = 2, alpha = 4, targets = ["mlp.up"], base = "nf4" }"#,
            r#"{ rank = 2, alpha = 4, targets = ["mlp"], base = "nf4", double_quantization = false }"#,
        ],
        first_in_need: 1,
        needs: &[("freeze", &["[]"])],
        same: Same::Start,
    },
    Key {
        name: "place",
        values: &[
            "{}",
            r#"{ embedding = "host", head = "host", "blocks.0" = "host" }"#,
            r#"{ "blocks.*" = "host", "blocks.0" = "device", "blocks.0.mlp" = "host" }"#,
        ],
        first_in_need: 1,
        needs: &[],
        // A card and the host's processor round in their own ways.
        same: if cfg!(feature = "cuda-tests") { Same::Rounding } else { Same::Bitwise },
    },
    Key { name: "loss_chunks", values: &["1", "2", "7"], first_in_need: 1, needs: &[], same: Same::Rounding },
    Key {
        name: "release",
        values: &[r#""eager""#, r#""scope""#, r#""step""#],
        first_in_need: 1,
        needs: &[],
        same: Same::Bitwise,
    },
    Key {
        name: "gradients",
        values: &[r#""free""#, r#""zero""#],
        first_in_need: 1,
        needs: &[],
        same: Same::Bitwise,
    },
    Key {
        name: "allocator",
        values: &[r#""arena""#, r#""direct""#],
        first_in_need: 1,
        needs: &[],
        same: Same::Bitwise,
    },
    Key {
        name: "evaluation_pass",
        values: &[r#""no_grad""#, r#""grad""#],
        first_in_need: 1,
        needs: &[],
        same: Same::Bitwise,
    },
    Key {
        name: "offload",
        values: &[
            "{}",
            "{ optimizer = true }",
            "{ parameters = true, ahead = 0 }",
            "{ activations = '600 B', ahead = 2 }",
            "{ parameters = true, optimizer = true, activations = true }",
        ],
        first_in_need: 1,
        needs: &[],
        same: Same::Bitwise,
    },
    Key {
        name: "graph",
        values: &["false", "true"],
        first_in_need: 1,
        needs: &[("allocator", &[r#""arena""#])],
        same: Same::Bitwise,
    },
];

/// Some `accumulate` of the list divides this many samples, and another does not.
pub(crate) const BATCH_SIZE: usize = 8;

/// A value for each key of the list, by its position among the key's values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Choice(pub(crate) Vec<usize>);

impl Choice {
    /// The default of every key.
    pub(crate) fn plain() -> Choice {
        Choice(vec![0; KEYS.len()])
    }

    /// `recompute = "block"` of every key, as lines of an experiment and as overrides.
    pub(crate) fn settings(&self) -> Vec<String> {
        let setting = |(key, value): (&Key, &usize)| (key.name, key.values[*value]);
        let said = KEYS.iter().zip(&self.0).map(setting).filter(|(_, value)| *value != UNSAID);
        said.map(|(name, value)| format!("{name} = {value}")).collect()
    }

    /// What experiments write of this key.
    pub(crate) fn value(&self, name: &str) -> &'static str {
        let key = position(KEYS, name);
        KEYS[key].values[self.0[key]]
    }

    /// The run that this one must equal bit for bit: without the keys that change no bit.
    pub(crate) fn reference(&self) -> Choice {
        let kept = |(key, value): (&Key, &usize)| if key.same == Same::Bitwise { 0 } else { *value };
        Choice(KEYS.iter().zip(&self.0).map(kept).collect())
    }

    /// What it has in common with the plain run: as little as any of its keys.
    pub(crate) fn same(&self) -> Same {
        let changed = KEYS.iter().zip(&self.0).filter(|(_, value)| **value != 0).map(|(key, _)| key.same);
        changed.fold(Same::Bitwise, |least, same| if same > least { same } else { least })
    }
}

/// Whether the keys that a value needs have the values that it needs.
pub(crate) fn meets_needs(keys: &[Key], values: &[usize], key: usize) -> bool {
    let has = |name: &str, one_of: &[&str]| {
        let other = position(keys, name);
        one_of.contains(&keys[other].values[values[other]])
    };
    values[key] < keys[key].first_in_need || keys[key].needs.iter().all(|(name, one_of)| has(name, one_of))
}

pub(crate) fn position(keys: &[Key], name: &str) -> usize {
    keys.iter().position(|key| key.name == name).unwrap_or_else(|| panic!("`{name}` is not in the list"))
}

/// Any values that go together: a key that lacks what its value needs keeps its default.
pub(crate) fn any_choice() -> impl Strategy<Value = Choice> {
    let values: Vec<_> = KEYS.iter().map(|key| 0..key.values.len()).collect();
    values.prop_map(|mut values| {
        while let Some(key) = (0..KEYS.len()).find(|&key| !meets_needs(KEYS, &values, key)) {
            values[key] = 0;
        }
        Choice(values)
    })
}
