//! What `runner check` says of experiments that are wrong: the whole text of each message.

use std::path::Path;
use std::process::Command;

const GOOD: &str = r#"[model.transformer]
layers = 2
d_model = 64
heads = 2
context = 32

[data.text]
paths = ["*.txt"]

[train]
batch_size = 8
optimizer.adamw = { lr = 3e-4 }

[strategies.plain]

[strategies.lean]
recompute = "block"
"#;

/// Checks `a.toml` among some files and returns what is wrong with it. Nothing else may come of it.
fn check_files(files: &[(&str, &str)], arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder for the test");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("a file for the test");
    }
    let before = names(folder.path());
    let cache = tempfile::tempdir().expect("a folder for encoded text");
    let output = Command::new(env!("CARGO_BIN_EXE_runner"))
        .current_dir(folder.path())
        .env_remove("RUNNER_TEST_UNSET")
        .env("RUNNER_CACHE_DIR", cache.path())
        .arg("check")
        .args(arguments)
        .output()
        .expect("the program starts");
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    assert_eq!(names(folder.path()), before, "nothing is written");
    stderr.replace(folder.path().to_str().expect("text"), "FOLDER")
}

fn names(folder: &Path) -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir(folder).expect("the folder of the test");
    let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    names
}

fn check(text: &str) -> String {
    check_files(&[("a.toml", text)], &["a.toml"])
}

const MODEL: &str = "[model.transformer]\nlayers = 2\nd_model = 64\nheads = 2\ncontext = 32\n";

const LLAMA: &str = r#"{
  "model_type": "llama",
  "hidden_size": 8,
  "intermediate_size": 16,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "max_position_embeddings": 32,
  "vocab_size": 256
}
"#;

/// The good experiment on a file of tokens.
fn of_tokens(keys: &str) -> String {
    with("[data.text]\npaths = [\"*.txt\"]", &format!("[data.tokens]\npaths = [\"a.bin\"]\n{keys}"))
}

/// The good experiment with more said of its text.
fn of_text(keys: &str) -> String {
    with("paths = [\"*.txt\"]", &format!("paths = [\"*.txt\"]\n{keys}"))
}

/// One that knows few words.
const TOKENIZER: &str = r#"{
  "added_tokens": [{
    "id": 300, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true
  }],
  "normalizer": null, "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null,
  "model": { "type": "WordLevel", "vocab": { "is": 0, "this": 1, "What": 2, "?": 3, "<end>": 300 }, "unk_token": "?" }
}"#;

/// The good experiment with a tokenizer beside it.
fn tokenized(tokenizer: &str, table: &str) -> String {
    let text = of_text(&format!("tokens = {{ {table} }}"));
    let files = [("a.toml", text.as_str()), ("t.json", tokenizer), ("a.txt", &TEXT.repeat(100))];
    check_files(&files, &["a.toml"])
}

/// The good experiment on what a Markov chain makes.
fn of_chain(keys: &str) -> String {
    with("[data.text]\npaths = [\"*.txt\"]", &format!("[data.synthetic]\n{keys}"))
}

/// The good experiment with a model that a configuration describes.
fn of_configuration(keys: &str) -> String {
    with(MODEL, &format!("[model.hf]\n{keys}\n"))
}

/// The same beside a configuration.
fn configured(configuration: &str, keys: &str) -> String {
    let text = of_configuration(&format!("config = \"c.json\"\n{keys}"));
    check_files(&[("a.toml", &text), ("c.json", configuration), ("a.txt", &TEXT.repeat(100))], &["a.toml"])
}

const TEXT: &str = "What is learnt from is this. ";

/// The good experiment, started from a file beside it.
fn weighted() -> String {
    with("heads = 2", "heads = 2\nweights = \"w.safetensors\"")
}

/// A safetensors file that holds one f32 tensor of 64 columns, all zeros.
fn of_one_tensor(name: &str, rows: usize) -> String {
    let bytes = 4 * 64 * rows;
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[{rows},64],"data_offsets":[0,{bytes}]}}}}"#);
    let length = String::from_utf8((header.len() as u64).to_le_bytes().to_vec()).expect("a short header");
    format!("{length}{header}{}", "\0".repeat(bytes))
}

/// The good experiment with one part of it replaced.
fn with(good: &str, bad: &str) -> String {
    assert!(GOOD.contains(good), "{good}");
    GOOD.replace(good, bad)
}

/// The good experiment with something more at its end.
fn and(more: &str) -> String {
    format!("{GOOD}\n{more}\n")
}

macro_rules! bad {
    ($($name:ident: $message:expr;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(stringify!($name), $message);
        })*
    };
}

