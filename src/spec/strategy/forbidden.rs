//! Which values of which keys do not go together: one table. What a single key may be stands with the key.

use super::{
    Allocator, Base, Caching, EmptyCache, Gradients, Loader, Lora, OptimizerState, Precision, Quantize,
    Recompute, Rounding, StoredIn, Strategy, Update,
};
use crate::ops::DType;
use crate::spec::declare::Words;
use crate::spec::resolved::{LastBatch, RunConfig};
use crate::spec::tree::quoted;

/// Values of keys that do not go together.
pub(in crate::spec) struct Forbidden {
    /// Blamed where they are written.
    pub(in crate::spec) keys: &'static [&'static str],
    /// What is wrong with a run that has such values.
    pub(in crate::spec) found: fn(&RunConfig) -> Option<Refusal>,
}

/// Why values do not go together, and which do.
pub(in crate::spec) struct Refusal {
    pub(in crate::spec) why: String,
    pub(in crate::spec) works: String,
}

pub(in crate::spec) const FORBIDDEN: &[Forbidden] = &[
    Forbidden {
        keys: &["strategy.master_weights", "strategy.params"],
        found: |run| {
            let Strategy { master_weights, params, .. } = run.strategy;
            (!master_weights && params == StoredIn::Fp32).then(|| {
                refusal(
                    "master_weights = false leaves parameters of 16 bits without a copy in fp32; params = \"fp32\" has none",
                    "params = \"bf16\" or \"fp16\" do, or leave master_weights out",
                )
            })
        },
    },
    Forbidden {
        keys: &["strategy.gradient_dtype", "strategy.params"],
        found: |run| follows_params("gradient_dtype", run.strategy.gradient_dtype, run.strategy.params),
    },
    Forbidden {
        keys: &["strategy.residual", "strategy.params"],
        found: |run| follows_params("residual", run.strategy.residual, run.strategy.params),
    },
    // Matrix work is done on what is stored in 16 bits as it is, or all that it makes is in fp32.
    Forbidden {
        keys: &["strategy.precision", "strategy.params"],
        found: |run| {
            let Strategy { precision, params, .. } = run.strategy;
            let own = Precision::of(params);
            let is_other = own != Precision::Fp32 && precision != own && precision.dtype() != DType::F32;
            let [precision, params] = [precision.word(), params.word()].map(quoted);
            is_other.then(|| {
                refusal(
                    format!("precision = {precision} is another type of 16 bits than params = {params}"),
                    format!(
                        "precision = {params}, or \"fp32\" with gradient_dtype and residual = \"fp32\", do"
                    ),
                )
            })
        },
    },
    Forbidden {
        keys: &["strategy.precision", "strategy.gradient_dtype", "strategy.params"],
        found: |run| stores_what_is_made("gradient_dtype", run.strategy.gradient_dtype, run),
    },
    Forbidden {
        keys: &["strategy.precision", "strategy.residual", "strategy.params"],
        found: |run| stores_what_is_made("residual", run.strategy.residual, run),
    },
    Forbidden {
        keys: &["strategy.loss_scale", "strategy.precision"],
        found: |run| {
            let Strategy { loss_scale, precision, .. } = run.strategy;
            let name = quoted(precision.word());
            (loss_scale.is_some() && precision != Precision::Fp16).then(|| {
                refusal(
                    format!(
                        "loss_scale keeps fp16 gradients from vanishing; precision = {name} has no use for it"
                    ),
                    "precision = \"fp16\" has, or loss_scale = \"off\"",
                )
            })
        },
    },
    Forbidden {
        keys: &["strategy.quantize.from", "strategy.quantize.embeddings", "strategy.optimizer_state"],
        found: |run| {
            let Strategy { quantize, optimizer_state, .. } = run.strategy;
            let state = quoted(optimizer_state.word());
            (quantize != Quantize::default() && optimizer_state != OptimizerState::EightBit).then(|| {
                refusal(
                    format!("quantize says which optimizer states are in 8 bits; optimizer_state = {state} has none"),
                    "optimizer_state = \"8bit\" has, or leave quantize out",
                )
            })
        },
    },
    Forbidden {
        keys: &["strategy.rounding", "strategy.optimizer_state"],
        found: |run| {
            let Strategy { rounding, optimizer_state, params, .. } = run.strategy;
            let updates_16_bits = params != StoredIn::Fp32 && !run.strategy.has_master_weights();
            let stores_16_bits = optimizer_state == OptimizerState::Bf16 || updates_16_bits;
            let state = quoted(optimizer_state.word());
            (rounding != Rounding::Nearest && !stores_16_bits).then(|| {
                refusal(
                    format!(
                        "rounding = \"stochastic\" is of what an update stores in 16 bits; optimizer_state = {state} stores nothing so"
                    ),
                    "optimizer_state = \"bf16\" does, or params = \"bf16\" with master_weights = false",
                )
            })
        },
    },
    // Batches are in pinned memory whatever is offloaded.
    Forbidden {
        keys: &["strategy.offload.pinned"],
        found: |run| {
            let offload = run.strategy.offload;
            (!offload.pinned && !offload.is_any()).then(|| {
                refusal(
                    "offload.pinned = false is of what waits in the host's memory; nothing is offloaded",
                    "offload.optimizer = true does that, or offload.pinned = true",
                )
            })
        },
    },
    Forbidden {
        keys: &["strategy.loader.prefetch", "strategy.loader.workers"],
        found: |run| {
            let Loader { workers, prefetch, .. } = run.strategy.loader;
            (workers == 0 && prefetch > 0).then(|| {
                refusal(
                    format!(
                        "loader.prefetch = {prefetch} is of batches that workers assemble ahead; with loader.workers = 0 the step assembles its own"
                    ),
                    "loader.workers = 1 does that, or loader.prefetch = 0",
                )
            })
        },
    },
    Forbidden {
        keys: &["train.last_batch", "train.shuffle"],
        found: |run| {
            (run.train.last_batch == LastBatch::Keep && !run.train.shuffle).then(|| {
                refusal(
                    "last_batch = \"keep\" is of the last batch of an epoch; with shuffle = false there are no epochs",
                    "shuffle = true has them, or leave last_batch out",
                )
            })
        },
    },
    Forbidden {
        keys: &["strategy.freeze", "strategy.lora.rank"],
        found: |run| {
            (run.strategy.lora.is_some() && !run.strategy.freeze.is_empty()).then(|| {
                refusal(
                    "lora freezes all of the model already; freeze has nothing to add",
                    "freeze = [], or lora = \"off\"",
                )
            })
        },
    },
    Forbidden {
        keys: &["strategy.lora.double_quantization", "strategy.lora.base"],
        found: |run| {
            let Lora { base, double_quantization, .. } = run.strategy.lora.as_ref()?;
            let name = quoted(base.word());
            (*double_quantization && *base != Base::Nf4).then(|| {
                refusal(
                    format!(
                        "lora.double_quantization is of the scales of nf4; base = {name} has none of these"
                    ),
                    "base = \"nf4\" has, or double_quantization = false",
                )
            })
        },
    },
    // A captured stretch holds the addresses of its values.
    Forbidden {
        keys: &["strategy.graph", "strategy.allocator"],
        found: |run| {
            let Strategy { graph, allocator, .. } = run.strategy;
            let name = quoted(allocator.name());
            (graph && allocator != Allocator::Arena).then(|| {
                refusal(
                    format!("graph = true replays work on the same addresses; allocator = {name} gives others each time"),
                    "allocator = \"arena\" does, or graph = false",
                )
            })
        },
    },
    Forbidden {
        keys: &["strategy.empty_cache", "strategy.allocator"],
        found: |run| {
            let Strategy { empty_cache, allocator, .. } = run.strategy;
            let [word, name] = [empty_cache.word(), allocator.name()].map(quoted);
            (empty_cache != EmptyCache::Never && !allocator.is_caching()).then(|| {
                refusal(
                    format!(
                        "empty_cache = {word} gives back what a cache holds; allocator = {name} keeps none"
                    ),
                    "allocator = \"caching\" does, or empty_cache = \"never\"",
                )
            })
        },
    },
    // Both are for segments of fixed sizes, which are given back, or left undivided, as a whole.
    Forbidden {
        keys: &[
            "strategy.allocator.caching.max_split_size_mb",
            "strategy.allocator.caching.expandable_segments",
        ],
        found: |run| {
            let is_told = |caching: Caching| caching.max_split_size_mb.is_some();
            fixes_segments("max_split_size_mb", is_told, run)
        },
    },
    Forbidden {
        keys: &[
            "strategy.allocator.caching.garbage_collection_threshold",
            "strategy.allocator.caching.expandable_segments",
        ],
        found: |run| {
            let is_told = |caching: Caching| caching.garbage_collection_threshold.is_some();
            fixes_segments("garbage_collection_threshold", is_told, run)
        },
    },
    // What is left behind is somewhere else after each step.
    Forbidden {
        keys: &["strategy.graph", "strategy.leak"],
        found: |run| {
            let name = quoted(run.strategy.leak?.word());
            run.strategy.graph.then(|| {
                refusal(
                    format!(
                        "graph = true replays work on the same addresses; what leak = {name} leaves behind is at others in each step"
                    ),
                    "leak = \"off\" does, or graph = false",
                )
            })
        },
    },
    Forbidden {
        keys: &["strategy.update", "train.clip_norm"],
        found: |run| {
            in_backward(run)?;
            let clip_norm = run.train.clip_norm?;
            Some(refusal(
                format!(
                    "update = \"in_backward\" applies gradients before the last are there; train.clip_norm = {clip_norm} needs the norm of them all"
                ),
                "train.clip_norm = \"off\" does, or update = \"after_backward\"",
            ))
        },
    },
    Forbidden {
        keys: &["strategy.update", "strategy.loss_scale", "strategy.precision"],
        found: |run| {
            in_backward(run)?;
            run.strategy.loss_scale?;
            Some(refusal(
                "update = \"in_backward\" applies gradients before the last are there; with a loss_scale, as fp16 has unless it is off, a step is skipped if any of them is not finite",
                "loss_scale = \"off\" does, or precision = \"bf16\", or update = \"after_backward\"",
            ))
        },
    },
    Forbidden {
        keys: &["strategy.update", "strategy.accumulate"],
        found: |run| {
            in_backward(run)?;
            let accumulate = run.strategy.accumulate;
            (accumulate > 1).then(|| {
                refusal(
                    format!(
                        "update = \"in_backward\" frees gradients as they are complete; with accumulate = {accumulate} they are kept until the last micro-batch, and nothing is saved"
                    ),
                    "accumulate = 1 does, or update = \"after_backward\"",
                )
            })
        },
    },
    Forbidden {
        keys: &["strategy.update", "strategy.gradients"],
        found: |run| {
            in_backward(run)?;
            (run.strategy.gradients == Gradients::Zero).then(|| {
                refusal(
                    "update = \"in_backward\" frees gradients as they are complete; gradients = \"zero\" keeps them, and nothing is saved",
                    "gradients = \"free\" does, or update = \"after_backward\"",
                )
            })
        },
    },
    Forbidden {
        keys: &["strategy.recompute", "measure.what"],
        found: |run| {
            let Recompute::Budget(_) = run.strategy.recompute else { return None };
            (!run.trains()).then(|| {
                refusal(
                    format!(
                        "recompute = {} chooses what backward computes again; measure.what = \"inference\" has no backward",
                        run.strategy.recompute
                    ),
                    "recompute = \"none\" does, or measure.what = \"training\"",
                )
            })
        },
    },
];

