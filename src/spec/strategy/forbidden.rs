//! Which values of which keys do not go together: one table. What a single key may be stands with the key.

use super::{
    Allocator, Base, Caching, EmptyCache, Gradients, Loader, Lora, OptimizerState, Precision, Quantize,
    Recompute, Rounding, StoredIn, Strategy, Update,
};
use crate::declare::Words;
use crate::resolved::{LastBatch, RunConfig};
use crate::tree::quoted;
use ops::DType;

/// Values of keys that do not go together.
pub struct Forbidden {
    /// Blamed where they are written.
    pub keys: &'static [&'static str],
    /// What is wrong with a run that has such values.
    pub found: fn(&RunConfig) -> Option<Refusal>,
}

/// Why values do not go together, and which do.
pub struct Refusal {
    pub why: String,
    pub works: String,
}

pub const FORBIDDEN: &[Forbidden] = &[
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
