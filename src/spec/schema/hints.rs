//! Hints for unknown keys: a typing error, a key of another table, or the name of another tool.

use super::data::Data;
use super::key::{Key, is_experiment_key};
use super::model::Model;
use super::optimizer::Optimizer;
use super::resolved::{Evaluation, Measure, Train};
use super::schedule::Schedule;
use super::strategy::STRATEGY_KEYS;
use super::version;
use crate::reader::declare::{ChoiceTable, KeyTable};
use crate::reader::hints::{list, nearest};
use crate::reader::keys::{FileKind, TableKeys, join};
use crate::reader::tree::{Table, TableEntry};

/// Experiment files.
pub(crate) const EXPERIMENT: FileKind =
    FileKind { name: "experiment", user: "run", is_planned: version::is_later_key, hint: for_key };

/// Target files.
pub(crate) const TARGET: FileKind =
    FileKind { name: "target", user: "target", is_planned: |_, _| false, hint: for_target_key };

/// Keys, with a value where the name implies one, and their names in other tools.
const OTHER_NAMES: &[(&str, &[&str])] = &[
    ("layers", &["n_layer", "n_layers", "num_layers", "num_hidden_layers", "n_blocks", "depth"]),
    ("d_model", &["n_embd", "hidden_size", "hidden_dim", "embed_dim", "embedding_dim", "dim", "width"]),
    ("heads", &["n_head", "n_heads", "num_heads", "num_attention_heads"]),
    ("kv_heads", &["multi_query_group_num", "n_kv_heads", "num_key_value_heads", "num_kv_heads"]),
    ("head_dim", &["attention_head_size", "d_head", "d_kv", "head_size"]),
    ("causal", &["is_causal", "is_decoder"]),
    ("qkv_bias", &["add_qkv_bias", "use_qkv_bias"]),
    ("embedding_scale", &["embed_scale", "embedding_multiplier", "scale_embeddings"]),
    ("logit_softcap", &["final_logit_softcapping", "final_softcap"]),
    ("qk_norm", &["qk_layernorm", "use_qk_norm"]),
    ("window", &["attention_window", "local_attention", "sliding_window", "window_size"]),
    ("global_every", &["sliding_window_pattern"]),
    ("attention_softcap", &["attn_logit_softcapping", "attention_cap", "softcap"]),
    ("attention_scale", &["attention_multiplier", "query_pre_attn_scalar", "softmax_scale"]),
    (
        "context",
        &[
            "block_size",
            "context_length",
            "max_position_embeddings",
            "max_seq_len",
            "n_ctx",
            "n_positions",
            "seq_len",
            "seq_length",
            "sequence_length",
        ],
    ),
    ("vocabulary", &["vocab_size", "n_vocab", "vocab"]),
    (
        "d_ff",
        &[
            "d_ffn",
            "d_inner",
            "dim_feedforward",
            "feed_forward_dim",
            "ffn_dim",
            "intermediate_size",
            "n_inner",
        ],
    ),
    ("activation", &["act_fn", "activation_function", "hidden_act", "hidden_activation"]),
    ("activation = \"swiglu\"", &["swiglu"]),
    ("norm", &["norm_type", "normalization"]),
    ("norm = \"rms\"", &["rms_norm", "rmsnorm"]),
    (
        "norm_epsilon",
        &["layer_norm_eps", "layer_norm_epsilon", "norm_eps", "rms_norm_eps", "rms_norm_epsilon"],
    ),
    ("norm_placement = \"pre\"", &["norm_first", "normalize_before", "pre_norm"]),
    ("norm_placement = \"post\"", &["post_norm"]),
    ("positions", &["pos_emb", "position_embedding", "position_embedding_type", "positional_encoding"]),
    ("positions = \"rotary\"", &["rope", "use_rope"]),
    ("rotary = { base = 500000.0 }", &["rope_base", "rope_theta", "rotary_base", "rotary_emb_base"]),
    ("rotary = { scaling = { factor = 8.0, original = 8192 } }", &["rope_parameters", "rope_scaling"]),
    ("bias", &["attention_bias", "biases", "mlp_bias", "use_bias"]),
    ("tied", &["share_embeddings", "tie_embeddings", "tie_weights", "tie_word_embeddings"]),
    ("dropout = 0.1", &["drop_rate", "dropout_p", "dropout_prob", "dropout_rate", "p_drop"]),
    ("dropout = { attention = 0.1 }", &["attention_dropout", "attn_drop", "attn_dropout", "attn_pdrop"]),
    ("dropout = { embedding = 0.1 }", &["embd_pdrop", "embedding_dropout"]),
    (
        "dropout = { residual = 0.1 }",
        &["hidden_dropout", "hidden_dropout_prob", "resid_dropout", "resid_pdrop", "residual_dropout"],
    ),
    ("paths", &["file", "files", "path", "data_dir", "data_path"]),
    ("tokens", &["tokenizer"]),
    ("jsonl", &["text_field", "text_column"]),
    ("documents = \"padded\"", &["padding"]),
    ("documents = \"packed\"", &["packing"]),
    ("batch_size", &["batch", "bs", "global_batch_size", "train_batch_size"]),
    ("clip_norm", &["clip_grad_norm", "grad_clip", "gradient_clip", "gradient_clipping", "max_grad_norm"]),
    ("seed", &["random_seed"]),
    ("last_batch", &["drop_last", "dataloader_drop_last"]),
    ("loader = { workers = 2 }", &["dataloader_num_workers", "num_workers"]),
    ("loader = { prefetch = 2, workers = 1 }", &["dataloader_prefetch_factor", "prefetch_factor"]),
    ("loader = { pinned = true }", &["dataloader_pin_memory", "pin_memory"]),
    ("lr", &["learning_rate"]),
    ("weight_decay", &["wd"]),
    ("adjust = \"match_rms_adamw\"", &["adjust_lr_fn", "match_rms_adamw"]),
    ("beta2_decay = -0.8", &["decay_rate"]),
    ("clip_threshold", &["clipping_threshold"]),
    ("momentum", &["mu"]),
    ("steps", &["epochs", "iterations", "max_iters", "max_steps", "num_steps"]),
    ("warmup", &["lr_warmup_steps", "num_warmup_steps", "warmup_iters"]),
    ("floor = 0.1", &["eta_min", "lr_min", "min_lr", "min_lr_factor", "min_lr_ratio"]),
    ("total", &["lr_decay_iters", "num_training_steps", "total_iters", "total_steps"]),
    ("schedule = { cosine = {} }", &["cosine", "cosine_annealing"]),
    (
        "groups = [{ match = \"*.bias\", weight_decay = 0.0 }]",
        &["no_decay", "param_groups", "parameter_groups"],
    ),
    ("schedule", &["lr_schedule", "lr_scheduler", "lr_scheduler_type", "scheduler"]),
    ("repeats", &["repetitions", "trials"]),
    ("model", &["architecture"]),
    ("data", &["dataset"]),
    ("train", &["trainer", "training"]),
    ("evaluation", &["eval", "validation"]),
    ("memory", &["memory_limit", "vram"]),
    ("host_memory", &["cpu_memory", "host_memory_limit", "ram"]),
    ("grid", &["matrix"]),
    (
        "accumulate = 4",
        &[
            "accumulate_grad_batches",
            "accumulation",
            "accumulation_steps",
            "grad_accum",
            "grad_accum_steps",
            "gradient_accumulation",
            "gradient_accumulation_steps",
            "micro_batch",
            "micro_batch_size",
            "micro_batches",
            "per_device_train_batch_size",
        ],
    ),
    ("precision = \"bf16\"", &["amp", "autocast", "bf16", "dtype", "mixed_precision", "torch_dtype"]),
    ("precision = \"fp16\"", &["fp16", "half"]),
    ("precision = \"tf32\"", &["tf32", "allow_tf32"]),
    (
        "recompute = \"block\"",
        &[
            "activation_checkpointing",
            "checkpoint",
            "checkpoint_activations",
            "checkpointing",
            "grad_checkpointing",
            "gradient_checkpointing",
            "rematerialization",
            "remat",
        ],
    ),
    (
        "recompute = { save = [\"linear\"] }",
        &["selective_activation_checkpointing", "selective_checkpointing"],
    ),
    ("loss_scale = \"dynamic\"", &["grad_scaler", "gradscaler", "loss_scaling", "scaler"]),
    ("evaluation_pass = \"no_grad\"", &["inference_mode", "no_grad"]),
    ("gradients = \"free\"", &["set_to_none", "zero_grad"]),
    ("leak = \"graph\"", &["retain_graph"]),
    (
        "update = \"in_backward\"",
        &["apply_optimizer_in_backward", "fused_backward", "optimizer_in_backward", "optimizer_in_bwd"],
    ),
    (
        "allocator = { caching = { max_split_size_mb = 128 } }",
        &["max_split_size", "max_split_size_mb", "pytorch_cuda_alloc_conf"],
    ),
    ("allocator = { caching = { garbage_collection_threshold = 0.8 } }", &["garbage_collection_threshold"]),
    ("allocator = { caching = { expandable_segments = true } }", &["expandable_segments"]),
    ("graph = true", &["cuda_graph", "cuda_graphs"]),
    (
        "optimizer_state = \"8bit\"",
        &["adam8bit", "adamw8bit", "adamw_8bit", "optimizer_8bit", "paged_adamw_8bit"],
    ),
    ("quantize = { from = 4096 }", &["min_8bit_size"]),
    (
        "lora = { rank = 8, alpha = 16, targets = [\"attention.qkv\"] }",
        &["adapter", "adapters", "peft", "qlora"],
    ),
];