fn refusal(why: impl Into<String>, works: impl Into<String>) -> Refusal {
    Refusal { why: why.into(), works: works.into() }
}

fn in_backward(run: &RunConfig) -> Option<()> {
    (run.strategy.update == Update::InBackward && run.trains()).then_some(())
}

/// What is for segments of fixed sizes, where they grow.
fn fixes_segments(key: &str, is_told: fn(Caching) -> bool, run: &RunConfig) -> Option<Refusal> {
    let Allocator::Caching(caching) = run.strategy.allocator else { return None };
    (caching.expandable_segments && is_told(caching)).then(|| {
        refusal(
            format!("{key} is for segments of fixed sizes; with expandable_segments = true they grow"),
            format!("leave {key} out, or expandable_segments = false"),
        )
    })
}

/// Gradients and the residual stream are stored as parameters are, or in fp32.
fn follows_params(key: &str, stored: StoredIn, params: StoredIn) -> Option<Refusal> {
    let [word, of_params] = [stored.word(), params.word()].map(quoted);
    (stored != StoredIn::Fp32 && stored != params).then(|| {
        refusal(
            format!("{key} = {word} is neither \"fp32\" nor that of the parameters, params = {of_params}"),
            format!("{key} = \"fp32\" or params = {word}"),
        )
    })
}

