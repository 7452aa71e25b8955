//! Errors of `runner check` for invalid experiments: the full text of each message.

use std::path::Path;
use std::process::Command;

use crate::schema;
use spec::SchemaKind;

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

/// Files, and the arguments of `check`.
struct Input {
    files: Vec<(String, String)>,
    arguments: Vec<String>,
}

fn check_files(files: &[(&str, &str)], arguments: &[&str]) -> Input {
    Input {
        files: files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
    }
}

impl Input {
    /// Runs `check` in a folder with these files and returns its errors. Asserts exit code 2, no output and no new files.
    fn errors(&self) -> String {
        let folder = tempfile::tempdir().expect("a folder for the test");
        for (name, text) in &self.files {
            std::fs::write(folder.path().join(name), text).expect("a file for the test");
        }
        let before = names(folder.path());
        let cache = tempfile::tempdir().expect("a folder for encoded text");
        let output = Command::new(env!("CARGO_BIN_EXE_runner"))
            .current_dir(folder.path())
            .env_remove("RUNNER_TEST_UNSET")
            .env("RUNNER_CACHE_DIR", cache.path())
            .arg("check")
            .args(&self.arguments)
            .output()
            .expect("the program starts");
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        assert_eq!(names(folder.path()), before, "nothing is written");
        stderr.replace(folder.path().to_str().expect("text"), "FOLDER")
    }

    /// Whether the schema of its kind refuses a file.
    fn is_refused_by_schema(&self) -> bool {
        let is_argument = |name: &str| {
            self.arguments
                .iter()
                .any(|argument| glob::Pattern::new(argument).is_ok_and(|pattern| pattern.matches(name)))
        };
        self.files.iter().filter(|(name, _)| name.ends_with(".toml")).any(|(name, text)| {
            let kind = if is_argument(name) { SchemaKind::Experiment } else { SchemaKind::Base };
            schema::errors(kind, text).is_some()
        })
    }
}

fn names(folder: &Path) -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir(folder).expect("the folder of the test");
    let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    names
}

fn check(text: &str) -> Input {
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

/// The good experiment with token files as its data.
fn token_data(keys: &str) -> String {
    with("[data.text]\npaths = [\"*.txt\"]", &format!("[data.tokens]\npaths = [\"a.bin\"]\n{keys}"))
}

/// The good experiment with more keys in `data.text`.
fn text_data(keys: &str) -> String {
    with("paths = [\"*.txt\"]", &format!("paths = [\"*.txt\"]\n{keys}"))
}

/// Documents padded to the longest of each micro-batch, with this line in the strategy.
fn padded_to_batch(strategy: &str) -> String {
    text_data("documents = \"padded\"\npad_to = \"batch\"").replace("recompute = \"block\"", strategy)
}

/// A tokenizer with a small vocabulary.
const TOKENIZER: &str = r#"{
  "added_tokens": [{
    "id": 300, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true
  }],
  "normalizer": null, "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null,
  "model": { "type": "WordLevel", "vocab": { "is": 0, "this": 1, "What": 2, "?": 3, "<end>": 300 }, "unk_token": "?" }
}"#;

/// Errors of the good experiment with a tokenizer file beside it.
fn check_tokenizer(tokenizer: &str, table: &str) -> Input {
    let text = text_data(&format!("tokens = {{ {table} }}"));
    let files = [("a.toml", text.as_str()), ("t.json", tokenizer), ("a.txt", &TEXT.repeat(100))];
    check_files(&files, &["a.toml"])
}

/// The good experiment with an evaluation.
fn evaluation(keys: &str) -> String {
    with("[train]", &format!("[evaluation]\n{keys}\n\n[train]"))
}

/// The good experiment with synthetic data (a Markov chain).
fn synthetic_data(keys: &str) -> String {
    with("[data.text]\npaths = [\"*.txt\"]", &format!("[data.synthetic]\n{keys}"))
}

/// An experiment with layers in a list and random tensors.
fn in_a_list(keys: &str) -> String {
    let model = format!("[model.sequential]\ninput = [4]\n{keys}\n");
    let text = with(MODEL, &model).replace("[data.text]\npaths = [\"*.txt\"]", "[data.random]");
    text.replace("[strategies.lean]\nrecompute = \"block\"", "[strategies.lean]")
}

/// The good experiment with a model from a Hugging Face configuration.
fn hf_model(keys: &str) -> String {
    with(MODEL, &format!("[model.hf]\n{keys}\n"))
}

/// Errors of that experiment with the configuration file `c.json` beside it.
fn check_hf_model(configuration: &str, keys: &str) -> Input {
    let text = hf_model(&format!("config = \"c.json\"\n{keys}"));
    check_files(&[("a.toml", &text), ("c.json", configuration), ("a.txt", &TEXT.repeat(100))], &["a.toml"])
}

const TEXT: &str = "What is learnt from is this. ";

/// The good experiment with initial weights from a file beside it.
fn with_weights() -> String {
    with("heads = 2", "heads = 2\nweights = \"w.safetensors\"")
}

/// A safetensors file with one f32 tensor of zeros, of shape `[rows, 64]`.
fn one_tensor_file(name: &str, rows: usize) -> String {
    let bytes = 4 * 64 * rows;
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[{rows},64],"data_offsets":[0,{bytes}]}}}}"#);
    let length = String::from_utf8((header.len() as u64).to_le_bytes().to_vec()).expect("a short header");
    format!("{length}{header}{}", "\0".repeat(bytes))
}

/// The good experiment with one part replaced.
fn with(good: &str, bad: &str) -> String {
    assert!(GOOD.contains(good), "{good}");
    GOOD.replace(good, bad)
}

/// The good experiment with experts and an activation.
fn with_experts(experts: &str, activation: &str) -> String {
    with("heads = 2", &format!("heads = 2\nbias = false\nactivation = \"{activation}\"\n{experts}"))
}

/// The good experiment with more text appended.
fn append(more: &str) -> String {
    format!("{GOOD}\n{more}\n")
}

macro_rules! bad {
    ($($name:ident: $input:expr;)*) => {
        $(#[test]
        fn $name() {
            let (name, input): (_, Input) = (stringify!($name), $input);
            insta::assert_snapshot!(name, input.errors());
            let is_expressible = schema::BEYOND.iter().all(|(_, names)| !names.contains(&name));
            assert_eq!(input.is_refused_by_schema(), is_expressible, "{name}: see `BEYOND` in schema.rs");
        })*
    };
}