/// The hint for an unknown key of a table.
fn for_key(searched: &TableKeys<'_>, entry: &TableEntry) -> String {
    let key = entry.key.as_str();
    other_name_in_table(searched, key)
        .or_else(|| run_key_in_strategy(searched, entry))
        .or_else(|| key_of_other_table(searched, entry))
        .or_else(|| nearest(key, searched.keys).map(|near| format!("did you mean `{near}`?")))
        .or_else(|| {
            let own = nearest(key, STRATEGY_KEYS).filter(|_| searched.path.is_empty());
            own.map(|near| format!("did you mean `{near}`?"))
        })
        .unwrap_or_else(|| format!("use {}", list(searched.keys)))
}

/// The hint for an unknown key of a target file.
fn for_target_key(searched: &TableKeys<'_>, entry: &TableEntry) -> String {
    let key = entry.key.as_str();
    other_name_in_table(searched, key)
        .or_else(|| nearest(key, searched.keys).map(|near| format!("did you mean `{near}`?")))
        .unwrap_or_else(|| format!("use {}", list(searched.keys)))
}

/// A key of this table, given its name in another tool.
fn other_name_in_table(searched: &TableKeys<'_>, key: &str) -> Option<String> {
    // In other tools, `warmup_steps` is a key of schedules; here it is a key of [measure] with another meaning.
    if key == "warmup_steps" && searched.keys.contains(&"warmup") {
        return Some("did you mean `warmup`?".to_owned());
    }
    let (meant, name) = other_name(key)?;
    // In [model.hf], `dropout` is a boolean.
    let is_switch = (searched.path, name) == ("model.hf", "dropout");
    (searched.keys.contains(&name) && !is_switch).then(|| format!("did you mean `{meant}`?"))
}

