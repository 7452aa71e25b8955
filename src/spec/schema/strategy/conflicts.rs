//! Values of keys that exclude each other. The range of a single key is declared with the key.

use super::{
    Allocator, Caching, EmptyCache, Gradients, Loader, Lora, LoraBase, OptimizerState, Precision, Quantize,
    Recompute, Rounding, StorageDtype, Strategy, Update, rank_conflicts,
};
use crate::reader::declare::KeywordEnum;
use crate::reader::tree::quoted;
use crate::schema::resolved::{LastBatch, RunConfig};
use ops::DType;

/// Values of keys that exclude each other.
pub struct Conflict {
    /// The error marks where they were written.
    pub keys: &'static [&'static str],
    /// The message, if the run has such values.
    pub check: fn(&RunConfig) -> Option<ConflictMessage>,
}

/// Why values exclude each other, and which values to use.
pub struct ConflictMessage {
    pub reason: String,
    pub remedy: String,
}

/// All conflicts.
pub fn conflicts() -> impl Iterator<Item = &'static Conflict> {
    CONFLICTS.iter().chain(rank_conflicts::CONFLICTS)
}

const CONFLICTS: &[Conflict] = &[
    Conflict {
        keys: &["strategy.master_weights", "strategy.params"],
        check: |run| {
            let Strategy { master_weights, params, .. } = run.strategy;
            (!master_weights && params == StorageDtype::Fp32).then(|| {
                message(
                    "master_weights = false only applies to 16-bit parameters; params = \"fp32\" has no master weights",
                    "use params = \"bf16\" or \"fp16\", or remove master_weights",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.gradient_dtype", "strategy.params"],
        check: |run| matches_params("gradient_dtype", run.strategy.gradient_dtype, run.strategy.params),
    },
    Conflict {
        keys: &["strategy.residual", "strategy.params"],
        check: |run| matches_params("residual", run.strategy.residual, run.strategy.params),
    },
    // Matmuls read 16-bit parameters as they are, or all their results are fp32.
    Conflict {
        keys: &["strategy.precision", "strategy.params"],
        check: |run| {
            let Strategy { precision, params, .. } = run.strategy;
            let own = Precision::default_for(params);
            let differs = own != Precision::Fp32 && precision != own && precision.dtype() != DType::F32;
            let [precision, params] = [precision.keyword(), params.keyword()].map(quoted);
            differs.then(|| {
                message(
                    format!("precision = {precision} and params = {params} are different 16-bit dtypes"),
                    format!("use precision = {params}, or precision, gradient_dtype and residual = \"fp32\""),
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.precision", "strategy.gradient_dtype", "strategy.params"],
        check: |run| stores_fp32_results("gradient_dtype", run.strategy.gradient_dtype, run),
    },
    Conflict {
        keys: &["strategy.precision", "strategy.residual", "strategy.params"],
        check: |run| stores_fp32_results("residual", run.strategy.residual, run),
    },
    Conflict {
        keys: &["strategy.loss_scale", "strategy.precision"],
        check: |run| {
            let Strategy { loss_scale, precision, .. } = run.strategy;
            let name = quoted(precision.keyword());
            (loss_scale.is_some() && precision != Precision::Fp16).then(|| {
                message(
                    format!(
                        "loss_scale prevents underflow of fp16 gradients; it has no effect with precision = {name}"
                    ),
                    "use precision = \"fp16\" or loss_scale = \"off\"",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.quantize.from", "strategy.quantize.embeddings", "strategy.optimizer_state"],
        check: |run| {
            let Strategy { quantize, optimizer_state, .. } = run.strategy;
            let state = quoted(optimizer_state.keyword());
            (quantize != Quantize::default() && optimizer_state != OptimizerState::EightBit).then(|| {
                message(
                    format!(
                        "quantize selects the 8-bit optimizer states; optimizer_state = {state} has none"
                    ),
                    "use optimizer_state = \"8bit\", or remove quantize",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.rounding", "strategy.optimizer_state"],
        check: |run| {
            let Strategy { rounding, optimizer_state, params, .. } = run.strategy;
            let updates_16_bits = params != StorageDtype::Fp32 && !run.strategy.has_master_weights();
            let stores_16_bits = optimizer_state == OptimizerState::Bf16 || updates_16_bits;
            let state = quoted(optimizer_state.keyword());
            (rounding != Rounding::Nearest && !stores_16_bits).then(|| {
                message(
                    format!(
                        "rounding = \"stochastic\" needs 16-bit storage: with optimizer_state = {state}, updates store nothing in 16 bits"
                    ),
                    "use optimizer_state = \"bf16\", or params = \"bf16\" with master_weights = false",
                )
            })
        },
    },
    // Batches are in pinned memory even if nothing is offloaded.
    Conflict {
        keys: &["strategy.offload.pinned"],
        check: |run| {
            let offload = run.strategy.offload;
            (!offload.pinned && !offload.is_any()).then(|| {
                message(
                    "offload.pinned = false has no effect: nothing is offloaded",
                    "use offload.optimizer = true, or offload.pinned = true",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.loader.prefetch", "strategy.loader.workers"],
        check: |run| {
            let Loader { workers, prefetch, .. } = run.strategy.loader;
            (workers == 0 && prefetch > 0).then(|| {
                message(
                    format!(
                        "loader.prefetch = {prefetch} needs workers that assemble batches ahead; with loader.workers = 0 the step assembles them"
                    ),
                    "use loader.workers = 1 or loader.prefetch = 0",
                )
            })
        },
    },
    Conflict {
        keys: &["train.last_batch", "train.shuffle"],
        check: |run| {
            (run.train.last_batch == LastBatch::Keep && !run.train.shuffle).then(|| {
                message(
                    "last_batch = \"keep\" applies to the last batch of an epoch; with shuffle = false there are no epochs",
                    "use shuffle = true, or remove last_batch",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.freeze", "strategy.lora.rank"],
        check: |run| {
            (run.strategy.lora.is_some() && !run.strategy.freeze.is_empty()).then(|| {
                message(
                    "lora freezes all layers except lora.trained; freeze has no effect",
                    "use freeze = [] or lora = \"off\"",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.lora.double_quantization", "strategy.lora.base"],
        check: |run| {
            let Lora { base, double_quantization, .. } = run.strategy.lora.as_ref()?;
            let name = quoted(base.keyword());
            (*double_quantization && *base != LoraBase::Nf4).then(|| {
                message(
                    format!(
                        "lora.double_quantization quantizes the scales of nf4; base = {name} has no such scales"
                    ),
                    "use base = \"nf4\" or double_quantization = false",
                )
            })
        },
    },
    // A captured CUDA graph contains the addresses of its values.
    Conflict {
        keys: &["strategy.graph", "strategy.allocator"],
        check: |run| {
            let Strategy { graph, allocator, .. } = run.strategy;
            let name = quoted(allocator.name());
            (graph && allocator != Allocator::Arena).then(|| {
                message(
                    format!(
                        "graph = true needs the same addresses in each step; allocator = {name} changes them"
                    ),
                    "use allocator = \"arena\" or graph = false",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.empty_cache", "strategy.allocator"],
        check: |run| {
            let Strategy { empty_cache, allocator, .. } = run.strategy;
            let [word, name] = [empty_cache.keyword(), allocator.name()].map(quoted);
            (empty_cache != EmptyCache::Never && !allocator.is_caching()).then(|| {
                message(
                    format!("empty_cache = {word} returns cached memory; allocator = {name} caches none"),
                    "use allocator = \"caching\" or empty_cache = \"never\"",
                )
            })
        },
    },
    // Both options act on segments of fixed size, which are returned, or left undivided, as a whole.
    Conflict {
        keys: &[
            "strategy.allocator.caching.max_split_size_mb",
            "strategy.allocator.caching.expandable_segments",
        ],
        check: |run| {
            let is_set = |caching: Caching| caching.max_split_size_mb.is_some();
            needs_fixed_segments("max_split_size_mb", is_set, run)
        },
    },
    Conflict {
        keys: &[
            "strategy.allocator.caching.garbage_collection_threshold",
            "strategy.allocator.caching.expandable_segments",
        ],
        check: |run| {
            let is_set = |caching: Caching| caching.garbage_collection_threshold.is_some();
            needs_fixed_segments("garbage_collection_threshold", is_set, run)
        },
    },
    // A leak moves the addresses of later steps.
    Conflict {
        keys: &["strategy.graph", "strategy.leak"],
        check: |run| {
            let name = quoted(run.strategy.leak?.keyword());
            run.strategy.graph.then(|| {
                message(
                    format!(
                        "graph = true needs the same addresses in each step; leak = {name} allocates at new ones"
                    ),
                    "use leak = \"off\" or graph = false",
                )
            })
        },
    },
    // Collected outputs move the addresses of later evaluation batches.
    Conflict {
        keys: &["strategy.graph", "evaluation.collect"],
        check: |run| {
            let what = quoted(run.collect()?.what.keyword());
            run.strategy.graph.then(|| {
                message(
                    format!(
                        "graph = true needs the same addresses in each evaluation batch; evaluation.collect = {what} allocates at new ones"
                    ),
                    "use evaluation.collect = \"off\" or graph = false",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.update", "train.clip_norm"],
        check: |run| {
            updates_in_backward(run)?;
            let clip_norm = run.train.clip_norm?;
            Some(message(
                format!(
                    "update = \"in_backward\" applies gradients before all are computed; train.clip_norm = {clip_norm} needs the norm of all gradients"
                ),
                "use train.clip_norm = \"off\" or update = \"after_backward\"",
            ))
        },
    },
    Conflict {
        keys: &["strategy.update", "strategy.loss_scale", "strategy.precision"],
        check: |run| {
            updates_in_backward(run)?;
            run.strategy.loss_scale?;
            Some(message(
                "update = \"in_backward\" applies gradients before all are computed; with loss_scale (the default of fp16), a step is skipped if any gradient is not finite",
                "use loss_scale = \"off\", precision = \"bf16\" or update = \"after_backward\"",
            ))
        },
    },
    Conflict {
        keys: &["strategy.update", "strategy.accumulate"],
        check: |run| {
            updates_in_backward(run)?;
            let accumulate = run.strategy.accumulate;
            (accumulate > 1).then(|| {
                message(
                    format!(
                        "update = \"in_backward\" frees each gradient once it is complete; with accumulate = {accumulate} all are kept until the last micro-batch, which saves no memory"
                    ),
                    "use accumulate = 1 or update = \"after_backward\"",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.update", "strategy.gradients"],
        check: |run| {
            updates_in_backward(run)?;
            (run.strategy.gradients == Gradients::Zero).then(|| {
                message(
                    "update = \"in_backward\" frees each gradient once it is complete; gradients = \"zero\" keeps them, which saves no memory",
                    "use gradients = \"free\" or update = \"after_backward\"",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.recompute", "measure.what"],
        check: |run| {
            let Recompute::Budget(_) = run.strategy.recompute else { return None };
            (!run.trains()).then(|| {
                message(
                    format!(
                        "recompute = {} has no effect: measure.what = \"inference\" has no backward pass",
                        run.strategy.recompute
                    ),
                    "use recompute = \"none\" or measure.what = \"training\"",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.lora", "model"],
        check: |run| {
            (run.strategy.lora.is_some() && run.model.sequential().is_some()).then(|| {
                message(
                    "lora adapts the linear layers of a transformer's blocks; model.sequential has no such blocks",
                    "use lora = \"off\", or freeze = [..] to train some of the layers",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.recompute", "model"],
        check: |run| {
            let names_parts = matches!(run.strategy.recompute, Recompute::Parts(_));
            (names_parts && run.model.sequential().is_some()).then(|| {
                message(
                    "a list in recompute names parts of a transformer's blocks; model.sequential has no such parts",
                    "use recompute = \"block\", { every = 2 }, { segments = 2 } or { save = [\"linear\"] }",
                )
            })
        },
    },
];

pub(super) fn message(reason: impl Into<String>, remedy: impl Into<String>) -> ConflictMessage {
    ConflictMessage { reason: reason.into(), remedy: remedy.into() }
}

fn updates_in_backward(run: &RunConfig) -> Option<()> {
    (run.strategy.update == Update::InBackward && run.trains()).then_some(())
}

/// Options for segments of fixed size conflict with segments that grow.
fn needs_fixed_segments(key: &str, is_set: fn(Caching) -> bool, run: &RunConfig) -> Option<ConflictMessage> {
    let Allocator::Caching(caching) = run.strategy.allocator else { return None };
    (caching.expandable_segments && is_set(caching)).then(|| {
        message(
            format!("{key} applies to segments of fixed size; with expandable_segments = true they grow"),
            format!("remove {key}, or use expandable_segments = false"),
        )
    })
}

/// Gradients and the residual stream are stored in the dtype of the parameters, or in fp32.
fn matches_params(key: &str, stored: StorageDtype, params: StorageDtype) -> Option<ConflictMessage> {
    let [word, own] = [stored.keyword(), params.keyword()].map(quoted);
    (stored != StorageDtype::Fp32 && stored != params).then(|| {
        message(
            format!("{key} = {word} is neither \"fp32\" nor the dtype of the parameters, params = {own}"),
            format!("use {key} = \"fp32\" or params = {word}"),
        )
    })
}

/// With 16-bit parameters and fp32 matmuls, results are stored in fp32.
fn stores_fp32_results(key: &str, stored: StorageDtype, run: &RunConfig) -> Option<ConflictMessage> {
    let Strategy { precision, params, .. } = run.strategy;
    let produces_fp32 = Precision::default_for(params) != Precision::Fp32 && precision.dtype() == DType::F32;
    let [precision, params, word] = [precision.keyword(), params.keyword(), stored.keyword()].map(quoted);
    (produces_fp32 && stored != StorageDtype::Fp32).then(|| {
        message(
            format!("precision = {precision} produces 32-bit results; {key} = {word} stores 16 bits"),
            format!("use {key} = \"fp32\" or precision = {params}"),
        )
    })
}