bad! {
    syntax: check(&with("heads = 2", "heads = = 2"));
    syntax_at_end: check(&and("[strategies.last"));
    duplicate_key: check(&with("heads = 2", "heads = 2\nheads = 4"));
    duplicate_strategy: check(&and("[strategies.lean]"));
    misspelt_key: check(&with("recompute =", "recompte ="));
    misspelt_key_of_an_inline_table: check(&with("lr = 3e-4", "lr = 3e-4, bta1 = 0.9"));
    unknown_key: check(&with("heads = 2", "heads = 2\ncolour = 3"));
    unknown_table: check(&and("[trian]\nbatch_size = 8"));
    strategy_key_at_the_top: check(&format!("recompute = \"block\"\n{GOOD}"));
    later_key: check(&with("recompute = \"block\"", "parallel = { data = 2 }"));
    wrong_word_where_a_table_can_be: check(&with("recompute = \"block\"", "allocator = \"cache\""));
    misspelt_key_of_a_cache: check(&with("recompute = \"block\"",
        "allocator = { caching = { max_split_mb = 128 } }"));
    blocks_that_small_requests_share: check(&with("recompute = \"block\"",
        "allocator = { caching = { max_split_size_mb = 20 } }"));
    threshold_of_all: check(&with("recompute = \"block\"",
        "allocator = { caching = { garbage_collection_threshold = 1 } }"));
    segments_that_grow_and_stay_whole: check(&with("recompute = \"block\"",
        "allocator = { caching = { expandable_segments = true, max_split_size_mb = 128 } }"));
    key_of_a_cache_beside_the_allocator: check(&with("recompute = \"block\"",
        "allocator = \"caching\"\nmax_split_size_mb = 128"));
    emptied_where_nothing_is_cached: check(&with("recompute = \"block\"",
        "allocator = \"direct\"\nempty_cache = \"step\""));
    graph_of_a_cache: check(&with("recompute = \"block\"", "allocator = \"caching\"\ngraph = true"));
    later_model: check(&with("[model.transformer]", "[model.mlp]"));
    wrong_type: check(&with("batch_size = 8", "batch_size = \"eight\""));
    wrong_type_of_a_table: check(&and("[evaluation]\nevery = [1, 2]"));
    table_expected: check(&format!("evaluation = 3\n{GOOD}"));
    out_of_range: check(&with("layers = 2", "layers = 0"));
    negative: check(&with("batch_size = 8", "batch_size = -8"));
    beyond_64_bits: check(&with("batch_size = 8", "batch_size = 99999999999999999999999999999999999999999999"));
    not_finite: check(&with("lr = 3e-4", "lr = inf"));
    share_out_of_range: check(&with("paths = [\"*.txt\"]", "paths = [\"*.txt\"]\nsplit = 1.5"));
    wrong_word: check(&with("\"block\"", "\"blok\""));
    size_without_unit: check(&and("[target]\nmemory = 24"));
    host_memory_of_nothing: check(&and("[target]\nmemory = \"24 GiB\"\nhost_memory = \"0 B\""));
    host_memory_by_another_name: check(&and("[target]\nram = \"24 GiB\""));
    size_with_wrong_unit: check(&and("[target]\nmemory = \"24 gib\""));
    missing_key: check(&with("heads = 2\n", ""));
    missing_table: check("[strategies.a]\n");
    required_key_off: check(&with("heads = 2", "heads = \"off\""));
    no_strategies: check(GOOD.split("[strategies").next().expect("the part before"));
    empty_paths: check(&with("[\"*.txt\"]", "[]"));
    bad_pattern: check(&with("*.txt", "a***b"));
    unset_variable: check(&with("*.txt", "${RUNNER_TEST_UNSET}/*.txt"));
    heads_do_not_divide: check(&with("heads = 2", "heads = 3"));
    heads_do_not_divide_a_number_of_many_divisors: check(&with("d_model = 64", "d_model = 720").replace(
        "heads = 2", "heads = 7"));
    shared_heads_that_do_not_divide: check(&with("heads = 2", "heads = 4\nkv_heads = 3"));
    more_heads_of_keys_than_of_queries: check(&with("heads = 2", "heads = 2\nkv_heads = 4"));
    shared_heads_by_another_name: check(&with("heads = 2", "heads = 2\nnum_key_value_heads = 1"));
    rotated_heads_of_a_width_of_their_own: check(&with("heads = 2",
        "heads = 2\nhead_dim = 15\npositions = \"rotary\""));
    window_that_sees_ahead: check(&with("heads = 2", "heads = 2\nwindow = 8\ncausal = false"));
    beyond_no_window: check(&with("heads = 2", "heads = 2\nglobal_every = 2"));
    window_of_nothing: check(&with("heads = 2", "heads = 2\nwindow = 0"));
    cap_of_nothing: check(&with("heads = 2", "heads = 2\nattention_softcap = 0.0"));
    scale_below_nothing: check(&with("heads = 2", "heads = 2\nattention_scale = -1"));
    activation_that_is_none: check(&with("heads = 2", "heads = 2\nactivation = \"gelu_new\""));
    norm_by_another_name: check(&with("heads = 2", "heads = 2\nnorm = \"rmsnorm\""));
    epsilon_of_nothing: check(&with("heads = 2", "heads = 2\nnorm_epsilon = 0"));
    positions_by_another_name: check(&with("heads = 2", "heads = 2\npositions = \"rope\""));
    rotated_heads_of_odd_channels: check(&with("heads = 2", "heads = 64\npositions = \"rotary\""));
    rotated_heads_of_an_odd_model: check(&with("d_model = 64", "d_model = 63").replace(
        "heads = 2", "heads = 3\npositions = \"rotary\""));
    rotations_that_nobody_asked_for: check(&with("heads = 2", "heads = 2\nrotary = { base = 500000.0 }"));
    rotations_of_base_0: check(&with("heads = 2", "heads = 2\npositions = \"rotary\"\nrotary = { base = 0 }"));
    rotary_that_is_a_word: check(&with("heads = 2", "heads = 2\nrotary = \"llama3\""));
    rotary_base_by_another_name: check(&with("heads = 2", "heads = 2\nrope_theta = 500000.0"));
    scaling_without_context: check(&with("heads = 2",
        "heads = 2\npositions = \"rotary\"\nrotary = { scaling = { factor = 8.0 } }"));
    scaling_that_speeds_up: check(&with("heads = 2",
        "heads = 2\npositions = \"rotary\"\nrotary = { scaling = { factor = 0.5, original = 8192 } }"));
    scaling_of_no_range: check(&with("heads = 2",
        "heads = 2\npositions = \"rotary\"\nrotary = { scaling = { factor = 8.0, low = 4.0, original = 8192 } }"));
    width_of_nothing: check(&with("heads = 2", "heads = 2\nd_ff = 0"));
    biases_in_number: check(&with("heads = 2", "heads = 2\nbias = 1"));
    tied_to_a_word: check(&with("heads = 2", "heads = 2\ntied = \"embedding\""));
    more_micro_batches_than_sequences: check(&with("recompute = \"block\"", "accumulate = 9"));
    more_micro_batches_than_one_sequence: check(&with("batch_size = 8", "batch_size = 1").replace(
        "recompute = \"block\"", "accumulate = 2"));
    loss_scale_of_bf16: check(&with("recompute = \"block\"", "precision = \"bf16\"\nloss_scale = 1024"));
    loss_scale_of_fp32: check(&with("recompute = \"block\"", "loss_scale = \"dynamic\""));
    loss_scale_beyond_f32: check(&with("recompute = \"block\"", "precision = \"fp16\"\nloss_scale = 1e300"));
    backoff_that_f32_takes_for_0: check(&with("recompute = \"block\"",
        "precision = \"fp16\"\nloss_scale.dynamic.backoff = 1e-60"));
    misspelt_key_of_a_loss_scale: check(&with("recompute = \"block\"",
        "precision = \"fp16\"\nloss_scale = { dynamic = { backof = 0.5 } }"));
    nesterov_without_momentum: check(&with("adamw = { lr = 3e-4 }", "sgd = { lr = 0.1, nesterov = true }"));
    momentum_that_keeps_all: check(&with("adamw = { lr = 3e-4 }", "sgd = { lr = 0.1, momentum = 1.0 }"));
    momentum_that_f32_takes_for_1: check(&with("adamw = { lr = 3e-4 }", "sgd = { lr = 0.1, momentum = 0.99999999 }"));
    rate_that_f32_takes_for_0: check(&with("adamw = { lr = 3e-4 }", "sgd = { lr = 1e-60 }"));
    decay_beyond_f32: check(&with("lr = 3e-4", "lr = 3e-4, weight_decay = 1e300"));
    groups_that_are_none: check(&with("lr = 3e-4", "lr = 3e-4, groups = { match = \"*.bias\", lr = 1e-4 }"));
    group_that_is_no_table: check(&with("lr = 3e-4", "lr = 3e-4, groups = [\"*.bias\"]"));
    group_without_a_match: check(&with("lr = 3e-4", "lr = 3e-4, groups = [{ lr = 1e-4 }]"));
    group_of_other_keys: check(&with("lr = 3e-4",
        "lr = 3e-4, groups = [{ name = \"*.bias\", lr = -1, beta1 = 0.8 }]"));
    group_that_says_nothing: check(&with("lr = 3e-4", "lr = 3e-4, groups = [{ match = \"*.bias\" }]"));
    group_of_no_pattern: check(&with("lr = 3e-4", "lr = 3e-4, groups = [{ match = \"blocks.[0.*\", lr = 1e-4 }]"));
    group_of_nothing: check(&with("lr = 3e-4", "lr = 3e-4, groups = [{ match = \"*.biases\", lr = 1e-4 }]"));
    group_of_what_is_in_others: check(&with("lr = 3e-4",
        "lr = 3e-4, groups = [{ match = \"blocks.*\", lr = 1e-4 }, { match = \"blocks.0.mlp\", lr = 1e-5 }]"));
    optimizer_off: check(&with("adamw = { lr = 3e-4 }", "adamw = \"off\""));
    muon_alone: check(&with("adamw = { lr = 3e-4 }", "muon = { lr = 1e-2 }"));
    muon_without_a_table: check(&with("adamw = { lr = 3e-4 }", "muon = { lr = 1e-2, adamw = 3e-4 }"));
    muon_of_another_tool: check(&with("adamw = { lr = 3e-4 }",
        "muon = { lr = 1e-2, adamw = { lr = 3e-4 }, beta1 = 0.9, mu = 0.9, adjust_lr_fn = \"match_rms_adamw\" }"));
    muon_of_no_steps: check(&with("adamw = { lr = 3e-4 }", "muon = { lr = 1e-2, adamw = { lr = 3e-4 }, ns_steps = 0, adjust = \"rms\" }"));
    groups_beside_muon: check(&with("adamw = { lr = 3e-4 }",
        "muon = { lr = 1e-2, adamw = { lr = 3e-4, groups = [{ match = \"embedding\", lr = 1e-3 }] } }"));
    muon_group_of_nothing: check_files(&[("a.toml", &with("adamw = { lr = 3e-4 }",
        "muon = { lr = 1e-2, adamw = { lr = 3e-4 }, groups = [{ match = \"heads\", lr = 1e-3 }] }")), ("a.txt", &TEXT.repeat(100))], &["a.toml"]);
    adafactor_of_another_tool: check(&with("adamw = { lr = 3e-4 }", "adafactor = { lr = 1e-2, decay_rate = -0.8, beta1 = 0.9, epsilon = [1e-30, 1e-3] }"));
    adafactor_whose_epsilon_is_0_when_squared: check(&with("adamw = { lr = 3e-4 }", "adafactor = { lr = 1e-2, epsilon = 1e-30 }"));
    adafactor_that_forgets_more: check(&with("adamw = { lr = 3e-4 }", "adafactor = { lr = 1e-2, beta2_decay = 0.8 }"));
    optimizer_off_in_a_strategy: check(&and("set.\"train.optimizer.adamw\" = \"off\""));
    frozen_layer_that_is_none: check(&with("recompute = \"block\"", "freeze = [\"embedding\", \"block.1\"]"));
    everything_frozen: check(&with("recompute = \"block\"", "freeze = [\"embedding\", \"blocks.*\", \"head\"]"));
    half_of_what_is_tied_frozen: check(&with("recompute = \"block\"", "freeze = [\"head\"]"));
    frozen_layer_without_a_list: check(&with("recompute = \"block\"", "freeze = \"embedding\""));
    frozen_layer_without_a_name: check(&with("recompute = \"block\"", "freeze = [\"\"]"));
    lora_without_what: check(&with("recompute = \"block\"", "lora = true"));
    lora_of_nothing: check(&with("recompute = \"block\"", "lora = { rank = 4 }"));
    lora_of_wrong_values: check(&with("recompute = \"block\"",
        "lora = { rank = 0, alpha = inf, targets = \"mlp\", base = \"4bit\", double_quantization = 1, dropout = 0.1 }"));
    lora_without_targets: check(&with("recompute = \"block\"", "lora = { rank = 4, alpha = 8, targets = [] }"));
    lora_of_a_layer_that_is_none: check(&with("recompute = \"block\"",
        "lora = { rank = 4, alpha = 8, targets = [\"mlp\", \"attention.kv\"] }"));
    lora_of_more_than_there_is: check(&with("recompute = \"block\"",
        "lora = { rank = 65, alpha = 8, targets = [\"mlp\"] }"));
    lora_quantized_twice_without_a_first_time: check(&with("recompute = \"block\"",
        "lora = { rank = 4, alpha = 8, targets = [\"mlp\"], base = \"int8\", double_quantization = true }"));
    lora_of_what_is_frozen_already: check(&with("recompute = \"block\"",
        "freeze = [\"embedding\"]\nlora = { rank = 4, alpha = 8, targets = [\"mlp\"] }"));
    qlora_of_another_tool: check(&with("recompute = \"block\"", "qlora = true"));
    placed_layer_that_is_none: check(&with("recompute = \"block\"", "place = { \"blocks.2\" = \"host\" }"));
    placed_nowhere: check(&with("recompute = \"block\"", "place = { blocks.0.mlp = \"gpu\" }"));
    placed_without_layers: check(&with("recompute = \"block\"", "place = \"host\""));
    placed_in_two_homes: check(&with("recompute = \"block\"",
        "place = { \"blocks.*\" = \"host\", \"*.1\" = \"device\" }"));
    half_of_what_is_tied_placed: check(&with("recompute = \"block\"", "place = { embedding = \"host\" }"));
    loss_scale_of_nothing: check(&with("recompute = \"block\"",
        "precision = \"fp16\"\nloss_scale = { dynamic = \"off\" }"));
    no_loss_chunk: check(&with("recompute = \"block\"", "loss_chunks = 0"));
    other_params: check(&with("recompute = \"block\"", "params = \"int8\""));
    no_copy_of_fp32: check(&with("recompute = \"block\"", "master_weights = false"));
    gradients_of_another_type: check(&with("recompute = \"block\"", "params = \"bf16\"\ngradient_dtype = \"fp16\""));
    residual_of_another_type: check(&with("recompute = \"block\"", "residual = \"bf16\""));
    precision_of_another_type: check(&with("recompute = \"block\"", "params = \"bf16\"\nprecision = \"fp16\""));
    precision_beyond_params: check(&with("recompute = \"block\"", "params = \"bf16\"\nprecision = \"fp32\""));
    rounding_of_a_copy: check(&with("recompute = \"block\"", "params = \"bf16\"\nrounding = \"stochastic\""));
    rounding_of_nothing: check(&with("recompute = \"block\"", "rounding = \"stochastic\""));
    rounding_of_codes: check(&with("recompute = \"block\"", "optimizer_state = \"8bit\"\nrounding = \"stochastic\""));
    quantize_nothing: check(&with("recompute = \"block\"", "optimizer_state = \"bf16\"\nquantize = { from = 256 }"));
    quantize_no_table: check(&with("recompute = \"block\"", "optimizer_state = \"8bit\"\nquantize = 256"));
    quantize_other_key: check(&with("recompute = \"block\"", "optimizer_state = \"8bit\"\nquantize = { min_8bit_size = 256 }"));
    quantize_by_another_name: check(&with("recompute = \"block\"", "optimizer_state = \"int8\"\nmin_8bit_size = 256"));
    recompute_another_part: check(&with("recompute = \"block\"", "recompute = [\"attention\", \"ffn\"]"));
    recompute_in_two_ways: check(&with("recompute = \"block\"", "recompute = { every = 2, segments = 2 }"));
    recompute_in_no_way: check(&with("recompute = \"block\"", "recompute = {}"));
    recompute_none_of_none: check(&with("recompute = \"block\"", "recompute = { every = 0 }"));
    recompute_more_segments_than_blocks: check(&with("recompute = \"block\"", "recompute = { segments = 9 }"));
    recompute_but_for_another_kind: check(&with("recompute = \"block\"", "recompute = { save = [\"gelu\"] }"));
    budget_without_a_unit: check(&with("\"block\"", "{ budget = \"4\" }"));
    budget_of_nothing: check(&with("\"block\"", "{ budget = \"0 B\" }"));
    budget_of_more_than_all: check(&with("\"block\"", "{ budget = 1.5 }"));
    recompute_of_a_part_without_a_list: check(&with("\"block\"", "\"attention\""));
    budget_without_a_table: check(&with("\"block\"", "\"4 GiB\""));
    recompute_by_another_name: check(&with("recompute = \"block\"", "selective_checkpointing = true"));
    other_optimizer_state: check(&with("recompute = \"block\"", "optimizer_state = \"fp16\""));
    kept_value_that_is_none: check(&with("recompute = \"block\"", "keep = [\"loss\", \"logit\"]"));
    kept_value_of_a_block_that_is_none: check(&with("recompute = \"block\"", "keep = [\"blocks.9.mlp.hidden\"]"));
    kept_parameter: check(&with("recompute = \"block\"", "keep = [\"qkv.weight\"]"));
    kept_value_without_a_list: check(&with("recompute = \"block\"", "keep = \"logits\""));
    leak_of_something_else: check(&with("recompute = \"block\"", "leak = \"activations\""));
    leak_that_is_a_flag: check(&with("recompute = \"block\"", "leak = true"));
    leak_of_another_tool: check(&with("recompute = \"block\"", "retain_graph = true"));
    attention_of_another_tool: check(&with("recompute = \"block\"", "attention = \"flash\""));
    update_before_all_gradients_are_there: check(&with("recompute = \"block\"",
        "update = \"in_backward\"\naccumulate = 2\ngradients = \"zero\"\nprecision = \"fp16\""));
    update_of_another_tool: check(&with("recompute = \"block\"", "optimizer_in_backward = true"));
    budget_of_inference: check(&(with("recompute = \"block\"", "recompute = { budget = 0.5 }")
        + "\n[measure]\nwhat = \"inference\"\n"));
    graph_that_leaks: check(&with("recompute = \"block\"", "graph = true\nleak = \"logits\""));
    graph_without_arena: check(&with("recompute = \"block\"", "graph = true\nallocator = \"direct\""));
    no_grid_point_runs: check(&with("recompute = \"block\"", "accumulate = 9").replace(
        "[strategies.plain]", "[sweep.grid]\n\"train.batch_size\" = [4, 8]\n\n[strategies.plain]"));
    vocabulary_too_small: check(&with("heads = 2", "heads = 2\nvocabulary = 100"));
    nothing_to_evaluate: check(&with("paths =", "split = 1.0\npaths =").replace("[train]", "[evaluation]\n\n[train]"));
    too_many_parameters: check(&with("d_model = 64", "d_model = 16777216"));
    step_beyond_counting: check(&with("context = 32", "context = 16777216").replace("batch_size = 8", "batch_size = 16777216"));
    unknown_baseline: check(&format!("baseline = \"plane\"\n{GOOD}"));
    name_of_a_folder: check(&format!("name = \"a/b\"\n{GOOD}"));
    unknown_axis: check(&and("[sweep.grid]\n\"train.batch_sise\" = [4, 8]"));
    repeats_by_a_word: check(&and("[measure]\nrepeats = \"often\""));
    repeats_until_nothing: check(&and("[measure]\nrepeats = { most = 20 }"));
    repeats_until_twice_as_much: check(&and("[measure]\nrepeats = { until = 2, most = 4, every = 1 }"));
    seeds_of_no_known_kind: check(&and("[measure]\nseeds = \"different\""));
    axis_of_the_experiment: check(&and("[sweep.grid]\n\"measure.repeats\" = [1, 2]"));
    fixed_axis: check(&and("set.\"train.batch_size\" = 16\n[sweep.grid]\n\"train.batch_size\" = [4, 8]"));
    fixed_axis_of_a_strategy: check(&and("[sweep.grid]\nrecompute = [\"none\", \"block\"]"));
    fixed_axis_inside: check(&and("sweep.recompute = [\"none\", \"block\"]"));
    axis_twice: check(&and("[sweep.grid]\n\"train.seed\" = [1, 2]\n[[sweep.zip]]\n\"train.seed\" = [3, 4]"));
    empty_axis: check(&and("[sweep.grid]\n\"train.batch_size\" = []"));
    axis_without_list: check(&and("[sweep.grid]\n\"train.batch_size\" = 4"));
    axis_with_a_value_twice: check(&and("[sweep.grid]\n\"train.batch_size\" = [4, 8, 4]"));
    axis_with_a_wrong_value: check(&and("[sweep.grid]\n\"train.batch_size\" = [4, 0]"));
    too_many_points: check(&and(&format!(
        "[sweep.grid]\n\"train.seed\" = {0:?}\n\"train.batch_size\" = {1:?}\n\"measure.steps\" = {0:?}",
        (1..=101).collect::<Vec<_>>(),
        (1..=100).collect::<Vec<_>>(),
    )));
    zip_of_different_lengths: check(&and("[[sweep.zip]]\n\"train.seed\" = [1, 2]\n\"train.batch_size\" = [4]"));
    exclude_nothing: check(&and("[sweep.grid]\n\"train.seed\" = [1, 2]\n[[sweep.exclude]]\n\"train.seed\" = 3"));
    exclude_everything: check(&and("[[sweep.exclude]]\nstrategy = \"*\""));
    include_nothing: check(&and("[[sweep.include]]\nstrategy = \"fat\"\n\"train.seed\" = 3"));
    label_taken: check(&and("[strategies.\"b/accumulate=2\"]\n[strategies.b]\nsweep.accumulate = [2, 4]"));
    cyclic_strategies: check(&and("extends = \"fat\"\n[strategies.fat]\nextends = \"lean\""));
    unknown_base_strategy: check(&and("extends = \"plane\""));
    unknown_set: check(&and("set.\"train.clip_nrom\" = 1.0"));
    cyclic_files: check_files(
        &[("a.toml", "extends = \"b.toml\"\n"), ("b.toml", "name = \"b\"\nextends = \"a.toml\"\n")], &["a.toml"]);
    missing_base: check(&format!("extends = \"b.toml\"\n{GOOD}"));
    mistake_in_a_base: check_files(
        &[("a.toml", &format!("extends = \"b.toml\"\n{GOOD}")), ("b.toml", "[train]\nseed = -1\n")], &["a.toml"]);
    unused_mistake_in_a_base: check_files(
        &[("a.toml", &format!("extends = \"b.toml\"\n{GOOD}")), ("b.toml", "[train]\nbatch_size = 8.5\n")], &["a.toml"]);
    rule_across_files: check_files(
        &[("a.toml", &format!("extends = \"b.toml\"\n{}", with("batch_size = 8\n", ""))
            .replace("recompute = \"block\"", "accumulate = 9")),
          ("b.toml", "[train]\nbatch_size = 8\n")], &["a.toml"]);
    misspelt_override: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "train.batch_sise=4"]);
    misspelt_override_of_a_strategy: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "acumulate=4"]);
    later_override: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "parallel=4"]);
    wrong_override: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "recompute=blocks"]);
    override_of_two_variants: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "recompute={budget=0.5,every=2}"]);
    two_variants_set: check(&and("set.recompute = { budget = 0.5, every = 2 }"));
    allocator_of_no_kind: check(&and("allocator = {}"));
    allocator_as_a_table: check(&and("allocator = { arena = {} }"));
    override_without_value: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "recompute"]);
    override_of_an_axis: check_files(
        &[("a.toml", &and("[sweep.grid]\n\"train.batch_size\" = [4, 8]"))], &["a.toml", "--set", "train.batch_size=4"]);
    override_breaks_a_rule: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "accumulate=9"]);
    missing_file: check_files(&[], &["a.toml"]);
    a_folder: check_files(&[], &["."]);
    no_file_matches: check_files(&[], &["experiments/*.toml"]);
    init_of_no_known_kind: check(&with("recompute = \"block\"", "init = \"meta\""));
    hf_without_a_configuration: check(&of_configuration("context = 8"));
    hf_with_a_key_of_another_model: check(&of_configuration("config = \"c.json\"\nlayers = 2"));
    hf_as_a_path: check(&with(MODEL, "[model]\nhf = \"c.json\"\n"));
    hf_that_is_missing: check(&of_configuration("config = \"c.json\""));
    hf_that_is_no_configuration: configured(TEXT, "");
    hf_of_an_unknown_model: configured("{\n  \"model_type\": \"t5\"\n}", "");
    hf_with_an_unknown_field: configured(&LLAMA.replace("}", "  , \"num_experts\": 8,\n  \"moe\": true\n}"), "");
    hf_that_breaks_a_rule: configured(&LLAMA.replace("\"num_attention_heads\": 4", "\"num_attention_heads\": 3"), "");
    hf_with_dropout_of_all: configured(&LLAMA.replace("}", "  , \"attention_dropout\": 1.0\n}"), "");
    dropout_of_no_chance: check(&with("context = 32", "context = 32\ndropout = 1.5"));
    dropout_in_no_known_place: check(&with("context = 32", "context = 32\ndropout = { residual = -0.1, mlp = 0.1 }"));
    dropout_as_others_call_it: check(&with("context = 32", "context = 32\nresid_pdrop = 0.1"));
    hf_with_weights_of_another_model: check_files(
        &[
            ("a.toml", &of_configuration("config = \"c.json\"\nweights = \"w.safetensors\"")),
            ("c.json", LLAMA),
            ("a.txt", &TEXT.repeat(100)),
            ("w.safetensors", &of_one_tensor("model.embed_tokens.weight", 8)),
        ],
        &["a.toml"]);
    tokens_that_are_missing: check(&of_tokens(""));
    tokens_in_no_known_format: check(&of_tokens("format = \"u8\""));
    tokens_behind_a_long_header: check(&of_tokens("header = 2000000"));
    tokens_beyond_the_vocabulary: check_files(
        &[("a.toml", &of_tokens("split = 0.5")), ("a.bin", &"\u{2}\u{1}".repeat(500))], &["a.toml"]);
    tokens_of_an_odd_length: check_files(
        &[("a.toml", &of_tokens("format = \"u32\"")), ("a.bin", "seven b")], &["a.toml"]);
    tokenizer_as_text: check(&of_text("tokens = \"tokenizer.json\""));
    tokenizer_that_is_missing: check_files(
        &[("a.toml", &of_text("tokens = { file = \"tokenizer.json\" }")), ("a.txt", TEXT)], &["a.toml"]);
    tokenizer_that_is_no_file: check(&of_text("tokens = { file = 5 }"));
    tokenizer_without_a_file: check(&of_text("tokens = { end = \"<end>\" }"));
    tokenizer_with_another_key: check(&of_text("tokens = { file = \"t.json\", eos = \"<end>\" }"));
    tokenizer_that_is_none: tokenized("{}", "file = \"t.json\"");
    tokenizer_without_the_token_of_the_end: tokenized(TOKENIZER, "file = \"t.json\", end = \"<eos>\"");
    tokenizer_beyond_the_vocabulary: tokenized(TOKENIZER, "file = \"t.json\", end = \"<end>\"");
    jsonl_of_something_else: check_files(
        &[("a.toml", &of_text("jsonl = \"text\"")), ("a.txt", TEXT)], &["a.toml"]);
    jsonl_that_is_true: check(&of_text("jsonl = true"));
    documents_in_no_known_way: check(&of_text("documents = \"shuffled\""));
    documents_of_a_model_that_sees_all: check(
        &of_text("documents = \"padded\"").replace("context = 32", "context = 32\ncausal = false"));
    documents_of_one_token: check_files(
        &[("a.toml", &of_text("documents = \"padded\"\nsplit = 1.0")), ("a.txt", "a"), ("b.txt", "b")], &["a.toml"]);
    documents_and_nothing_to_evaluate_on: check_files(
        &[("a.toml", &format!("{}[evaluation]\n", of_text("documents = \"padded\"\nsplit = 0.5"))), ("a.txt", TEXT), ("b.txt", "b")],
        &["a.toml"]);
    tokens_and_nothing_to_evaluate_on: check(&format!("{}[evaluation]\n", of_tokens("split = 1.0")));
    more_successors_than_tokens: check(&of_chain("tokens = 3\nsuccessors = 4"));
    more_synthetic_tokens_than_the_vocabulary: check(&of_chain("tokens = 300"));
    synthetic_data_of_files: check(&of_chain("paths = [\"*.txt\"]"));
    weights_that_are_no_path: check(&with("heads = 2", "heads = 2\nweights = [\"a\"]"));
    weights_by_an_unset_variable: check(&with("heads = 2",
        "heads = 2\nweights = \"${RUNNER_TEST_UNSET}/a\""));
    weights_that_are_missing: check_files(&[("a.toml", &weighted()), ("a.txt", &TEXT.repeat(100))], &["a.toml"]);
    weights_that_are_no_tensors: check_files(
        &[("a.toml", &weighted()), ("a.txt", &TEXT.repeat(100)), ("w.safetensors", TEXT)], &["a.toml"]);
    weights_of_another_model: check_files(
        &[("a.toml", &weighted()), ("a.txt", &TEXT.repeat(100)), ("w.safetensors", &of_one_tensor("other", 4))],
        &["a.toml"]);
    weights_of_another_size: check_files(
        &[
            ("a.toml", &weighted()),
            ("a.txt", &TEXT.repeat(100)),
            ("w.safetensors", &of_one_tensor("embedding.table", 16)),
        ],
        &["a.toml"]);
    offload_without_what: check(&with("recompute = \"block\"", "offload = true"));
    offload_of_something_else: check(&with("recompute = \"block\"", "offload = { optimiser = true, gradients = true }"));
    pageable_memory_for_nothing: check(&with("recompute = \"block\"", "offload = { pinned = false, ahead = 2 }"));
    offload_of_wrong_values: check(&with("recompute = \"block\"",
        "offload = { parameters = 1, activations = 64, pinned = \"no\", ahead = -1 }"));
    loader_without_what: check(&with("recompute = \"block\"", "loader = 2"));
    loader_of_something_else: check(&with("recompute = \"block\"", "loader = { num_workers = 2, pin_memory = true }"));
    loader_of_wrong_values: check(&with("recompute = \"block\"",
        "loader = { workers = -1, prefetch = \"two\", source = \"disk\", dtype = \"f32\", delay = -1 }"));
    batches_ahead_of_nobody: check(&with("recompute = \"block\"", "loader = { prefetch = 2 }"));
    ids_that_do_not_fit: check(&of_tokens("").replace("context = 32", "context = 32\nvocabulary = 50257").replace(
        "recompute = \"block\"", "loader.dtype = \"u8\""));
    ids_that_do_not_fit_beside_masked_ones: check(&of_text("documents = \"padded\"").replace(
        "recompute = \"block\"", "loader.dtype = \"u8\""));
    documents_held_as_a_row: check(&of_text("documents = \"packed\"").replace(
        "recompute = \"block\"", "loader.source = \"device\""));
    chain_held_as_a_row: check(&of_chain("").replace("recompute = \"block\"", "loader.source = \"ram\""));
    epochs_without_end: check(&of_chain("").replace("batch_size = 8", "batch_size = 8\nshuffle = true"));
    last_batch_of_no_epoch: check(&with("batch_size = 8", "batch_size = 8\nlast_batch = \"keep\""));
    last_batch_in_no_known_way: check(&with("batch_size = 8", "batch_size = 8\nshuffle = true\nlast_batch = \"pad\""));
    epoch_of_less_than_a_batch: check_files(
        &[("a.toml", &with("batch_size = 8", "batch_size = 8\nshuffle = true")), ("a.txt", &"x".repeat(200))], &["a.toml"]);
    all_mistakes_of_a_file: check(&(with("heads = 2", "heads = 0\ncolour = 3").replace(
        "recompute =", "recompte =") + "\n[sweep.grid]\n\"train.seed\" = [1, -1, 2, 2.5]\n[measure]\nsteps = 0\n"));
    all_mistakes_of_syntax: check(&with("heads = 2", "heads = = 2").replace("batch_size = 8", "batch_size 8"));
    all_rules_that_no_run_keeps: check(&with("heads = 2", "heads = 3").replace(
        "recompute = \"block\"", "accumulate = 9\ngraph = true\nallocator = \"direct\""));
    all_mistakes_of_a_file_and_its_base: check_files(
        &[("a.toml", &format!("extends = \"b.toml\"\n{}", with("heads = 2", "heads = 0"))), ("b.toml", "[train]\nseed = -1\n")],
        &["a.toml", "--set", "steps=5", "--set", "train.seed=x"]);
    all_missing_bases_and_cases: check(&and(
        "extends = \"plane\"\n[strategies.b]\nextends = \"leen\""));
    hundreds_of_mistakes: check(&(0..200).map(|line| format!("a{line} = 1\n")).collect::<String>());
    all_that_is_missing_of_data: check(&with("[\"*.txt\"]", "[\"none.txt\", \"*.toml\", \"no*\"]"));
    rate_in_train: check(&with("batch_size = 8", "batch_size = 8\nlr = 1e-3\nsteps = 10\nepochs = 3\nmicro_batch = 2\nmax_grad_norm = 1.0"));
    keys_of_tables_at_the_top: check(&format!(
        "repeats = 3\nsteps = 10\nlr = 1e-3\nbatch_size = 4\namp = true\n{GOOD}\n[grid]\n\"train.seed\" = [1, 2]\n[optimizer]\n"));
    keys_of_tables_in_a_strategy: check(&and("train.batch_size = 4\nseed = 1\nlr = 1\ncontext = 8\nrepeats = 2"));
    names_of_other_tools_in_a_strategy: check(&and(
        "gradient_checkpointing = true\namp = true\nmicro_batch = 2\ngrad_accum = 2\nset_to_none = true\nfp16 = true"));
    names_of_other_tools_in_a_model: check(&with("layers = 2", "n_layer = 2\nnum_hidden_layers = 2").replace(
        "d_model = 64", "n_embd = 64\nhidden_size = 64").replace("context = 32", "block_size = 32\nVocab-Size = 256"));
    type_of_a_model: check(&with("[model.transformer]", "[model]\ntype = \"transformer\""));
    name_of_an_optimizer: check(&with("optimizer.adamw = { lr = 3e-4 }", "[train.optimizer]\nname = \"adam-w\"\nlr = 3e-4"));
    schedule_as_a_word: check(&with("batch_size = 8", "batch_size = 8\nschedule = \"cosine\""));
    schedule_with_the_key_of_measure: check(&with("batch_size = 8", "batch_size = 8\nschedule.cosine = { warmup_steps = 100 }"));
    last_batch_of_other_tools: check(&with("batch_size = 8", "batch_size = 8\ndrop_last = true"));
    schedule_that_is_none: check(&with("batch_size = 8", "batch_size = 8\nschedule.exponential = { gamma = 0.9 }"));
    schedule_of_other_tools: check(&with("batch_size = 8",
        "batch_size = 8\nlr_scheduler = \"cosine\"\nschedule.cosine = { warmup_iters = 100, min_lr = 1e-5, floor = 1.5 }"));
    schedule_whose_warmup_is_the_run: check(&with("batch_size = 8", "batch_size = 8\nschedule.linear.warmup = 2000"));
    schedule_shorter_than_its_parts: check(&with("batch_size = 8",
        "batch_size = 8\nschedule.warmup_stable_decay = { warmup = 10, decay = 90, total = 100 }"));
    optimizer_as_a_word: check(&with("optimizer.adamw = { lr = 3e-4 }", "optimizer = \"adamw\""));
    words_of_other_tools: check(&(with("recompute = \"block\"", "recompute = true\nprecision = \"bfloat16\"")
        + "[strategies.c]\nrecompute = false\nprecision = \"half\"\n[strategies.d]\nprecision = 16\nrecompute = \"full\""));
    clip_norm_of_0: check(&with("batch_size = 8", "batch_size = 8\nclip_norm = 0"));
    override_without_its_table: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "seed=1", "--set", "lr=1"]);
    data_off: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "data.text=off"]);
    empty_zip: check(&and("[[sweep.zip]]\n[[sweep.zip]]\n\"train.seed\" = [1, 2]"));
    two_files_wrong: check_files(
        &[("a.toml", &with("heads = 2", "heads = 3")), ("b.toml", "colour = 1")], &["[ab].toml"]);
    one_name_twice: check_files(
        &[("a.toml", GOOD), ("b.toml", &format!("name = \"a\"\n{GOOD}"))], &["a.toml", "b.toml"]);
}