/// A key of a run, or a table of such keys, that was written in a strategy.
fn run_key_in_strategy(searched: &TableKeys<'_>, entry: &TableEntry) -> Option<String> {
    let in_strategy = searched.path.is_empty() && STRATEGY_KEYS.iter().all(|key| searched.keys.contains(key));
    if !in_strategy {
        return None;
    }
    let name = other_name(&entry.key).map_or(entry.key.as_str(), |(_, name)| name);
    let table = entry.node.table().filter(|_| tables_with_keys().any(|(table, _)| head(&table) == name));
    let paths: Vec<String> = match table.and_then(|table: &Table| table.settings().into_iter().next()) {
        Some(setting) => vec![format!("{}.{}", entry.key, setting.key)],
        None => tables_with(name).map(|table| format!("{table}.{name}")).collect(),
    };
    let paths: Vec<String> = paths.into_iter().filter(|path| !is_experiment_key(&Key::new(path))).collect();
    let written: Vec<String> = paths.iter().map(|path| format!("`set.\"{path}\" = ...`")).collect();
    (!written.is_empty()).then(|| format!("in a strategy, use {}", join(&written, "or")))
}

/// A key of another table, given its name here or in another tool.
fn key_of_other_table(searched: &TableKeys<'_>, entry: &TableEntry) -> Option<String> {
    let key = entry.key.as_str();
    let (meant, name) = other_name(key).unwrap_or((key, key));
    let it = if name == key { "it".to_owned() } else { format!("`{meant}`") };
    if STRATEGY_KEYS.contains(&name) {
        return Some(match it.as_str() {
            "it" => "it belongs in [defaults] or in a strategy, [strategies.NAME]".to_owned(),
            _ => format!("did you mean {it} in [defaults] or in a strategy, [strategies.NAME]?"),
        });
    }
    let tables: Vec<String> = tables_with(name).filter(|table| *table != searched.path).collect();
    if tables.is_empty() {
        return None;
    }
    let is_experiment = searched.path.is_empty() && searched.keys.contains(&"measure");
    if is_experiment {
        let quoted = |table: &String| match entry.node.table() {
            Some(_) => format!("[{table}.{name}]"),
            None => format!("`{table}.{name}`"),
        };
        let keys: Vec<String> = tables.iter().map(quoted).collect();
        return Some(format!("did you mean {}?", join(&keys, "or")));
    }
    let headers: Vec<String> = tables.iter().map(|table| format!("[{table}]")).collect();
    Some(format!("{it} belongs in {}", join(&headers, "or")))
}

