//! The JSON Schema of experiment files: it accepts what the program reads, and refuses mistakes that a schema can express.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use boon::{Compiler, Draft, SchemaIndex, Schemas};
use serde_json::Value;
use spec::{STRATEGY_KEYS, SchemaKind, json_schema, key_reference};
use testing::keys::{KEYS, OPTIMIZERS, UNSAID};

use crate::test_folder::Tiny;

/// Cases of `bad_input` that no schema can express, by their reasons.
pub(crate) const BEYOND: &[(&str, &[&str])] = &[
    (
        "a rule between keys",
        &[
            "cache_expandable_segments_with_max_split",
            "more_ranks_than_samples",
            "empty_cache_without_caching_allocator",
            "graph_with_caching_allocator",
            "residual_layers_of_another_shape",
            "projection_of_another_shape",
            "batch_norm_of_one_sample",
            "batch_norm_of_rows",
            "convolution_of_rows",
            "groups_that_do_not_divide_channels",
            "norm_groups_that_do_not_divide_channels",
            "inplace_after_sigmoid",
            "inplace_first_in_a_residual_layer",
            "inplace_twice",
            "padding_beyond_half_a_pool",
            "window_beyond_the_image",
            "attention_on_an_image",
            "embedding_in_residual_layers",
            "embedding_of_rows",
            "embedding_that_is_not_first",
            "heads_of_a_block_that_do_not_divide_channels",
            "heads_that_do_not_divide_channels",
            "mean_of_features",
            "sequence_of_rows",
            "repeated_group",
            "too_many_layers",
            "nested_repeats",
            "sizes_of_layers_beyond_64_bits",
            "one_name_within_a_block",
            "layers_without_parameters",
            "too_many_dimensions",
            "segments_beyond_the_layers",
            "layers_on_text",
            "heads_do_not_divide",
            "heads_do_not_divide_a_number_of_many_divisors",
            "kv_heads_do_not_divide_heads",
            "more_kv_heads_than_heads",
            "rotary_with_odd_head_dim",
            "window_without_causal",
            "global_every_without_window",
            "rotary_with_odd_head_width",
            "rotary_with_odd_d_model",
            "rotary_table_without_rotary_positions",
            "rotary_window_base_without_window",
            "head_bias_of_a_tied_head",
            "experts_above_their_count",
            "experts_without_gate",
            "experts_with_biases",
            "rotary_of_an_odd_number_of_channels",
            "window_attention_scale_without_window",
            "qk_norm_over_without_qk_norm",
            "parallel_parts_with_post_norms",
            "rotary_scaling_of_empty_range",
            "more_micro_batches_than_sequences",
            "more_micro_batches_than_one_sequence",
            "loss_scale_of_bf16",
            "loss_scale_of_fp32",
            "nesterov_without_momentum",
            "group_without_settings",
            "lora_double_quantization_without_nf4",
            "lora_with_freeze",
            "master_weights_off_with_fp32_params",
            "gradient_dtype_of_another_type",
            "residual_of_another_type",
            "precision_of_another_type",
            "precision_beyond_params",
            "stochastic_rounding_with_master_weights",
            "stochastic_rounding_with_fp32",
            "stochastic_rounding_with_8bit_state",
            "quantize_without_8bit_state",
            "recompute_more_segments_than_blocks",
            "update_in_backward_conflicts",
            "budget_with_inference",
            "graph_with_leak",
            "graph_with_collect",
            "graph_without_arena",
            "vocabulary_too_small",
            "split_without_evaluation_data",
            "hf_without_a_configuration",
            "global_first_above_global_every",
            "evaluate_beside_split",
            "tokens_evaluate_beside_split",
            "ids_without_a_field",
            "template_of_ids",
            "template_without_roles",
            "template_includes_missing_system",
            "template_includes_system_in_answers",
            "template_without_answers",
            "mask_without_template",
            "mask_of_joined_documents",
            "documents_without_causal",
            "pad_to_without_padded_documents",
            "pad_to_multiple_of_without_pad_to",
            "graph_with_pad_to_batch",
            "leak_with_pad_to_batch",
            "keep_with_pad_to_batch",
            "collect_with_pad_to_batch",
            "varied_seeds_with_pad_to_batch",
            "more_successors_than_tokens",
            "more_synthetic_tokens_than_the_vocabulary",
            "offload_options_without_offload",
            "prefetch_without_workers",
            "vocabulary_beyond_loader_dtype",
            "padding_beyond_loader_dtype",
            "documents_with_device_source",
            "synthetic_data_with_ram_source",
            "shuffle_of_synthetic_data",
            "last_batch_without_shuffle",
            "all_broken_rules",
            "schedule_warmup_longer_than_run",
            "schedule_shorter_than_its_parts",
        ],
    ),
    (
        "layers, values and sizes of the model",
        &[
            "experts_of_too_many_tokens",
            "experts_with_adapters",
            "family_of_another_architecture",
            "group_matches_nothing",
            "group_covered_by_earlier_groups",
            "muon_group_matches_nothing",
            "freeze_unknown_layer",
            "freeze_everything",
            "freeze_half_of_tied_weights",
            "lora_without_targets",
            "lora_unknown_target",
            "lora_rank_beyond_layer",
            "place_unknown_layer",
            "place_on_two_devices",
            "place_half_of_tied_weights",
            "keep_unknown_value",
            "keep_value_of_unknown_block",
            "keep_parameter",
            "collected_bytes_overflow",
            "evaluation_batch_overflow",
            "too_many_parameters",
            "tokens_per_step_overflow",
            "divisors_of_another_head",
            "lora_target_and_its_part",
            "lora_targets_of_other_tools",
            "lora_trains_layers_with_factors",
            "lora_trains_a_tied_head",
        ],
    ),
    (
        "names of strategies, and points of the sweep",
        &[
            "no_grid_point_runs",
            "unknown_baseline",
            "fixed_axis",
            "fixed_axis_of_a_strategy",
            "fixed_axis_inside",
            "axis_twice",
            "too_many_points",
            "zip_of_different_lengths",
            "exclude_nothing",
            "exclude_everything",
            "include_nothing",
            "label_taken",
            "cyclic_strategies",
            "unknown_base_strategy",
            "all_missing_bases_and_cases",
        ],
    ),
    (
        "the contents of other files, and the environment",
        &[
            "unset_variable",
            "cyclic_files",
            "missing_base",
            "rule_across_files",
            "configuration_as_a_base",
            "hf_as_a_path",
            "hf_missing_file",
            "hf_invalid_json",
            "hf_unknown_model_type",
            "hf_with_an_unknown_field",
            "hf_with_quantized_weights",
            "hf_with_several_errors",
            "hf_of_an_undescribable_family",
            "hf_breaks_a_rule",
            "hf_dropout_of_1",
            "hf_with_weights_of_another_model",
            "tokens_missing_file",
            "tokens_beyond_the_vocabulary",
            "tokens_of_an_odd_length",
            "tokenizer_missing_file",
            "tokenizer_invalid_file",
            "tokenizer_lacks_end_token",
            "tokenizer_beyond_the_vocabulary",
            "jsonl_invalid_line",
            "jsonl_nested_field_is_missing",
            "evaluate_missing_file",
            "template_lacks_a_role_of_the_data",
            "records_without_text",
            "conversation_without_messages",
            "labels_of_joined_documents",
            "parquet_as_text",
            "documents_of_one_token",
            "documents_without_evaluation_data",
            "tokens_without_evaluation_data",
            "weights_with_unset_variable",
            "weights_missing_file",
            "weights_invalid_file",
            "weights_of_another_model",
            "weights_of_another_size",
            "epoch_shorter_than_a_batch",
            "all_missing_data_files",
        ],
    ),
    (
        "the command line",
        &[
            "misspelt_override",
            "misspelt_override_of_a_strategy",
            "ranks_as_a_number",
            "wrong_override",
            "override_of_two_variants",
            "override_without_value",
            "override_of_an_axis",
            "override_breaks_a_rule",
            "values_in_quotes",
            "override_without_its_table",
            "data_off",
        ],
    ),
    (
        "files of another kind, and several files",
        &[
            "missing_file",
            "folder_instead_of_file",
            "configuration_as_an_experiment",
            "yaml_as_an_experiment",
            "script_as_an_experiment",
            "table_as_an_experiment",
            "weights_as_an_experiment",
            "folder_of_a_model",
            "folder_of_experiments",
            "no_file_matches",
            "one_name_twice",
        ],
    ),
];

