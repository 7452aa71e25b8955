//! Each conflict between keys, with an example that only this conflict refuses.

use std::collections::BTreeSet;

use spec::conflicts;

use testing::{changed, small};

const LAYERS: &str = "model = { sequential = { input = [4], layers = [{ linear = 4 }] } }";

const SHARES: &str = "parallel = { data = 2, shard = 'optimizer' }";

const BATCH_NORM: &str = "model = { sequential = { input = [4], layers = ['batch_norm', { linear = 4 }] } }";

const RANDOM: &str = "data = { random = {} }";

/// For each conflict, in the order of `conflicts`: settings that it alone refuses, and a setting that resolves the
/// conflict if it replaces the one with the same key.
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
    (&["lora = { rank = 2, alpha = 2, targets = ['mlp'], double_quantization = true }"], "lora.base = 'nf4'"),
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
    (&["graph = true", "evaluation.collect = 'logits'"], "evaluation.collect = 'off'"),
    (&["update = 'in_backward'"], "train.clip_norm = 'off'"),
    (&["update = 'in_backward'", "train.clip_norm = 'off'", "precision = 'fp16'"], "loss_scale = 'off'"),
    (&["update = 'in_backward'", "train.clip_norm = 'off'", "accumulate = 2"], "accumulate = 1"),
    (&["update = 'in_backward'", "train.clip_norm = 'off'", "gradients = 'zero'"], "gradients = 'free'"),
    (&["measure.what = 'inference'", "recompute = 'auto'"], "recompute = 'block'"),
    (&[LAYERS, RANDOM, "lora = { rank = 2, alpha = 2, targets = ['mlp'] }"], "lora = 'off'"),
    (&[LAYERS, RANDOM, "recompute = ['mlp']"], "recompute = 'none'"),
    (&["parallel = { data = 5 }", "train.batch_size = 4"], "parallel = { data = 4 }"),
    (&["parallel = { data = 4 }", "evaluation.batch_size = 3"], "parallel = { data = 3 }"),
    (&["parallel = { data = 2 }", "graph = true"], "graph = false"),
    (&["parallel = { data = 2 }", "allocator = 'direct'"], "allocator = 'arena'"),
    (
        &["parallel = { data = 3 }", "train.batch_size = 4", "offload = { activations = '1 KiB' }"],
        "offload = { activations = true }",
    ),
    (
        &["parallel = { data = 2 }", "data.text = { documents = 'padded', pad_to = 'batch' }"],
        "data.text = { documents = 'padded' }",
    ),
    (&[BATCH_NORM, RANDOM, "parallel = { data = 2 }"], "parallel = { data = 1 }"),
    (&[SHARES, "train.optimizer = { adafactor = { lr = 1e-3 } }"], "parallel = { data = 2 }"),
    (&[SHARES, "optimizer_state = 'bf16'", "rounding = 'stochastic'"], "rounding = 'nearest'"),
    (&[SHARES, "offload = { optimizer = true }"], "offload = {}"),
    (
        &["parallel = { data = 3, shard = 'gradients' }", "train.batch_size = 5", "accumulate = 2"],
        "accumulate = 1",
    ),
    (&["parallel = { data = 2, shard = 'parameters' }", "init = 'lazy'"], "init = 'device'"),
    (
        &["parallel = { data = 2, shard = 'gradients', reduce = 'step' }"],
        "parallel = { data = 2, shard = 'parameters', reduce = 'step' }",
    ),
    (
        &["parallel = { data = 2, shard = 'gradients', keep_gathered = true }"],
        "parallel = { data = 2, shard = 'parameters', keep_gathered = true }",
    ),
    (&["parallel = { data = 2, ahead = 2 }"], "parallel = { data = 2 }"),
];

#[test]
fn each_conflict_refuses_its_example() {
    assert_eq!(EXAMPLES.len(), conflicts().count(), "an example for each");
    let toml = small().to_toml("run", "plain");
    // Remove keys whose defaults follow from other keys.
    let follows = ["precision", "gradient_dtype", "residual", "loss_scale"];
    let said = |line: &&str| !follows.iter().any(|key| line.starts_with(&format!("{key} = ")));
    let toml: Vec<&str> = toml.lines().filter(said).collect();
    let toml = toml.join("\n");
    let mut reasons = BTreeSet::new();
    for ((conflict, (refused, works)), number) in conflicts().zip(EXAMPLES).zip(0..) {
        let settings: Vec<String> = refused.iter().map(|&setting| setting.to_owned()).collect();
        let error = changed(&toml, &settings).err().unwrap_or_else(|| panic!("nothing refuses {refused:?}"));
        let error = error.to_string();
        assert_eq!(error.matches("= help:").count(), 1, "one reason: {error}");
        // The error marks exactly the settings of the conflict's keys.
        let marked = error.lines().filter_map(|line| line.split_once("--set "));
        let marked: BTreeSet<&str> = marked.map(|(_, setting)| setting).collect();
        let is_of = |setting: &&&str| {
            let name = setting.split(" = ").next().unwrap_or_default();
            conflict.keys.iter().any(|key| key.contains(name) || name.contains(key))
        };
        let blamed: BTreeSet<&str> = refused.iter().filter(is_of).copied().collect();
        assert_eq!(marked, blamed, "{number} {:?}: {error}", conflict.keys);
        let key = |setting: &str| setting.split(" = ").next().unwrap_or_default().to_owned();
        let kept = settings.into_iter().filter(|setting| key(setting) != key(works));
        let settings: Vec<String> = kept.chain([(*works).to_owned()]).collect();
        let config = changed(&toml, &settings).unwrap_or_else(|error| panic!("{settings:?}: {error}"));
        let refusals = conflicts().filter_map(|conflict| (conflict.check)(&config));
        assert_eq!(refusals.count(), 0, "{settings:?}");
        reasons.insert(error);
    }
    assert_eq!(reasons.len(), conflicts().count(), "each has a reason of its own");
}