/// The notation for a key of another tool, and the name of its key.
fn other_name(key: &str) -> Option<(&'static str, &'static str)> {
    let key = key.to_lowercase().replace('-', "_");
    let (meant, _) = OTHER_NAMES.iter().find(|(_, others)| others.contains(&key.as_str()))?;
    Some((meant, meant.split_once(" = ").map_or(*meant, |(name, _)| name)))
}

/// The tables that have a key of this name.
fn tables_with(name: &str) -> impl Iterator<Item = String> {
    tables_with_keys().filter(move |(_, keys)| keys.contains(&name)).map(|(table, _)| table)
}

/// The tables of an experiment file outside strategies, with their keys.
fn tables_with_keys() -> impl Iterator<Item = (String, Vec<&'static str>)> {
    fn variants<T: ChoiceTable>() -> impl Iterator<Item = (String, Vec<&'static str>)> {
        T::VARIANTS.iter().map(|variant| (variant.path.to_owned(), variant.keys.to_vec()))
    }
    let tables = [
        ("train", Train::KEYS),
        ("evaluation", Evaluation::KEYS),
        ("measure", Measure::KEYS),
        ("measure", &["repeats"]),
        ("target", &["memory", "host_memory"]),
        ("sweep", &["grid", "zip", "include", "exclude"]),
    ];
    let tables = tables.into_iter().map(|(table, keys)| (table.to_owned(), keys.to_vec()));
    let choices = variants::<Model>().chain(variants::<Data>());
    tables.chain(choices).chain(variants::<Optimizer>()).chain(variants::<Schedule>())
}

fn head(path: &str) -> &str {
    path.split('.').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_map_to_keys_and_are_no_keys() {
        let top = ["model", "data", "train", "evaluation"];
        let is_key = |name: &str| {
            STRATEGY_KEYS.contains(&name) || top.contains(&name) || tables_with(name).next().is_some()
        };
        let mut seen = Vec::new();
        for (meant, others) in OTHER_NAMES {
            let name = meant.split(" = ").next().unwrap_or_default();
            assert!(is_key(name), "`{name}` is not a key");
            for other in *others {
                assert!(!is_key(other), "`{other}` is a key itself");
                assert!(!seen.contains(other), "`{other}` is a duplicate");
                assert_eq!(other_name(other), Some((*meant, name)));
                seen.push(*other);
            }
        }
    }
}