/// The errors of a TOML text; `None` if it is valid. Text that is not TOML is an error.
pub(crate) fn errors(kind: SchemaKind, text: &str) -> Option<String> {
    static COMPILED: OnceLock<(Schemas, [SchemaIndex; 3])> = OnceLock::new();
    let (schemas, indices) = COMPILED.get_or_init(|| {
        let mut schemas = Schemas::new();
        let mut compiler = Compiler::new();
        compiler.set_default_draft(Draft::V7);
        let mut compile = |name: &str, kind| {
            compiler.add_resource(name, json_schema(kind)).unwrap();
            compiler.compile(name, &mut schemas).unwrap_or_else(|error| panic!("{name}: {error:#}"))
        };
        let indices = [
            compile("experiment.json", SchemaKind::Experiment),
            compile("base.json", SchemaKind::Base),
            compile("target.json", SchemaKind::Target),
        ];
        (schemas, indices)
    });
    let index = indices[[SchemaKind::Experiment, SchemaKind::Base, SchemaKind::Target]
        .iter()
        .position(|known| *known == kind)
        .unwrap()];
    let table: toml::Table = match text.parse() {
        Ok(table) => table,
        Err(error) => return Some(error.to_string()),
    };
    // Numbers that are not finite become null.
    let value: Value = serde_json::to_value(table).unwrap();
    schemas.validate(&value, index).err().map(|error| format!("{error:#}"))
}