/// The lines that an error prints below its help are a complete experiment.
#[test]
fn printed_lines_are_an_experiment() {
    for (name, text) in
        [("a.toml", ""), ("config.json", LLAMA), ("a.yaml", "a: 1\n"), ("a.py", "import torch\n")]
    {
        let error = check_files(&[(name, text)], &[name]).errors();
        let (_, lines) = error.split_once(" = help: ").expect("help");
        let lines: Vec<&str> = lines.lines().skip(1).map(str::trim).collect();
        let folder = tempfile::tempdir().expect("a folder for the test");
        std::fs::write(folder.path().join(name), text).expect("a file");
        std::fs::write(folder.path().join("b.toml"), lines.join("\n")).expect("a file");
        let mut check = Command::new(env!("CARGO_BIN_EXE_runner"));
        let output =
            check.current_dir(folder.path()).args(["check", "b.toml"]).output().expect("the program starts");
        assert!(output.status.success(), "{lines:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

bad! {
    syntax: check(&with("heads = 2", "heads = = 2"));
    syntax_at_end: check(&append("[strategies.last"));
    duplicate_key: check(&with("heads = 2", "heads = 2\nheads = 4"));
    duplicate_strategy: check(&append("[strategies.lean]"));
    misspelt_key: check(&with("recompute =", "recompte ="));
    misspelt_key_of_an_inline_table: check(&with("lr = 3e-4", "lr = 3e-4, bta1 = 0.9"));
    unknown_key: check(&with("heads = 2", "heads = 2\ncolour = 3"));
    unknown_table: check(&append("[trian]\nbatch_size = 8"));
    strategy_key_at_the_top: check(&format!("recompute = \"block\"\n{GOOD}"));
    no_ranks: check(&with("recompute = \"block\"", "parallel = { data = 0, shard = \"zero1\", ranks = 2 }"));
    more_ranks_than_samples: check(&with("recompute = \"block\"", "parallel = { data = 9 }"));
    wrong_word_where_a_table_can_be: check(&with("recompute = \"block\"", "allocator = \"cache\""));
    misspelt_key_of_a_cache: check(&with("recompute = \"block\"",
        "allocator = { caching = { max_split_mb = 128 } }"));
    cache_max_split_size_too_small: check(&with("recompute = \"block\"",
        "allocator = { caching = { max_split_size_mb = 20 } }"));
    cache_collection_threshold_of_1: check(&with("recompute = \"block\"",
        "allocator = { caching = { garbage_collection_threshold = 1 } }"));
    cache_expandable_segments_with_max_split: check(&with("recompute = \"block\"",
        "allocator = { caching = { expandable_segments = true, max_split_size_mb = 128 } }"));
    cache_key_outside_its_table: check(&with("recompute = \"block\"",
        "allocator = \"caching\"\nmax_split_size_mb = 128"));
    empty_cache_without_caching_allocator: check(&with("recompute = \"block\"",
        "allocator = \"direct\"\nempty_cache = \"step\""));
    graph_with_caching_allocator: check(&with("recompute = \"block\"", "allocator = \"caching\"\ngraph = true"));
    keys_of_another_model: check(&with("[model.transformer]", "[model.sequential]"));
    empty_list_of_layers: check(&in_a_list("layers = []"));
    unknown_layer: check(&in_a_list("layers = [\"conv\"]"));
    layer_without_its_keys: check(&in_a_list("layers = [\"linear\"]"));
    activation_with_keys: check(&in_a_list("layers = [{ linear = 3 }, { leaky_relu = { slope = 0.2 } }]"));
    keys_of_an_activation_without: check(&in_a_list("layers = [{ linear = 3 }, { tanh = { inplace = true } }]"));
    inplace_first_in_a_residual_layer: check(&in_a_list(
        "layers = [{ linear = 3 }, { residual = [{ block = [{ dropout = 0.1 }, { silu = { inplace = true } }] }, { linear = 3 }] }]",
    ));
    inplace_twice: check(&in_a_list(
        "layers = [{ linear = 3 }, { leaky_relu = { inplace = true } }, { relu = { inplace = true } }]",
    ));
    inplace_after_sigmoid: check(&in_a_list(
        "layers = [{ repeat = { times = 2, layers = [{ leaky_relu = { inplace = true } }, { linear = 3 }, \"sigmoid\"] } }]",
    ));
    two_layers_in_a_table: check(&in_a_list("layers = [{ linear = 3, dropout = 0.1 }]"));
    layer_of_no_features: check(&in_a_list("layers = [{ repeat = { times = 2, layers = [{ linear = 0 }] } }]"));
    residual_layers_of_another_shape:
        check(&in_a_list("layers = [{ group = { name = \"a\", layers = [\"relu\", { residual = [{ linear = 5 }] }] } }]"));
    projection_of_another_shape: check(&in_a_list(
        "layers = [{ linear = 2 }, { residual = { layers = [\"relu\"], projection = [{ linear = 3 }] } }]"));
    repeated_group: check(&in_a_list(
        "layers = [{ repeat = { times = 2, layers = [{ group = { name = \"a\", layers = [{ linear = 4 }] } }] } }]"));
    group_with_a_number_as_name:
        check(&in_a_list("layers = [{ group = { name = \"1\", layers = [\"relu\"] } }]"));
    too_many_layers: check(&in_a_list("layers = [{ repeat = { times = 16384, layers = [\"relu\", \"silu\"] } }]"));
    too_many_dimensions:
        check(&in_a_list("layers = [{ linear = 4 }]").replace("input = [4]", "input = [2, 3, 4, 5]"));
    segments_beyond_the_layers: check(&format!("{}\nrecompute = {{ segments = 3 }}\n", in_a_list("layers = [{ linear = 4 }, \"silu\"]")));
    layers_on_text: check(&with(MODEL, "[model.sequential]\ninput = [4]\nlayers = [{ linear = 4 }]\n"));
    nested_repeats: check(&in_a_list(&format!("layers = [{0}{0}{0}{{ linear = 4 }}{1}{1}{1}]",
        "{ repeat = { times = 16384, layers = [", "] } }")));
    sizes_of_layers_beyond_64_bits: check(&in_a_list("layers = [\"layer_norm\"]")
        .replace("input = [4]", "input = [16777216, 1048576, 16777216]"));
    one_name_within_a_block: check(&in_a_list(
        "layers = [{ block = [{ group = { name = \"a\", layers = [\"silu\"] } }, { group = { name = \"a\", layers = [{ linear = 4 }] } }] }]"));
    convolution_of_rows: check(&in_a_list("layers = [{ conv2d = { out = 4, kernel = 3 } }]"));
    window_beyond_the_image: check(&in_a_list("layers = [{ block = [{ max_pool = { kernel = 7 } }] }]")
        .replace("input = [4]", "input = [3, 8, 6]"));
    padding_beyond_half_a_pool: check(&in_a_list("layers = [{ avg_pool = { kernel = 3, padding = 2 } }]")
        .replace("input = [4]", "input = [3, 8, 6]"));
    groups_that_do_not_divide_channels: check(&in_a_list(
        "layers = [{ conv2d = { out = 6, kernel = 1, groups = 2 } }, { group_norm = { groups = 4 } }]")
        .replace("input = [4]", "input = [3, 8, 6]"));
    norm_groups_that_do_not_divide_channels: check(&in_a_list("layers = [{ group_norm = { groups = 4 } }]")
        .replace("input = [4]", "input = [3, 8, 6]"));
    batch_norm_of_rows: check(&in_a_list("layers = [\"batch_norm\", { linear = 2 }]")
        .replace("input = [4]", "input = [3, 8]"));
    batch_norm_of_one_sample: check(&format!("{}\naccumulate = 8\n", in_a_list("layers = [\"batch_norm\", { linear = 2 }]")));
    heads_that_do_not_divide_channels: check(&in_a_list("layers = [{ residual = [{ attention = { heads = 3 } }] }]")
        .replace("input = [4]", "input = [5, 8]"));
    heads_of_a_block_that_do_not_divide_channels: check(&in_a_list(
        "layers = [{ transformer_block = { heads = 3, hidden = 9 } }]").replace("input = [4]", "input = [5, 8]"));
    attention_on_an_image: check(&in_a_list("layers = [{ attention = { heads = 1 } }]")
        .replace("input = [4]", "input = [3, 8, 6]"));
    sequence_of_rows: check(&in_a_list("layers = [\"to_sequence\"]").replace("input = [4]", "input = [3, 8]"));
    mean_of_features: check(&in_a_list("layers = [{ linear = 2 }, \"mean_pool\"]"));
    embedding_that_is_not_first: check(&in_a_list(
        "layers = [\"relu\", { embedding = { count = 9, dim = 4 } }]"));
    embedding_in_residual_layers: check(&in_a_list(
        "layers = [{ residual = [{ embedding = { count = 9, dim = 4 } }] }]"));
    embedding_of_rows: check(&in_a_list("layers = [{ embedding = { count = 9, dim = 4 } }]")
        .replace("input = [4]", "input = [4, 4]"));
    unknown_norm_of_a_block: check(&in_a_list("layers = [{ transformer_block = { heads = 2, norm = \"sandwich\" } }]"));
    layer_off: check(&in_a_list("layers = [{ dropout = \"off\" }, { linear = 4 }]"));
    unknown_loss: check(&in_a_list("layers = [{ linear = 4 }]\nloss = \"mse\""));
    smoothing_of_a_loss_without_it: check(&in_a_list(
        "layers = [{ linear = 4 }]\nloss = { squared_error = { label_smoothing = 0.1 } }"));
    smoothing_out_of_range: check(&in_a_list(
        "layers = [{ linear = 4 }]\nloss = { cross_entropy = { label_smoothing = 1.5 } }"));
    smoothing_by_another_name: check(&in_a_list(
        "layers = [{ linear = 4 }]\nloss = { cross_entropy = { smoothing = 0.1 } }"));
    smoothing_beside_the_loss: check(&in_a_list("layers = [{ linear = 4 }]\nlabel_smoothing = 0.1"));
    smoothing_of_a_transformer: check(&with("heads = 2", "heads = 2\nlabel_smoothing = 0.1"));
    table_without_a_loss: check(&in_a_list("layers = [{ linear = 4 }]\nloss = {}"));
    layers_without_parameters: check(&in_a_list("layers = [\"relu\", { dropout = 0.1 }]"));
    wrong_type: check(&with("batch_size = 8", "batch_size = \"eight\""));
    wrong_type_of_a_table: check(&append("[evaluation]\nevery = [1, 2]"));
    table_expected: check(&format!("evaluation = 3\n{GOOD}"));
    out_of_range: check(&with("layers = 2", "layers = 0"));
    negative: check(&with("batch_size = 8", "batch_size = -8"));
    beyond_64_bits: check(&with("batch_size = 8", "batch_size = 99999999999999999999999999999999999999999999"));
    not_finite: check(&with("lr = 3e-4", "lr = inf"));
    split_out_of_range: check(&with("paths = [\"*.txt\"]", "paths = [\"*.txt\"]\nsplit = 1.5"));
    wrong_word: check(&with("\"block\"", "\"blok\""));
    size_without_unit: check(&append("[target]\nmemory = 24"));
    host_memory_of_0: check(&append("[target]\nmemory = \"24 GiB\"\nhost_memory = \"0 B\""));
    link_without_a_unit_per_second: check(&append("[target]\nlink = \"25 GB\""));
    link_as_a_number: check(&append("[target]\nlink = 25"));
    link_by_another_name: check(&append("[target]\npcie_bandwidth = \"25 GB/s\""));
    host_memory_by_another_name: check(&append("[target]\nram = \"24 GiB\""));
    size_with_wrong_unit: check(&append("[target]\nmemory = \"24 gib\""));
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
    kv_heads_do_not_divide_heads: check(&with("heads = 2", "heads = 4\nkv_heads = 3"));
    more_kv_heads_than_heads: check(&with("heads = 2", "heads = 2\nkv_heads = 4"));
    kv_heads_by_another_name: check(&with("heads = 2", "heads = 2\nnum_key_value_heads = 1"));
    rotary_with_odd_head_dim: check(&with("heads = 2",
        "heads = 2\nhead_dim = 15\npositions = \"rotary\""));
    window_without_causal: check(&with("heads = 2", "heads = 2\nwindow = 8\ncausal = false"));
    global_every_without_window: check(&with("heads = 2", "heads = 2\nglobal_every = 2"));
    window_of_0: check(&with("heads = 2", "heads = 2\nwindow = 0"));
    attention_softcap_of_0: check(&with("heads = 2", "heads = 2\nattention_softcap = 0.0"));
    attention_scale_negative: check(&with("heads = 2", "heads = 2\nattention_scale = -1"));
    unknown_activation: check(&with("heads = 2", "heads = 2\nactivation = \"gelu_new\""));
    norm_by_another_name: check(&with("heads = 2", "heads = 2\nnorm = \"rmsnorm\""));
    norm_epsilon_of_0: check(&with("heads = 2", "heads = 2\nnorm_epsilon = 0"));
    positions_by_another_name: check(&with("heads = 2", "heads = 2\npositions = \"rope\""));
    rotary_with_odd_head_width: check(&with("heads = 2", "heads = 64\npositions = \"rotary\""));
    rotary_with_odd_d_model: check(&with("d_model = 64", "d_model = 63").replace(
        "heads = 2", "heads = 3\npositions = \"rotary\""));
    rotary_table_without_rotary_positions: check(&with("heads = 2", "heads = 2\nrotary = { base = 500000.0 }"));
    rotary_window_base_without_window: check(&with("heads = 2",
        "heads = 2\npositions = \"rotary\"\nrotary = { window_base = 1e4 }"));
    head_bias_of_a_tied_head: check(&with("heads = 2", "heads = 2\nhead_bias = true"));
    experts_of_one: check(&with_experts("experts = { count = 1, per_token = 1 }", "swiglu"));
    experts_above_their_count: check(&with_experts("experts = { count = 2, per_token = 3 }", "swiglu"));
    experts_without_gate: check(&with_experts("experts = { count = 4, per_token = 2 }", "gelu"));
    experts_with_biases: check(&with_experts("experts = { count = 4, per_token = 2 }", "swiglu").replace("bias = false", "bias = true"));
    experts_unknown_key: check(&with_experts("experts = { count = 4, top_k = 2 }", "swiglu"));
    experts_of_too_many_tokens: check(&with_experts("experts = { count = 4, per_token = 4 }", "swiglu")
        .replace("batch_size = 8", "batch_size = 16777216"));
    experts_with_adapters: check(&(with_experts("experts = { count = 4, per_token = 2 }", "swiglu")
        + "\n[strategies.lora]\nlora = { rank = 2, alpha = 4, targets = [\"mlp.gate_up\"] }\n"));
    family_of_another_architecture: check(&with("heads = 2", "heads = 2\nactivation = \"swiglu\"\nfamily = \"gpt2\""));
    rotary_of_an_odd_number_of_channels: check(&with("heads = 2",
        "heads = 2\npositions = \"rotary\"\nrotary = { channels = 5 }"));
    window_attention_scale_without_window: check(&with("heads = 2", "heads = 2\nwindow_attention_scale = 0.1"));
    qk_norm_over_without_qk_norm: check(&with("heads = 2", "heads = 2\nqk_norm_over = \"all_heads\""));
    parallel_parts_with_post_norms: check(&with("heads = 2",
        "heads = 2\nnorm_placement = \"post\"\nsub_layers = \"parallel\""));
    rotary_that_skips_every_block: check(&with("heads = 2",
        "heads = 2\npositions = \"rotary\"\nrotary = { skip_every = 1 }"));
    rotary_base_of_0: check(&with("heads = 2", "heads = 2\npositions = \"rotary\"\nrotary = { base = 0 }"));
    rotary_as_a_word: check(&with("heads = 2", "heads = 2\nrotary = \"llama3\""));
    rotary_base_by_another_name: check(&with("heads = 2", "heads = 2\nrope_theta = 500000.0"));
    rotary_scaling_without_original_context: check(&with("heads = 2",
        "heads = 2\npositions = \"rotary\"\nrotary = { scaling = { factor = 8.0 } }"));
    rotary_scaling_factor_below_1: check(&with("heads = 2",
        "heads = 2\npositions = \"rotary\"\nrotary = { scaling = { factor = 0.5, original = 8192 } }"));
    rotary_scaling_of_empty_range: check(&with("heads = 2",
        "heads = 2\npositions = \"rotary\"\nrotary = { scaling = { factor = 8.0, low = 4.0, original = 8192 } }"));
    d_ff_of_0: check(&with("heads = 2", "heads = 2\nd_ff = 0"));
    bias_as_a_number: check(&with("heads = 2", "heads = 2\nbias = 1"));
    tied_as_a_word: check(&with("heads = 2", "heads = 2\ntied = \"embedding\""));
    more_micro_batches_than_sequences: check(&with("recompute = \"block\"", "accumulate = 9"));
    more_micro_batches_than_one_sequence: check(&with("batch_size = 8", "batch_size = 1").replace(
        "recompute = \"block\"", "accumulate = 2"));
    loss_scale_of_bf16: check(&with("recompute = \"block\"", "precision = \"bf16\"\nloss_scale = 1024"));
    loss_scale_of_fp32: check(&with("recompute = \"block\"", "loss_scale = \"dynamic\""));
    loss_scale_beyond_f32: check(&with("recompute = \"block\"", "precision = \"fp16\"\nloss_scale = 1e300"));
    loss_scale_backoff_rounds_to_0: check(&with("recompute = \"block\"",
        "precision = \"fp16\"\nloss_scale.dynamic.backoff = 1e-60"));
    misspelt_key_of_a_loss_scale: check(&with("recompute = \"block\"",
        "precision = \"fp16\"\nloss_scale = { dynamic = { backof = 0.5 } }"));
    nesterov_without_momentum: check(&with("adamw = { lr = 3e-4 }", "sgd = { lr = 0.1, nesterov = true }"));
    momentum_of_1: check(&with("adamw = { lr = 3e-4 }", "sgd = { lr = 0.1, momentum = 1.0 }"));
    momentum_rounds_to_1: check(&with("adamw = { lr = 3e-4 }", "sgd = { lr = 0.1, momentum = 0.99999999 }"));
    learning_rate_rounds_to_0: check(&with("adamw = { lr = 3e-4 }", "sgd = { lr = 1e-60 }"));
    weight_decay_beyond_f32: check(&with("lr = 3e-4", "lr = 3e-4, weight_decay = 1e300"));
    groups_as_a_table: check(&with("lr = 3e-4", "lr = 3e-4, groups = { match = \"*.bias\", lr = 1e-4 }"));
    group_as_a_string: check(&with("lr = 3e-4", "lr = 3e-4, groups = [\"*.bias\"]"));
    group_without_a_match: check(&with("lr = 3e-4", "lr = 3e-4, groups = [{ lr = 1e-4 }]"));
    group_with_wrong_keys: check(&with("lr = 3e-4",
        "lr = 3e-4, groups = [{ name = \"*.bias\", lr = -1, beta1 = 0.8 }]"));
    group_without_settings: check(&with("lr = 3e-4", "lr = 3e-4, groups = [{ match = \"*.bias\" }]"));
    group_with_bad_pattern: check(&with("lr = 3e-4", "lr = 3e-4, groups = [{ match = \"blocks.[0.*\", lr = 1e-4 }]"));
    group_matches_nothing: check(&with("lr = 3e-4", "lr = 3e-4, groups = [{ match = \"*.biases\", lr = 1e-4 }]"));
    group_covered_by_earlier_groups: check(&with("lr = 3e-4",
        "lr = 3e-4, groups = [{ match = \"blocks.*\", lr = 1e-4 }, { match = \"blocks.0.mlp\", lr = 1e-5 }]"));
    optimizer_off: check(&with("adamw = { lr = 3e-4 }", "adamw = \"off\""));
    muon_alone: check(&with("adamw = { lr = 3e-4 }", "muon = { lr = 1e-2 }"));
    muon_adamw_as_a_number: check(&with("adamw = { lr = 3e-4 }", "muon = { lr = 1e-2, adamw = 3e-4 }"));
    muon_keys_of_other_tools: check(&with("adamw = { lr = 3e-4 }",
        "muon = { lr = 1e-2, adamw = { lr = 3e-4 }, beta1 = 0.9, mu = 0.9, adjust_lr_fn = \"match_rms_adamw\" }"));
    muon_wrong_values: check(&with("adamw = { lr = 3e-4 }", "muon = { lr = 1e-2, adamw = { lr = 3e-4 }, ns_steps = 0, adjust = \"rms\" }"));
    muon_groups_inside_adamw: check(&with("adamw = { lr = 3e-4 }",
        "muon = { lr = 1e-2, adamw = { lr = 3e-4, groups = [{ match = \"embedding\", lr = 1e-3 }] } }"));
    muon_group_matches_nothing: check_files(&[("a.toml", &with("adamw = { lr = 3e-4 }",
        "muon = { lr = 1e-2, adamw = { lr = 3e-4 }, groups = [{ match = \"heads\", lr = 1e-3 }] }")), ("a.txt", &TEXT.repeat(100))], &["a.toml"]);
    adafactor_keys_of_other_tools: check(&with("adamw = { lr = 3e-4 }", "adafactor = { lr = 1e-2, decay_rate = -0.8, beta1 = 0.9, epsilon = [1e-30, 1e-3] }"));
    adafactor_epsilon_squared_rounds_to_0: check(&with("adamw = { lr = 3e-4 }", "adafactor = { lr = 1e-2, epsilon = 1e-30 }"));
    adafactor_positive_beta2_decay: check(&with("adamw = { lr = 3e-4 }", "adafactor = { lr = 1e-2, beta2_decay = 0.8 }"));
    optimizer_off_in_a_strategy: check(&append("set.\"train.optimizer.adamw\" = \"off\""));
    freeze_unknown_layer: check(&with("recompute = \"block\"", "freeze = [\"embedding\", \"block.1\"]"));
    freeze_everything: check(&with("recompute = \"block\"", "freeze = [\"embedding\", \"blocks.*\", \"head\"]"));
    freeze_half_of_tied_weights: check(&with("recompute = \"block\"", "freeze = [\"head\"]"));
    freeze_as_a_string: check(&with("recompute = \"block\"", "freeze = \"embedding\""));
    freeze_empty_name: check(&with("recompute = \"block\"", "freeze = [\"\"]"));
    freeze_repeated_layer: check(&with("recompute = \"block\"", "freeze = [\"embedding\", \"blocks.0\", \"embedding\"]"));
    lora_as_a_boolean: check(&with("recompute = \"block\"", "lora = true"));
    lora_without_required_keys: check(&with("recompute = \"block\"", "lora = { rank = 4 }"));
    lora_wrong_values: check(&with("recompute = \"block\"",
        "lora = { rank = 0, alpha = inf, targets = \"mlp\", base = \"4bit\", double_quantization = 1, dropout = 0.1 }"));
    lora_without_targets: check(&with("recompute = \"block\"", "lora = { rank = 4, alpha = 8, targets = [] }"));
    lora_unknown_target: check(&with("recompute = \"block\"",
        "lora = { rank = 4, alpha = 8, targets = [\"mlp\", \"attention.kv\"] }"));
    lora_rank_beyond_layer: check(&with("recompute = \"block\"",
        "lora = { rank = 65, alpha = 8, targets = [\"mlp\"] }"));
    lora_double_quantization_without_nf4: check(&with("recompute = \"block\"",
        "lora = { rank = 4, alpha = 8, targets = [\"mlp\"], base = \"int8\", double_quantization = true }"));
    lora_with_freeze: check(&with("recompute = \"block\"",
        "freeze = [\"embedding\"]\nlora = { rank = 4, alpha = 8, targets = [\"mlp\"] }"));
    qlora_key_of_other_tools: check(&with("recompute = \"block\"", "qlora = true"));
    place_unknown_layer: check(&with("recompute = \"block\"", "place = { \"blocks.2\" = \"host\" }"));
    place_on_unknown_device: check(&with("recompute = \"block\"", "place = { blocks.0.mlp = \"gpu\" }"));
    place_as_a_string: check(&with("recompute = \"block\"", "place = \"host\""));
    place_on_two_devices: check(&with("recompute = \"block\"",
        "place = { \"blocks.*\" = \"host\", \"*.1\" = \"device\" }"));
    place_half_of_tied_weights: check(&with("recompute = \"block\"", "place = { embedding = \"host\" }"));
    loss_scale_dynamic_off: check(&with("recompute = \"block\"",
        "precision = \"fp16\"\nloss_scale = { dynamic = \"off\" }"));
    loss_chunks_of_0: check(&with("recompute = \"block\"", "loss_chunks = 0"));
    unknown_params_dtype: check(&with("recompute = \"block\"", "params = \"int8\""));
    master_weights_off_with_fp32_params: check(&with("recompute = \"block\"", "master_weights = false"));
    gradient_dtype_of_another_type: check(&with("recompute = \"block\"", "params = \"bf16\"\ngradient_dtype = \"fp16\""));
    residual_of_another_type: check(&with("recompute = \"block\"", "residual = \"bf16\""));
    precision_of_another_type: check(&with("recompute = \"block\"", "params = \"bf16\"\nprecision = \"fp16\""));
    precision_beyond_params: check(&with("recompute = \"block\"", "params = \"bf16\"\nprecision = \"fp32\""));
    stochastic_rounding_with_master_weights: check(&with("recompute = \"block\"", "params = \"bf16\"\nrounding = \"stochastic\""));
    stochastic_rounding_with_fp32: check(&with("recompute = \"block\"", "rounding = \"stochastic\""));
    stochastic_rounding_with_8bit_state: check(&with("recompute = \"block\"", "optimizer_state = \"8bit\"\nrounding = \"stochastic\""));
    quantize_without_8bit_state: check(&with("recompute = \"block\"", "optimizer_state = \"bf16\"\nquantize = { from = 256 }"));
    quantize_as_a_number: check(&with("recompute = \"block\"", "optimizer_state = \"8bit\"\nquantize = 256"));
    quantize_unknown_key: check(&with("recompute = \"block\"", "optimizer_state = \"8bit\"\nquantize = { min_8bit_size = 256 }"));
    quantize_by_another_name: check(&with("recompute = \"block\"", "optimizer_state = \"int8\"\nmin_8bit_size = 256"));
    recompute_unknown_scope: check(&with("recompute = \"block\"", "recompute = [\"attention\", \"ffn\"]"));
    recompute_with_two_variants: check(&with("recompute = \"block\"", "recompute = { every = 2, segments = 2 }"));
    recompute_as_an_empty_table: check(&with("recompute = \"block\"", "recompute = {}"));
    recompute_every_0: check(&with("recompute = \"block\"", "recompute = { every = 0 }"));
    recompute_more_segments_than_blocks: check(&with("recompute = \"block\"", "recompute = { segments = 9 }"));
    recompute_save_unknown_kind: check(&with("recompute = \"block\"", "recompute = { save = [\"gelu\"] }"));
    budget_without_a_unit: check(&with("\"block\"", "{ budget = \"4\" }"));
    budget_of_0: check(&with("\"block\"", "{ budget = \"0 B\" }"));
    budget_above_1: check(&with("\"block\"", "{ budget = 1.5 }"));
    recompute_scope_without_a_list: check(&with("\"block\"", "\"attention\""));
    budget_without_a_table: check(&with("\"block\"", "\"4 GiB\""));
    recompute_by_another_name: check(&with("recompute = \"block\"", "selective_checkpointing = true"));
    unknown_optimizer_state: check(&with("recompute = \"block\"", "optimizer_state = \"fp16\""));
    keep_unknown_value: check(&with("recompute = \"block\"", "keep = [\"loss\", \"logit\"]"));
    keep_value_of_unknown_block: check(&with("recompute = \"block\"", "keep = [\"blocks.9.mlp.hidden\"]"));
    keep_parameter: check(&with("recompute = \"block\"", "keep = [\"qkv.weight\"]"));
    keep_as_a_string: check(&with("recompute = \"block\"", "keep = \"logits\""));
    leak_unknown_value: check(&with("recompute = \"block\"", "leak = \"activations\""));
    leak_as_a_boolean: check(&with("recompute = \"block\"", "leak = true"));
    leak_key_of_other_tools: check(&with("recompute = \"block\"", "retain_graph = true"));
    attention_word_of_other_tools: check(&with("recompute = \"block\"", "attention = \"flash\""));
    update_in_backward_conflicts: check(&with("recompute = \"block\"",
        "update = \"in_backward\"\naccumulate = 2\ngradients = \"zero\"\nprecision = \"fp16\""));
    update_key_of_other_tools: check(&with("recompute = \"block\"", "optimizer_in_backward = true"));
    budget_with_inference: check(&(with("recompute = \"block\"", "recompute = { budget = 0.5 }")
        + "\n[measure]\nwhat = \"inference\"\n"));
    graph_with_leak: check(&with("recompute = \"block\"", "graph = true\nleak = \"logits\""));
    graph_with_collect: check(&evaluation("collect = \"logits\"").replace("recompute = \"block\"", "graph = true"));
    collect_unknown_output: check(&evaluation("collect = \"predictions\""));
    collect_as_a_boolean: check(&evaluation("collect = true"));
    collect_without_what: check(&evaluation("collect.to = \"host\""));
    collect_to_unknown_place: check(&evaluation("collect = { what = \"logits\", to = \"cpu\" }"));
    collect_unknown_key: check(&evaluation("collect = { what = \"logits\", as = \"list\" }"));
    collected_bytes_overflow: check(&evaluation("batches = 131072\nbatch_size = 16777216\ncollect = \"logits\"").replace("context = 32", "context = 512"));
    evaluation_batch_size_0: check(&evaluation("batch_size = 0"));
    evaluation_batch_overflow: check(&evaluation("batch_size = 16777216").replace("context = 32", "context = 16384"));
    evaluation_keys_of_other_tools: check(&evaluation(
        "per_device_eval_batch_size = 4\neval_accumulation_steps = 1\neval_do_concat_batches = true\nprediction_loss_only = true"));
    graph_without_arena: check(&with("recompute = \"block\"", "graph = true\nallocator = \"direct\""));
    no_grid_point_runs: check(&with("recompute = \"block\"", "accumulate = 9").replace(
        "[strategies.plain]", "[sweep.grid]\n\"train.batch_size\" = [4, 8]\n\n[strategies.plain]"));
    vocabulary_too_small: check(&with("heads = 2", "heads = 2\nvocabulary = 100"));
    split_without_evaluation_data: check(&with("paths =", "split = 1.0\npaths =").replace("[train]", "[evaluation]\n\n[train]"));
    too_many_parameters: check(&with("d_model = 64", "d_model = 16777216"));
    tokens_per_step_overflow: check(&with("context = 32", "context = 16777216").replace("batch_size = 8", "batch_size = 16777216"));
    unknown_baseline: check(&format!("baseline = \"plane\"\n{GOOD}"));
    name_of_a_folder: check(&format!("name = \"a/b\"\n{GOOD}"));
    unknown_axis: check(&append("[sweep.grid]\n\"train.batch_sise\" = [4, 8]"));
    repeats_as_a_word: check(&append("[measure]\nrepeats = \"often\""));
    repeats_without_until: check(&append("[measure]\nrepeats = { most = 20 }"));
    repeats_until_wrong_values: check(&append("[measure]\nrepeats = { until = 2, most = 4, every = 1 }"));
    unknown_seeds: check(&append("[measure]\nseeds = \"different\""));
    axis_over_experiment_key: check(&append("[sweep.grid]\n\"measure.repeats\" = [1, 2]"));
    fixed_axis: check(&append("set.\"train.batch_size\" = 16\n[sweep.grid]\n\"train.batch_size\" = [4, 8]"));
    fixed_axis_of_a_strategy: check(&append("[sweep.grid]\nrecompute = [\"none\", \"block\"]"));
    fixed_axis_inside: check(&append("sweep.recompute = [\"none\", \"block\"]"));
    axis_twice: check(&append("[sweep.grid]\n\"train.seed\" = [1, 2]\n[[sweep.zip]]\n\"train.seed\" = [3, 4]"));
    empty_axis: check(&append("[sweep.grid]\n\"train.batch_size\" = []"));
    axis_without_list: check(&append("[sweep.grid]\n\"train.batch_size\" = 4"));
    axis_with_a_value_twice: check(&append("[sweep.grid]\n\"train.batch_size\" = [4, 8, 4]"));
    axis_with_a_wrong_value: check(&append("[sweep.grid]\n\"train.batch_size\" = [4, 0]"));
    too_many_points: check(&append(&format!(
        "[sweep.grid]\n\"train.seed\" = {0:?}\n\"train.batch_size\" = {1:?}\n\"measure.steps\" = {0:?}",
        (1..=101).collect::<Vec<_>>(),
        (1..=100).collect::<Vec<_>>(),
    )));
    zip_of_different_lengths: check(&append("[[sweep.zip]]\n\"train.seed\" = [1, 2]\n\"train.batch_size\" = [4]"));
    exclude_nothing: check(&append("[sweep.grid]\n\"train.seed\" = [1, 2]\n[[sweep.exclude]]\n\"train.seed\" = 3"));
    exclude_everything: check(&append("[[sweep.exclude]]\nstrategy = \"*\""));
    include_nothing: check(&append("[[sweep.include]]\nstrategy = \"fat\"\n\"train.seed\" = 3"));
    label_taken: check(&append("[strategies.\"b/accumulate=2\"]\n[strategies.b]\nsweep.accumulate = [2, 4]"));
    cyclic_strategies: check(&append("extends = \"fat\"\n[strategies.fat]\nextends = \"lean\""));
    unknown_base_strategy: check(&append("extends = \"plane\""));
    unknown_set: check(&append("set.\"train.clip_nrom\" = 1.0"));
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
    ranks_as_a_number: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "parallel=4"]);
    wrong_override: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "recompute=blocks"]);
    override_of_two_variants: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "recompute={budget=0.5,every=2}"]);
    two_variants_set: check(&append("set.recompute = { budget = 0.5, every = 2 }"));
    allocator_as_an_empty_table: check(&append("allocator = {}"));
    allocator_as_a_table: check(&append("allocator = { arena = {} }"));
    override_without_value: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "recompute"]);
    override_of_an_axis: check_files(
        &[("a.toml", &append("[sweep.grid]\n\"train.batch_size\" = [4, 8]"))], &["a.toml", "--set", "train.batch_size=4"]);
    override_breaks_a_rule: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "accumulate=9"]);
    missing_file: check_files(&[], &["a.toml"]);
    folder_instead_of_file: check_files(&[], &["."]);
    empty_file: check("\n");
    comments_only: check("# [model.transformer]\n");
    configuration_as_an_experiment: check_files(&[("config.json", LLAMA)], &["config.json"]);
    configuration_as_a_base: check_files(
        &[("a.toml", "extends = \"config.json\"\n[strategies.plain]\n"), ("config.json", LLAMA)], &["a.toml"]);
    yaml_as_an_experiment: check_files(
        &[("a.yaml", "# axolotl\nbase_model: llama\nmicro_batch_size: 2\n")], &["a.yaml"]);
    script_as_an_experiment: check_files(&[("train.py", "import torch\nmodel = 1\n")], &["train.py"]);
    table_as_an_experiment: check_files(&[("a.csv", "strategy,peak_bytes\na,1\n")], &["a.csv"]);
    target_as_an_experiment: check_files(
        &[("t.toml", "name = \"x\"\nkind = \"cuda\"\nmemory = \"24 GiB\"\n")], &["t.toml"]);
    weights_as_an_experiment: check_files(
        &[("m.safetensors", "\u{10}\0\0\0\0\0\0\0{\"a\": 1}        ")], &["m.safetensors"]);
    folder_of_a_model: check_files(&[("config.json", LLAMA)], &["."]);
    folder_of_experiments: check_files(&[("a.toml", GOOD)], &["."]);
    decimal_comma: check(&with("batch_size = 8", "batch_size = 8\nclip_norm = 0,5").replace(
        "lr = 3e-4", "lr = 3e-4, weight_decay = 0,1"));
    values_in_the_notation_of_others: check(&with("optimizer.adamw = { lr = 3e-4 }",
        "optimizer.adamw.lr = .1\noptimizer.adamw.weight_decay: 0.1\nclip_norm = None\nshuffle = True"));
    values_in_quotes: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "train.batch_size=\"8\"", "--set",
        "train.optimizer.adamw.lr=0,1", "--set", "train.shuffle=True", "--set", "target.memory=24G", "--set",
        "defaults.recompute.budget=1,5 gb", "--set", "defaults.offload.activations=64k"]);
    home_folder_by_tilde: check(&with("*.txt", "~/*.txt"));
    variable_without_braces: check(&with("*.txt", "$HOME/*.txt"));
    address_instead_of_a_path: check(&with("*.txt", "https://example.org/a.txt"));
    base_in_the_home_folder: check(&format!("extends = \"~/base.toml\"\n{GOOD}"));
    no_file_matches: check_files(&[], &["experiments/*.toml"]);
    unknown_init: check(&with("recompute = \"block\"", "init = \"meta\""));
    hf_without_a_configuration: check(&hf_model("context = 8"));
    hf_with_a_key_of_another_model: check(&hf_model("config = \"c.json\"\nlayers = 2"));
    hf_as_a_path: check(&with(MODEL, "[model]\nhf = \"c.json\"\n"));
    hf_missing_file: check(&hf_model("config = \"c.json\""));
    hf_invalid_json: check_hf_model(TEXT, "");
    hf_unknown_model_type: check_hf_model("{\n  \"model_type\": \"t5\"\n}", "");
    hf_with_an_unknown_field: check_hf_model(&LLAMA.replace("}", "  , \"num_experts\": 8,\n  \"moe\": true\n}"), "");
    hf_with_quantized_weights: check_hf_model(&LLAMA.replace("}", "  , \"quantization_config\": { \"quant_method\": \"fp8\" }\n}"), "");
    hf_with_several_errors: check_hf_model(&LLAMA.replace("8,", "NaN,").replace("16,", "1.5,"), "");
    hf_of_an_undescribable_family: check_hf_model("{\n  \"model_type\": \"qwen2_moe\"\n}", "");
    divisors_of_another_head: check(&with("heads = 2", "heads = 2\npositions = \"rotary\"\nrotary.divisors = [1.0, 1.0]"));
    global_first_above_global_every: check(&with("heads = 2", "heads = 2\nwindow = 4\nglobal_every = 2\nglobal_first = 3"));
    hf_breaks_a_rule: check_hf_model(&LLAMA.replace("\"num_attention_heads\": 4", "\"num_attention_heads\": 3"), "");
    hf_dropout_of_1: check_hf_model(&LLAMA.replace("}", "  , \"attention_dropout\": 1.0\n}"), "");
    dropout_out_of_range: check(&with("context = 32", "context = 32\ndropout = 1.5"));
    dropout_unknown_key: check(&with("context = 32", "context = 32\ndropout = { residual = -0.1, mlp = 0.1 }"));
    dropout_by_another_name: check(&with("context = 32", "context = 32\nresid_pdrop = 0.1"));
    hf_with_weights_of_another_model: check_files(
        &[
            ("a.toml", &hf_model("config = \"c.json\"\nweights = \"w.safetensors\"")),
            ("c.json", LLAMA),
            ("a.txt", &TEXT.repeat(100)),
            ("w.safetensors", &one_tensor_file("model.embed_tokens.weight", 8)),
        ],
        &["a.toml"]);
    tokens_missing_file: check(&token_data(""));
    tokens_unknown_format: check(&token_data("format = \"u8\""));
    tokens_header_too_long: check(&token_data("header = 2000000"));
    tokens_beyond_the_vocabulary: check_files(
        &[("a.toml", &token_data("split = 0.5")), ("a.bin", &"\u{2}\u{1}".repeat(500))], &["a.toml"]);
    tokens_of_an_odd_length: check_files(
        &[("a.toml", &token_data("format = \"u32\"")), ("a.bin", "seven b")], &["a.toml"]);
    tokenizer_as_text: check(&text_data("tokens = \"tokenizer.json\""));
    tokenizer_missing_file: check_files(
        &[("a.toml", &text_data("tokens = { file = \"tokenizer.json\" }")), ("a.txt", TEXT)], &["a.toml"]);
    tokenizer_file_as_a_number: check(&text_data("tokens = { file = 5 }"));
    tokenizer_without_a_file: check(&text_data("tokens = { end = \"<end>\" }"));
    tokenizer_with_another_key: check(&text_data("tokens = { file = \"t.json\", eos = \"<end>\" }"));
    tokenizer_invalid_file: check_tokenizer("{}", "file = \"t.json\"");
    tokenizer_lacks_end_token: check_tokenizer(TOKENIZER, "file = \"t.json\", end = \"<eos>\"");
    tokenizer_beyond_the_vocabulary: check_tokenizer(TOKENIZER, "file = \"t.json\", end = \"<end>\"");
    jsonl_invalid_line: check_files(
        &[("a.toml", &text_data("jsonl = \"text\"")), ("a.txt", TEXT)], &["a.toml"]);
    jsonl_nested_field_is_missing: check_files(
        &[("a.toml", &text_data("jsonl = \"data.text\"")), ("a.txt", "{\"data\": {\"body\": \"b\", \"id\": 1}}")],
        &["a.toml"]);
    evaluate_beside_split: check(&text_data("evaluate = [\"*.val\"]\nsplit = 0.8"));
    evaluate_missing_file: check_files(
        &[("a.toml", &text_data("evaluate = [\"b.val\"]")), ("a.txt", TEXT)], &["a.toml"]);
    tokens_evaluate_beside_split: check(&token_data("evaluate = [\"*.val\"]\nsplit = 0.8"));
    ids_without_a_field: check(&text_data("tokens = \"ids\""));
    template_of_ids: check(&text_data("tokens = \"ids\"\njsonl = \"input_ids\"\ntemplate = \"plain\""));
    template_without_content: check(&text_data("template = \"{role}: \""));
    template_unknown: check(&text_data("template = \"chatlm\""));
    template_role_unknown: check(&text_data("template = { asistant = \"{content}\" }"));
    template_role_without_content: check(&text_data("template = { user = \"[INST]\" }"));
    template_begins_with_a_placeholder: check(&text_data(
        "template = { begin = \"{system}\", user = \"{content}\" }"));
    template_without_roles: check(&text_data("template = { begin = \"<s>\" }"));
    template_includes_missing_system: check(&text_data("template = { user = \"{system}{content}\" }"));
    template_includes_system_in_answers: check(&text_data(
        "template = { system = \"{content}\", assistant = \"{system}{content}\" }"));
    template_includes_system_for_all: check(&text_data("template = \"{system}{content}\""));
    template_without_answers: check(&text_data(
        "template = { user = \"{content}\" }\nmask = \"prompt\"\ndocuments = \"packed\""));
    template_lacks_a_role_of_the_data: check_files(
        &[
            ("a.toml", &text_data("template = { user = \"{content}\", assistant = \"{content}\" }")),
            ("a.txt", "{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}]}"),
        ],
        &["a.toml"]);
    records_without_text: check_files(
        &[("a.toml", &text_data("jsonl = \"text\"")), ("a.txt", "{\"text\": \"\"}")], &["a.toml"]);
    mask_without_template: check(&text_data("mask = \"prompt\"\ndocuments = \"padded\""));
    mask_of_joined_documents: check(&text_data("mask = \"prompt\"\ntemplate = \"chatml\""));
    conversation_without_messages: check_files(
        &[("a.toml", &text_data("template = \"chatml\"")), ("a.txt", "{\"text\": \"a\"}")], &["a.toml"]);
    labels_of_joined_documents: check_files(
        &[
            ("a.toml", &text_data("tokens = \"ids\"\njsonl = \"input_ids\"")),
            ("a.txt", "{\"input_ids\": [1, 2], \"labels\": [-100, 2]}"),
        ],
        &["a.toml"]);
    parquet_as_text: check_files(&[("a.toml", GOOD), ("a.txt", "PAR1\x15\x04")], &["a.toml"]);
    jsonl_as_a_boolean: check(&text_data("jsonl = true"));
    unknown_documents: check(&text_data("documents = \"shuffled\""));
    documents_without_causal: check(
        &text_data("documents = \"padded\"").replace("context = 32", "context = 32\ncausal = false"));
    pad_to_without_padded_documents: check(&text_data("pad_to = \"batch\""));
    pad_to_multiple_of_without_pad_to: check(&text_data("documents = \"padded\"\npad_to_multiple_of = 8"));
    pad_to_longest: check(&text_data("documents = \"padded\"\npad_to = \"longest\""));
    graph_with_pad_to_batch: check(&padded_to_batch("graph = true"));
    leak_with_pad_to_batch: check(&padded_to_batch("leak = \"logits\""));
    keep_with_pad_to_batch: check(&padded_to_batch("keep = [\"logits\"]"));
    collect_with_pad_to_batch: check(&(padded_to_batch("") + "[evaluation]\ncollect = \"loss\"\n"));
    varied_seeds_with_pad_to_batch: check(&(padded_to_batch("") + "[measure]\nseeds = \"vary\"\n"));
    dynamic_padding: check(&text_data("documents = \"padded\"\ndynamic_padding = true"));
    documents_of_one_token: check_files(
        &[("a.toml", &text_data("documents = \"padded\"\nsplit = 1.0")), ("a.txt", "a"), ("b.txt", "b")], &["a.toml"]);
    documents_without_evaluation_data: check_files(
        &[("a.toml", &format!("{}[evaluation]\n", text_data("documents = \"padded\"\nsplit = 0.5"))), ("a.txt", TEXT), ("b.txt", "b")],
        &["a.toml"]);
    tokens_without_evaluation_data: check(&format!("{}[evaluation]\n", token_data("split = 1.0")));
    more_successors_than_tokens: check(&synthetic_data("tokens = 3\nsuccessors = 4"));
    more_synthetic_tokens_than_the_vocabulary: check(&synthetic_data("tokens = 300"));
    synthetic_data_with_paths: check(&synthetic_data("paths = [\"*.txt\"]"));
    weights_as_a_list: check(&with("heads = 2", "heads = 2\nweights = [\"a\"]"));
    weights_with_unset_variable: check(&with("heads = 2",
        "heads = 2\nweights = \"${RUNNER_TEST_UNSET}/a\""));
    weights_missing_file: check_files(&[("a.toml", &with_weights()), ("a.txt", &TEXT.repeat(100))], &["a.toml"]);
    weights_invalid_file: check_files(
        &[("a.toml", &with_weights()), ("a.txt", &TEXT.repeat(100)), ("w.safetensors", TEXT)], &["a.toml"]);
    weights_of_another_model: check_files(
        &[("a.toml", &with_weights()), ("a.txt", &TEXT.repeat(100)), ("w.safetensors", &one_tensor_file("other", 4))],
        &["a.toml"]);
    weights_of_another_size: check_files(
        &[
            ("a.toml", &with_weights()),
            ("a.txt", &TEXT.repeat(100)),
            ("w.safetensors", &one_tensor_file("embedding.table", 16)),
        ],
        &["a.toml"]);
    offload_as_a_boolean: check(&with("recompute = \"block\"", "offload = true"));
    offload_unknown_keys: check(&with("recompute = \"block\"", "offload = { optimiser = true, gradients = true }"));
    offload_options_without_offload: check(&with("recompute = \"block\"", "offload = { pinned = false, ahead = 2 }"));
    offload_wrong_values: check(&with("recompute = \"block\"",
        "offload = { parameters = 1, activations = 64, pinned = \"no\", ahead = -1 }"));
    loader_as_a_number: check(&with("recompute = \"block\"", "loader = 2"));
    loader_keys_of_other_tools: check(&with("recompute = \"block\"", "loader = { num_workers = 2, pin_memory = true }"));
    loader_wrong_values: check(&with("recompute = \"block\"",
        "loader = { workers = -1, prefetch = \"two\", source = \"disk\", dtype = \"f32\", delay = -1 }"));
    prefetch_without_workers: check(&with("recompute = \"block\"", "loader = { prefetch = 2 }"));
    vocabulary_beyond_loader_dtype: check(&token_data("").replace("context = 32", "context = 32\nvocabulary = 50257").replace(
        "recompute = \"block\"", "loader.dtype = \"u8\""));
    padding_beyond_loader_dtype: check(&text_data("documents = \"padded\"").replace(
        "recompute = \"block\"", "loader.dtype = \"u8\""));
    documents_with_device_source: check(&text_data("documents = \"packed\"").replace(
        "recompute = \"block\"", "loader.source = \"device\""));
    synthetic_data_with_ram_source: check(&synthetic_data("").replace("recompute = \"block\"", "loader.source = \"ram\""));
    shuffle_of_synthetic_data: check(&synthetic_data("").replace("batch_size = 8", "batch_size = 8\nshuffle = true"));
    last_batch_without_shuffle: check(&with("batch_size = 8", "batch_size = 8\nlast_batch = \"keep\""));
    unknown_last_batch: check(&with("batch_size = 8", "batch_size = 8\nshuffle = true\nlast_batch = \"pad\""));
    epoch_shorter_than_a_batch: check_files(
        &[("a.toml", &with("batch_size = 8", "batch_size = 8\nshuffle = true")), ("a.txt", &"x".repeat(200))], &["a.toml"]);
    all_mistakes_of_a_file: check(&(with("heads = 2", "heads = 0\ncolour = 3").replace(
        "recompute =", "recompte =") + "\n[sweep.grid]\n\"train.seed\" = [1, -1, 2, 2.5]\n[measure]\nsteps = 0\n"));
    all_mistakes_of_syntax: check(&with("heads = 2", "heads = = 2").replace("batch_size = 8", "batch_size 8"));
    all_broken_rules: check(&with("heads = 2", "heads = 3").replace(
        "recompute = \"block\"", "accumulate = 9\ngraph = true\nallocator = \"direct\""));
    all_mistakes_of_a_file_and_its_base: check_files(
        &[("a.toml", &format!("extends = \"b.toml\"\n{}", with("heads = 2", "heads = 0"))), ("b.toml", "[train]\nseed = -1\n")],
        &["a.toml", "--set", "steps=5", "--set", "train.seed=x"]);
    all_missing_bases_and_cases: check(&append(
        "extends = \"plane\"\n[strategies.b]\nextends = \"leen\""));
    hundreds_of_mistakes: check(&(0..200).map(|line| format!("a{line} = 1\n")).collect::<String>());
    all_missing_data_files: check(&with("[\"*.txt\"]", "[\"none.txt\", \"*.toml\", \"no*\"]"));
    learning_rate_in_train_table: check(&with("batch_size = 8", "batch_size = 8\nlr = 1e-3\nsteps = 10\nepochs = 3\nmicro_batch = 2\nmax_grad_norm = 1.0"));
    keys_of_tables_at_the_top: check(&format!(
        "repeats = 3\nsteps = 10\nlr = 1e-3\nbatch_size = 4\namp = true\n{GOOD}\n[grid]\n\"train.seed\" = [1, 2]\n[optimizer]\n"));
    keys_of_tables_in_a_strategy: check(&append("train.batch_size = 4\nseed = 1\nlr = 1\ncontext = 8\nrepeats = 2"));
    names_of_other_tools_in_a_strategy: check(&append(
        "gradient_checkpointing = true\namp = true\nmicro_batch = 2\ngrad_accum = 2\nset_to_none = true\nfp16 = true"));
    meanings_of_keys_in_train: check(&with("batch_size = 8",
        "batch_size = 8\nwarmup_steps = 100\nwarmup_ratio = 0.1\nnum_train_epochs = 3\nper_device_train_batch_size = 2\n\
         gradient_accumulation_steps = 8\nadam_beta2 = 0.95\noptim = \"paged_adamw_8bit\"\nbf16 = true\nlogging_steps = 10\n\
         lora_alpha = 16\nfsdp = \"full_shard\""));
    meanings_of_keys_in_a_strategy: check(&append(
        "torch_dtype = \"bfloat16\"\ndtype = \"torch.float16\"\nhalf = true\nqlora = true\nload_in_4bit = true\n\
         load_in_8bit = true\nflash_attention = true\nattn_implementation = \"eager\"\noptim = \"adamw_8bit\"\ncpu_offload = true\n\
         offload_optimizer = { device = \"cpu\" }\nactivation_offloading = true\neps = 1e-8\nr = 16\n\
         target_modules = [\"q_proj\"]\nmax_seq_length = 512\nuse_liger_kernel = true\ncompile = true\nfp8 = true\nwarmup_steps = 10"));
    meanings_of_keys_in_lora: check(&with("recompute = \"block\"",
        "lora = { r = 8, lora_alpha = 16, target_modules = \"all-linear\", dropout = 0.05, bias = \"none\", use_rslora = true }"));
    meanings_of_keys_switched_off: check(&append(
        "gradient_checkpointing = false\nload_in_4bit = false\nset_to_none = false\nflash_attention = false\nno_grad = false"));
    keys_of_several_devices: check(&append(
        "fsdp = true\nzero_stage = 2\nddp = true\nworld_size = 8\ntensor_parallel = 2\ndeepspeed = \"ds.json\"\ngpus = 4"));
    values_of_other_tools: check(&append(
        "precision = \"fp8\"\n[strategies.b]\nprecision = \"bf16-mixed\"\n[strategies.c]\nprecision = 16\n[strategies.d]\n\
         params = \"nf4\"\n[strategies.e]\nprecision = \"bf16-true\"\n[strategies.f]\noptimizer_state = \"fp8\"\n[strategies.g]\n\
         attention = \"eager\"\n[strategies.h]\nlora = { rank = 8, alpha = 16, targets = \"all-linear\", base = \"fp4\" }"));
    lora_target_and_its_part: check(&with("recompute = \"block\"",
        "lora = { rank = 8, alpha = 16, targets = [\"c_attn\", \"q_proj\"] }"));
    lora_targets_of_other_tools: check(&with("recompute = \"block\"",
        "lora = { rank = 8, alpha = 16, targets = [\"lm_head\"] }"));
    lora_trains_layers_with_factors: check(&with("recompute = \"block\"",
        "lora = { rank = 8, alpha = 16, targets = [\"mlp\"], trained = [\"blocks.0\"] }"));
    lora_trains_a_tied_head: check(&with("recompute = \"block\"",
        "lora = { rank = 8, alpha = 16, targets = [\"mlp\"], trained = [\"head\"] }"));
    lora_trains_unknown_layers: check(&with("recompute = \"block\"",
        "lora = { rank = 8, alpha = 16, targets = [\"mlp\"], trained = [\"embed_tokens\"], tables = \"int8\", dropout = 1.0 }"));
    names_of_other_tools_in_a_model: check(&with("layers = 2", "n_layer = 2\nnum_hidden_layers = 2").replace(
        "d_model = 64", "n_embd = 64\nhidden_size = 64").replace("context = 32", "block_size = 32\nVocab-Size = 256"));
    type_of_a_model: check(&with("[model.transformer]", "[model]\ntype = \"transformer\""));
    name_of_an_optimizer: check(&with("optimizer.adamw = { lr = 3e-4 }", "[train.optimizer]\nname = \"adam-w\"\nlr = 3e-4"));
    schedule_as_a_word: check(&with("batch_size = 8", "batch_size = 8\nschedule = \"cosine\""));
    schedule_with_the_key_of_measure: check(&with("batch_size = 8", "batch_size = 8\nschedule.cosine = { warmup_steps = 100 }"));
    last_batch_by_another_name: check(&with("batch_size = 8", "batch_size = 8\ndrop_last = true"));
    unknown_schedule: check(&with("batch_size = 8", "batch_size = 8\nschedule.exponential = { gamma = 0.9 }"));
    schedule_keys_of_other_tools: check(&with("batch_size = 8",
        "batch_size = 8\nlr_scheduler = \"cosine\"\nschedule.cosine = { warmup_iters = 100, min_lr = 1e-5, floor = 1.5 }"));
    schedule_warmup_longer_than_run: check(&with("batch_size = 8", "batch_size = 8\nschedule.linear.warmup = 2000"));
    schedule_shorter_than_its_parts: check(&with("batch_size = 8",
        "batch_size = 8\nschedule.warmup_stable_decay = { warmup = 10, decay = 90, total = 100 }"));
    optimizer_as_a_word: check(&with("optimizer.adamw = { lr = 3e-4 }", "optimizer = \"adamw\""));
    words_of_other_tools: check(&(with("recompute = \"block\"", "recompute = true\nprecision = \"bfloat16\"")
        + "[strategies.c]\nrecompute = false\nprecision = \"half\"\n[strategies.d]\nprecision = 16\nrecompute = \"full\""));
    clip_norm_of_0: check(&with("batch_size = 8", "batch_size = 8\nclip_norm = 0"));
    override_without_its_table: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "seed=1", "--set", "lr=1"]);
    data_off: check_files(&[("a.toml", GOOD)], &["a.toml", "--set", "data.text=off"]);
    empty_zip: check(&append("[[sweep.zip]]\n[[sweep.zip]]\n\"train.seed\" = [1, 2]"));
    two_files_wrong: check_files(
        &[("a.toml", &with("heads = 2", "heads = 3")), ("b.toml", "colour = 1")], &["[ab].toml"]);
    one_name_twice: check_files(
        &[("a.toml", GOOD), ("b.toml", &format!("name = \"a\"\n{GOOD}"))], &["a.toml", "b.toml"]);
}