/// What is computed in fp32 beside parameters of 16 bits is stored so.
fn stores_what_is_made(key: &str, stored: StoredIn, run: &RunConfig) -> Option<Refusal> {
    let Strategy { precision, params, .. } = run.strategy;
    let makes_32_bits = Precision::of(params) != Precision::Fp32 && precision.dtype() == DType::F32;
    let [precision, params, word] = [precision.word(), params.word(), stored.word()].map(quoted);
    (makes_32_bits && stored != StoredIn::Fp32).then(|| {
        refusal(
            format!("precision = {precision} makes results of 32 bits; {key} = {word} stores 16"),
            format!("{key} = \"fp32\", or precision = {params}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::FORBIDDEN;
    use crate::testing::{changed, small};

    /// For each of the table, in its order: settings that it refuses, and nothing else does; and others, which go together, in
    /// the place of some of these.
    const EXAMPLES: &[(&[&str], &str)] = &[
        (&["master_weights = false"], "params = 'bf16'"),
        (&["gradient_dtype = 'bf16'"], "params = 'bf16'"),
        (&["residual = 'bf16'"], "params = 'bf16'"),
        (&["params = 'bf16'", "precision = 'fp16'", "loss_scale = 'off'"], "precision = 'bf16'"),
        (&["params = 'bf16'", "precision = 'fp32'", "residual = 'fp32'"], "gradient_dtype = 'fp32'"),
        (
            &["params = 'bf16'", "precision = 'fp32'", "gradient_dtype = 'fp32'", "residual = 'bf16'"],
            "residual = 'fp32'",
        ),
        (&["loss_scale = 128"], "precision = 'fp16'"),
        (&["quantize.from = 9"], "optimizer_state = '8bit'"),
        (&["rounding = 'stochastic'"], "optimizer_state = 'bf16'"),
        (&["offload.pinned = false"], "offload.optimizer = true"),
        (&["loader.prefetch = 2"], "loader.workers = 1"),
        (&["train.last_batch = 'keep'"], "train.shuffle = true"),
        (&["lora = { rank = 2, alpha = 2, targets = ['mlp'] }", "freeze = ['head']"], "freeze = []"),
        (
            &["lora = { rank = 2, alpha = 2, targets = ['mlp'], double_quantization = true }"],
            "lora.base = 'nf4'",
        ),
        (&["graph = true", "allocator = 'direct'"], "allocator = 'arena'"),
        (&["empty_cache = 'step'"], "allocator = 'caching'"),
        (
            &["allocator.caching = { expandable_segments = true, max_split_size_mb = 64 }"],
            "allocator.caching.expandable_segments = false",
        ),
        (
            &["allocator.caching = { expandable_segments = true, garbage_collection_threshold = 0.5 }"],
            "allocator.caching.expandable_segments = false",
        ),
        (&["graph = true", "leak = 'loss'"], "leak = 'off'"),
        (&["update = 'in_backward'"], "train.clip_norm = 'off'"),
        (&["update = 'in_backward'", "train.clip_norm = 'off'", "precision = 'fp16'"], "loss_scale = 'off'"),
        (&["update = 'in_backward'", "train.clip_norm = 'off'", "accumulate = 2"], "accumulate = 1"),
        (&["update = 'in_backward'", "train.clip_norm = 'off'", "gradients = 'zero'"], "gradients = 'free'"),
        (&["measure.what = 'inference'", "recompute = 'auto'"], "recompute = 'block'"),
    ];

    #[test]
    fn each_refuses_what_it_is_for_and_says_why() {
        assert_eq!(EXAMPLES.len(), FORBIDDEN.len(), "an example for each");
        let toml = small().to_toml("run", "plain");
        // What follows other keys is not to be said.
        let follows = ["precision", "gradient_dtype", "residual", "loss_scale"];
        let said = |line: &&str| !follows.iter().any(|key| line.starts_with(&format!("{key} = ")));
        let toml: Vec<&str> = toml.lines().filter(said).collect();
        let toml = toml.join("\n");
        let mut reasons = BTreeSet::new();
        for ((forbidden, (refused, works)), number) in FORBIDDEN.iter().zip(EXAMPLES).zip(0..) {
            let settings: Vec<String> = refused.iter().map(|&setting| setting.to_owned()).collect();
            let error =
                changed(&toml, &settings).err().unwrap_or_else(|| panic!("nothing refuses {refused:?}"));
            let error = error.to_string();
            assert_eq!(error.matches("= help:").count(), 1, "one reason: {error}");
            // Of the settings, those of its keys are marked where they stand, and no others.
            let marked = error.lines().filter_map(|line| line.split_once("--set "));
            let marked: BTreeSet<&str> = marked.map(|(_, setting)| setting).collect();
            let is_of = |setting: &&&str| {
                let name = setting.split(" = ").next().unwrap_or_default();
                forbidden.keys.iter().any(|key| key.contains(name) || name.contains(key))
            };
            let blamed: BTreeSet<&str> = refused.iter().filter(is_of).copied().collect();
            assert_eq!(marked, blamed, "{number} {:?}: {error}", forbidden.keys);
            let key = |setting: &str| setting.split(" = ").next().unwrap_or_default().to_owned();
            let kept = settings.into_iter().filter(|setting| key(setting) != key(works));
            let settings: Vec<String> = kept.chain([(*works).to_owned()]).collect();
            let config = changed(&toml, &settings).unwrap_or_else(|error| panic!("{settings:?}: {error}"));
            let refusals = FORBIDDEN.iter().filter_map(|forbidden| (forbidden.found)(&config));
            assert_eq!(refusals.count(), 0, "{settings:?}");
            reasons.insert(error);
        }
        assert_eq!(reasons.len(), FORBIDDEN.len(), "each has a reason of its own");
    }
}