#[track_caller]
fn assert_valid(kind: SchemaKind, text: &str, name: impl std::fmt::Display) {
    if let Some(error) = errors(kind, text) {
        panic!("{name}: {error}\n{text}");
    }
}

fn files(pattern: &str) -> Vec<PathBuf> {
    let pattern = Path::new(env!("CARGO_MANIFEST_DIR")).join(pattern);
    let files: Vec<PathBuf> = glob::glob(pattern.to_str().unwrap()).unwrap().map(Result::unwrap).collect();
    assert!(!files.is_empty(), "{}", pattern.display());
    files
}

#[test]
fn schema_command_prints_the_schema_of_each_kind() {
    for (name, kind) in
        [("experiment", SchemaKind::Experiment), ("base", SchemaKind::Base), ("target", SchemaKind::Target)]
    {
        let output =
            Command::new(env!("CARGO_BIN_EXE_runner")).args(["schema", "--for", name]).output().unwrap();
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(output.status.success() && printed == json_schema(kind), "{name}");
    }
}

#[test]
fn every_shipped_file_is_valid() {
    for pattern in ["experiments/**/*.toml", "tests/reference/**/*.toml", "results/published/*/target.toml"] {
        for file in files(pattern) {
            let kind = match () {
                () if file.ends_with("target.toml") => SchemaKind::Target,
                () if file.parent().unwrap().ends_with("base") => SchemaKind::Base,
                () => SchemaKind::Experiment,
            };
            assert_valid(kind, &fs::read_to_string(&file).unwrap(), file.display());
        }
    }
}

/// Every run is written with all its keys.
#[test]
fn resolved_runs_of_shipped_experiments_are_valid() {
    for file in files("experiments/*.toml") {
        let experiment = plan::expand(&file, &[], &|name| std::env::var(name).ok()).unwrap();
        for point in experiment.points {
            let Ok(config) = point.config else { continue };
            let text = config.to_toml("resolved", &point.strategy) + &experiment.plan.to_toml();
            assert_valid(SchemaKind::Experiment, &text, &point.strategy);
        }
    }
}

/// TOML in the pages is a part of an experiment, a strategy's keys, or a target file.
#[test]
fn toml_of_the_documentation_is_valid() {
    let mut number = 0;
    for file in files("docs/*.md").into_iter().chain(files("README.md")) {
        let page = fs::read_to_string(&file).unwrap();
        for block in page.split("```toml\n").skip(1) {
            let block = block.split("```").next().unwrap();
            let of_strategy = format!("[strategies.one]\n{block}");
            let kinds =
                [(SchemaKind::Base, block), (SchemaKind::Base, &of_strategy), (SchemaKind::Target, block)];
            let found: Vec<String> = kinds.iter().filter_map(|(kind, text)| errors(*kind, text)).collect();
            assert!(found.len() < kinds.len(), "{}:\n{block}\n{}", file.display(), found.join("\n"));
            number += 1;
        }
    }
    assert!(number > 10, "{number} blocks");
}

/// The values that tests try of each key of a strategy, in each place that a strategy's key may have.
#[test]
fn values_of_strategy_keys_are_valid_in_every_notation() {
    for key in KEYS {
        for value in key.values.iter().filter(|value| **value != UNSAID) {
            let name = key.name;
            let settings = [
                format!("[strategies.a]\nset.{name} = {value}\n"),
                format!("[strategies.a]\nset.\"{name}\" = {value}\n"),
                format!("[strategies.a]\nsweep.{name} = [{value}]\n"),
                format!("[[sweep.zip]]\n{name} = [{value}, {value}]\n"),
            ];
            let own = [
                format!("[strategies.a]\n{name} = {value}\n"),
                format!("[defaults]\n{name} = {value}\n"),
                format!("[strategies.a]\nset.strategy.{name} = {value}\n"),
                format!("[sweep.grid]\n\"strategy.{name}\" = [{value}]\n"),
                format!("[[sweep.exclude]]\nstrategy.{name} = {value}\n"),
            ];
            let is_own = STRATEGY_KEYS.contains(&name.split('.').next().unwrap());
            let own = own.iter().filter(|_| is_own);
            settings.iter().chain(own).for_each(|text| assert_valid(SchemaKind::Base, text, name));
        }
    }
    for lines in OPTIMIZERS.iter() {
        assert_valid(SchemaKind::Base, &format!("[train]\n{}\n", lines.join("\n")), lines[0]);
    }
}

/// A folder with a complete experiment, which others extend.
struct Judge(tempfile::TempDir);

impl Judge {
    fn new() -> Judge {
        let folder = tempfile::tempdir().unwrap();
        let base = Tiny::default().with("[strategies.plain]\n");
        fs::write(folder.path().join("base.toml"), base).unwrap();
        Judge(folder)
    }

    /// The errors of the schema, and of the program, about the experiment with this text.
    fn errors(&self, text: &str) -> (Option<String>, Option<String>) {
        let file = self.0.path().join("a.toml");
        let text = format!("extends = \"base.toml\"\n{text}");
        fs::write(&file, &text).unwrap();
        let read = plan::expand(&file, &[], &|_| None);
        (errors(SchemaKind::Experiment, &text), read.err().map(|error| error.to_string()))
    }
}

/// Where a text at the path of a key goes.
fn text_at(path: &str, value: &str) -> String {
    format!("{} = {value}\n", path.replace("NAME", "plain"))
}

/// The path of every declared key of a table that is no element of a list.
fn paths() -> Vec<String> {
    key_reference().into_iter().map(|key| key.path).filter(|path| !path.contains(".groups.")).collect()
}

#[test]
fn wrong_types_are_refused_for_every_key() {
    let (judge, paths) = (Judge::new(), paths());
    assert!(paths.len() > 200, "{}", paths.len());
    for path in paths {
        for value in ["[[[1]]]", "1979-05-27", "{ no-such-key = 1 }"] {
            let text = text_at(&path, value);
            let (schema, program) = judge.errors(&text);
            assert!(schema.is_some(), "the schema accepts {text}");
            assert!(program.is_some(), "the program accepts {text}");
        }
    }
}

#[test]
fn unknown_siblings_are_refused_for_every_key() {
    let judge = Judge::new();
    for path in paths() {
        let text = text_at(&format!("{path}_x"), "1");
        let (schema, program) = judge.errors(&text);
        assert!(schema.is_some(), "the schema accepts {text}");
        assert!(program.is_some(), "the program accepts {text}");
    }
}

/// The schema never refuses a value that the program reads.
#[test]
fn values_that_the_program_reads_are_valid() {
    let values = [
        "\"off\"",
        "true",
        "false",
        "0",
        "1",
        "2",
        "-1",
        "0.5",
        "1.0",
        "-0.5",
        "1e-46",
        "3.4028235677973366e38",
        "3.402823567797336e38",
        "1e-60",
        "65536",
        "16777217",
        "\"x\"",
        "\"\"",
        "\"24 GiB\"",
        "\"24GB\"",
        "\" .5 MiB \"",
        "\"0 B\"",
        "\"24 gib\"",
        "\"25 GB/s\"",
        "\"~/x\"",
        "\"a$$b/${{x\"",
        "\"$HOME/x\"",
        "\"a***\"",
        "\"[a\"",
        "\"{content}\"",
        "[]",
        "[\"x\"]",
        "[\"x\", \"x\"]",
        "[\"mlp\"]",
        "[1.0]",
        "{}",
        "{ a = \"host\", b.c.d = \"device\" }",
    ];
    let (judge, mut accepted, mut wrong) = (Judge::new(), 0, Vec::new());
    for path in paths() {
        for value in values {
            let text = text_at(&path, value);
            let (schema, program) = judge.errors(&text);
            match program {
                None => {
                    accepted += 1;
                    wrong.extend(schema.map(|error| format!("the program reads {text}{error}\n")));
                }
                // Errors of values; rules between keys, and files that do not exist, come later.
                Some(error) if schema.is_none() && is_of_value(&error) && !is_integral(value) => {
                    wrong.push(format!("the schema accepts {text}{error}\n"));
                }
                Some(_) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(accepted > 500, "{accepted}");
}

fn is_of_value(error: &str) -> bool {
    error.lines().next().is_some_and(|line| line.contains("` must be "))
}

/// JSON has one type of numbers: 1.0 is an integer there.
fn is_integral(value: &str) -> bool {
    value.contains("1.0")
}

/// Values of settings that the reader refuses in a strategy's `set` and in sweeps.
#[test]
fn settings_are_checked_in_every_notation() {
    let judge = Judge::new();
    for (good, bad) in [
        ("set.\"train.batch_size\" = 8", "set.\"train.batch_size\" = 0"),
        ("set.train.batch_size = 8", "set.train.batch_sise = 8"),
        ("set.train.\"optimizer.adamw\" = { lr = 1.0 }", "set.train.\"optimizer.adamw\" = { lr = -1.0 }"),
        (
            "set.\"train.optimizer\" = { lion.lr = 1.0 }",
            "set.\"train.optimizer\" = { lion.lr = 1.0, sgd.lr = 1.0 }",
        ),
        ("set.\"model.hf.published\" = \"gpt2\"", "set.\"model.hf\" = \"gpt2\""),
        ("set.\"place.blocks.0\" = \"host\"", "set.\"measure.repeats\" = 2"),
        ("set.evaluation = \"off\"", "set.name = \"x\""),
        ("sweep.\"train.batch_size\" = [4, 8]", "sweep.\"train.batch_size\" = [4, 4]"),
        ("sweep.train.batch_size = [4, 8]", "sweep.train.batch_size = 4"),
        ("sweep.train.optimizer = [{ lion.lr = 1.0 }]", "sweep.train.optimizer = [{ leon.lr = 1.0 }]"),
        ("sweep.keep = [[], [\"logits\"]]", "sweep.keep = [\"logits\"]"),
        ("sweep.recompute = [\"none\", { every = 2 }]", "sweep.recompute = [\"non\"]"),
    ] {
        let text = |line: &str| format!("[strategies.a]\n{line}\n");
        assert_eq!(judge.errors(&text(good)), (None, None), "{good}");
        let (schema, program) = judge.errors(&text(bad));
        assert!(schema.is_some() && program.is_some(), "{bad}: {schema:?} {program:?}");
    }
}

/// Keys that are required, unless another file, a strategy or a sweep may supply them.
#[test]
fn required_keys_may_come_from_elsewhere() {
    let whole = Tiny::default().with("[strategies.plain]\n");
    assert_valid(SchemaKind::Experiment, &whole, "whole");
    let without = |line: &str| {
        assert!(whole.contains(line), "{line}");
        whole.replace(line, "")
    };
    for line in ["heads = 2\n", "batch_size = 4\n", "optimizer.adamw.lr = 1e-3\n", "[strategies.plain]\n"] {
        let partial = without(line);
        assert!(errors(SchemaKind::Experiment, &partial).is_some(), "{line}");
        assert_valid(SchemaKind::Base, &partial, line);
        assert_valid(SchemaKind::Experiment, &format!("extends = \"base.toml\"\n{partial}"), line);
    }
    let swept = without("heads = 2\n") + "[sweep.grid]\n\"model.transformer.heads\" = [2, 4]\n";
    assert_valid(SchemaKind::Experiment, &swept, "swept");
    let inference = without("optimizer.adamw.lr = 1e-3\n") + "[measure]\nwhat = \"inference\"\n";
    assert_valid(SchemaKind::Experiment, &inference, "inference");
    let lora = |strategy: &str| format!("{whole}[strategies.lora]\n{strategy}lora = {{ rank = 4 }}\n");
    assert!(errors(SchemaKind::Experiment, &lora("")).is_some());
    assert_valid(SchemaKind::Experiment, &lora("extends = \"plain\"\n"), "extended");
}

#[test]
fn every_key_has_its_documentation_in_the_schema() {
    let schema = json_schema(SchemaKind::Experiment);
    for key in key_reference() {
        let name = key.path.replace("strategies.NAME", "strategy");
        let text = schema["definitions"][&name]["description"].as_str().unwrap_or_default();
        // Elements of lists are defined in their list.
        assert!(name.contains(".groups.") || text == key.lines().join("\n"), "{name}: {text}");
    }
}

/// Reasons of cases that exist.
#[test]
fn cases_beyond_the_schema_exist() {
    for name in BEYOND.iter().flat_map(|(_, names)| *names) {
        let snapshot = format!("tests/program/snapshots/program__bad_input__{name}.snap");
        assert!(Path::new(&snapshot).exists(), "{name}");
    }
}
