//! `init`: each written experiment is valid, and misuse has its error.

use std::fs;

use crate::schema;
use crate::test_folder::TestFolder;
use spec::{SchemaKind, built_in_models};

/// A model of the transformers library.
const CONFIG: &str = r#"{
  "model_type": "llama", "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "vocab_size": 256
}"#;

const DEEPSPEED: &str = r#"{
  "train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
  "gradient_clipping": 0.5,
  "bf16": { "enabled": true },
  "optimizer": { "type": "AdamW", "params": { "lr": 2e-5, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": "auto" } },
  "scheduler": {
    "type": "WarmupDecayLR",
    "params": { "warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 10, "total_num_steps": 100 }
  },
  "zero_optimization": {
    "stage": 3, "offload_optimizer": { "device": "cpu", "pin_memory": true }, "offload_param": { "device": "nvme" },
    "overlap_comm": true
  },
  "activation_checkpointing": { "partition_activations": true, "cpu_checkpointing": true },
  "steps_per_print": 10, "wall_clock_breakdown": false, "curriculum_learning": { "enabled": true }
}"#;

const OWN: [&str; 8] = ["--layers", "2", "--d-model", "32", "--heads", "2", "--context", "16"];

fn folder() -> TestFolder {
    let dir = TestFolder::new();
    fs::create_dir(dir.path("model")).unwrap();
    dir.write("model/config.json", CONFIG);
    dir.write("ds.json", DEEPSPEED);
    dir.write("ids.bin", [1u8, 0].repeat(4000));
    dir
}

/// What `init` prints: standard output and standard error.
#[track_caller]
fn init(dir: &TestFolder, args: &[&str]) -> (String, String) {
    let output = dir.runner(&[&["init"], args].concat());
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// The error of a misuse.
#[track_caller]
fn error(dir: &TestFolder, args: &[&str]) -> String {
    let output = dir.program(&[&["init"], args].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

/// Asserts that an experiment is valid for editors and for the program.
#[track_caller]
fn assert_usable(dir: &TestFolder, file: &str) {
    let text = fs::read_to_string(dir.path(file)).unwrap();
    assert_eq!(schema::errors(SchemaKind::Experiment, &text), None, "{text}");
    dir.runner(&["check", file]);
    dir.runner(&["plan", "--device", "cpu", file]);
}

#[test]
fn every_combination_of_flags_writes_a_usable_experiment() {
    let dir = folder();
    let mut number = 0;
    for model in [&OWN[..], &["model"], &["model/config.json", "--context", "16"]] {
        for data in
            [&["--synthetic"][..], &["--text", "text.txt"], &["--tokens", "ids.bin", "--vocabulary", "300"]]
        {
            let is_own = model.len() == OWN.len();
            // Sizes are those of an own model.
            let data = if is_own { data } else { &data[..data.len().min(2)] };
            for more in [
                &["--strategies", "fp32,lora + checkpoint"][..],
                &["--deepspeed", "ds.json", "--memory", "8GiB"],
            ] {
                number += 1;
                let file = format!("{number}.toml");
                init(&dir, &[model, data, more, &["-o", &file]].concat());
                assert_usable(&dir, &file);
            }
        }
    }
    assert_eq!(number, 18);
}

#[test]
fn every_built_in_model_and_remedy_is_written() {
    let dir = folder();
    for model in built_in_models().unwrap() {
        let (text, _) = init(&dir, &[&model.name, "--synthetic", "--strategies", "qlora"]);
        assert_eq!(schema::errors(SchemaKind::Experiment, &text), None, "{text}");
        dir.write("a.toml", text);
        dir.runner(&["check", "--resolved", "a.toml"]);
    }
    for choice in plan::catalogue(true, 1) {
        let (text, _) = init(&dir, &[&OWN[..], &["--synthetic", "--strategies", choice.name]].concat());
        dir.write("a.toml", text);
        dir.runner(&["check", "a.toml"]);
    }
}

/// Without names, the strategies are those that `fits` finds best, split into micro-batches that fit.
#[test]
fn proposed_strategies_fit_the_card() {
    let dir = folder();
    let args =
        ["llama-3.2-1b", "--synthetic", "--batch", "64", "--context", "1024", "--target", "rtx-4090-24gb"];
    init(&dir, &[&args[..], &["-o", "a.toml"]].concat());
    let text = fs::read_to_string(dir.path("a.toml")).unwrap();
    assert!(
        text.contains("\naccumulate = ") && text.contains("runner plan a.toml --target rtx-4090-24gb"),
        "{text}"
    );
    assert_eq!(schema::errors(SchemaKind::Experiment, &text), None, "{text}");
    let plan = dir.runner(&["plan", "a.toml", "--target", "rtx-4090-24gb", "--format", "csv"]);
    let rows = String::from_utf8(plan.stdout).unwrap();
    let lora = rows.lines().find(|row| row.contains("lora")).unwrap();
    assert!(!lora.contains("out of memory") && rows.lines().count() > 4, "{rows}");
}

#[test]
fn written_experiment_is_commented() {
    let dir = folder();
    let args =
        ["--synthetic", "--strategies", "fp32,autocast + checkpoint,bf16 + 8bit", "--schema", "s.json"];
    let (text, notes) = init(&dir, &[&OWN[..], &args].concat());
    assert_eq!(notes, "");
    insta::assert_snapshot!("own", text);
}

#[test]
fn deepspeed_keys_are_translated_or_listed() {
    let dir = folder();
    let (text, notes) =
        init(&dir, &["model", "--synthetic", "--strategies", "fp32", "--deepspeed", "ds.json"]);
    insta::assert_snapshot!("deepspeed", text);
    for note in notes.lines() {
        let note = note.strip_prefix("ds.json: ").unwrap();
        assert!(text.contains(&format!("# - {note}\n")), "{note}");
    }
}

/// The translation of single keys.
#[test]
fn each_deepspeed_key_has_its_equivalent() {
    let dir = folder();
    for (json, lines) in [
        (r#"{"train_batch_size": 12}"#, &["batch_size = 12"][..]),
        (
            r#"{"train_batch_size": 12, "train_micro_batch_size_per_gpu": 5}"#,
            &["batch_size = 12", "accumulate = 3"],
        ),
        (r#"{"train_micro_batch_size_per_gpu": 3}"#, &["batch_size = 3"]),
        (
            r#"{"train_batch_size": "auto", "gradient_accumulation_steps": 2}"#,
            &["batch_size = 8", "accumulate = 2"],
        ),
        (r#"{"gradient_clipping": 0}"#, &["batch_size = 8"]),
        (r#"{"bf16": {"enabled": true}}"#, &["params = \"bf16\""]),
        (r#"{"bf16": {"enabled": "auto"}}"#, &["bf16.enabled = \"auto\""]),
        (r#"{"fp16": {"enabled": true, "loss_scale": 128}}"#, &["params = \"fp16\"", "loss_scale = 128.0"]),
        (
            r#"{"fp16": {"enabled": true, "initial_scale_power": 10, "loss_scale_window": 500, "hysteresis": 2}}"#,
            &["loss_scale = { dynamic = { initial = 1024.0, interval = 500 } }", "fp16.hysteresis = 2"],
        ),
        (r#"{"torch_autocast": {"enabled": true, "dtype": "bfloat16"}}"#, &["precision = \"bf16\""]),
        (
            r#"{"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"}}"#,
            &["gradient_dtype = \"fp32\""],
        ),
        (
            r#"{"optimizer": {"type": "Adam", "params": {"lr": 0.1}}}"#,
            &["[train.optimizer.adamw]", "lr = 0.1"],
        ),
        (
            r#"{"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}}"#,
            &["[train.optimizer.adam]", "lr = 0.0001"],
        ),
        (
            r#"{"optimizer": {"type": "Lion", "params": {"lr": 1e-4, "betas": [0.9, 0.99]}}}"#,
            &["[train.optimizer.lion]", "beta2 = 0.99"],
        ),
        (
            r#"{"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": true}}}"#,
            &["[train.optimizer.sgd]", "momentum = 0.9", "nesterov = true"],
        ),
        (
            r#"{"optimizer": {"type": "OneBitAdam"}}"#,
            &["optimizer.type = \"OneBitAdam\"", "[train.optimizer.adamw]"],
        ),
        (
            r#"{"optimizer": {"type": "AdamW"}, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5, "warmup_type": "linear"}}}"#,
            &["[train.schedule.constant]", "warmup = 5", "lr = 0.001  # scheduler.params.warmup_max_lr"],
        ),
        (
            r#"{"optimizer": {"type": "AdamW"}, "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 50, "cos_min_ratio": 0.1, "warmup_num_steps": 4}}}"#,
            &["[train.schedule.cosine]", "total = 50", "floor = 0.1"],
        ),
        (
            r#"{"optimizer": {"type": "AdamW", "params": {"lr": 0.1, "torch_adam": true}}}"#,
            &["weight_decay = 0.01"],
        ),
        (
            r#"{"zero_optimization": {"stage": 2}}"#,
            &["zero_optimization.stage = 2: this experiment uses one device"],
        ),
        (r#"{"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}"#, &["offload.optimizer = true"]),
        (r#"{"activation_checkpointing": {"number_checkpoints": 2}}"#, &["recompute = { segments = 2 }"]),
        (
            r#"{"amp": {"enabled": true}, "unheard_of": 1}"#,
            &["amp: Apex", "unheard_of = 1: no key has this effect"],
        ),
    ] {
        dir.write("one.json", json);
        let args = [
            "model",
            "--synthetic",
            "--strategies",
            "fp32",
            "--deepspeed",
            "one.json",
            "-o",
            "one.toml",
            "--force",
        ];
        init(&dir, &args);
        dir.runner(&["check", "one.toml"]);
        let text = fs::read_to_string(dir.path("one.toml")).unwrap();
        for line in lines {
            assert!(text.contains(line), "{json}: {line} is not in\n{text}");
        }
    }
}

#[test]
fn paths_are_relative_to_the_written_file() {
    let dir = folder();
    fs::create_dir_all(dir.path("runs/small")).unwrap();
    let args =
        ["model/config.json", "--text", "./text.txt", "--strategies", "fp32", "-o", "runs/small/a.toml"];
    init(&dir, &args);
    let text = fs::read_to_string(dir.path("runs/small/a.toml")).unwrap();
    assert!(
        text.contains("paths = [\"../../text.txt\"]")
            && text.contains("config = \"../../model/config.json\""),
        "{text}"
    );
    assert_usable(&dir, "runs/small/a.toml");
}

#[test]
fn tokenizer_of_the_model_is_used() {
    let dir = folder();
    let tokenizer = r#"{ "added_tokens": [], "normalizer": null, "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": { "1": 0, "2": 1, "?": 2 }, "unk_token": "?" } }"#;
    dir.write("model/tokenizer.json", tokenizer);
    init(&dir, &["model", "--text", "text.txt", "--strategies", "fp32", "-o", "a.toml"]);
    let text = fs::read_to_string(dir.path("a.toml")).unwrap();
    assert!(text.contains("file = \"model/tokenizer.json\""), "{text}");
    assert_usable(&dir, "a.toml");
}

#[test]
fn existing_files_are_kept_unless_forced() {
    let dir = folder();
    dir.write("a.toml", "mine");
    let args = ["model", "--synthetic", "--strategies", "fp32", "-o", "a.toml"];
    assert_eq!(
        error(&dir, &args),
        "error: a.toml exists\n = help: use another name, or --force to replace it\n"
    );
    assert_eq!(fs::read_to_string(dir.path("a.toml")).unwrap(), "mine");
    init(&dir, &[&args[..], &["--force"]].concat());
    assert_usable(&dir, "a.toml");
}

#[test]
fn misuse_has_its_error() {
    let dir = folder();
    dir.write("bad.json", "{\"model_type\": \"llama\",\n  \"hidden_size\": }");
    dir.write("list.json", "[]");
    dir.write("wrong.json", "{\"gradient_clipping\": \"much\", \"optimizer\": 3, \"train_batch_size\": 1.5}");
    for (args, parts) in [
        (
            &[][..],
            &[
                "needs a model: MODEL, or --layers, --d-model and --heads; and data: --text, --tokens or --synthetic",
            ][..],
        ),
        (&["model"], &["`init` needs data: --text, --tokens or --synthetic"]),
        (&["--synthetic", "--layers", "2"], &["needs all of --layers, --d-model and --heads"]),
        (&["model", "gpt2", "--synthetic"], &["one model, not both `model` and `gpt2`"]),
        (&["gpt3", "--synthetic"], &["no built-in configuration \"gpt3\"", "did you mean \"gpt2\"?"]),
        (&["./bad.json", "--synthetic"], &["it is not JSON", "line 2 column 18"]),
        (&["model", "--synthetic", "--deepspeed", "bad.json"], &["bad.json is not JSON", "line 2 column 18"]),
        (&["model", "--synthetic", "--deepspeed", "list.json"], &["must be a JSON object"]),
        (&["model", "--synthetic", "--deepspeed", "none.json"], &["cannot read none.json"]),
        (
            &["model", "--synthetic", "--deepspeed", "wrong.json"],
            &[
                "`gradient_clipping` must be a number of at least 0, not \"much\"",
                "`optimizer` must be an object, not 3",
                "`train_batch_size` must be a whole number, not 1.5",
            ],
        ),
        (
            &["model", "--synthetic", "--deepspeed", "ds.json", "--batch", "3"],
            &["both set the batch size", "remove --batch"],
        ),
        (&["model", "--layers", "2", "--synthetic"], &["cannot be used with"]),
        (&["model", "--text", "text.txt", "--synthetic"], &["cannot be used with"]),
        (&["model", "--text", "none*.txt"], &["no file matches `none*.txt`"]),
        (&["model", "--tokens", "none.bin"], &["no file matches `none.bin`"]),
        (
            &["--layers", "2", "--d-model", "16", "--heads", "2", "--tokens", "ids.bin"],
            &["--tokens needs --vocabulary"],
        ),
        (
            &["--layers", "2", "--d-model", "16", "--heads", "3", "--synthetic", "--strategies", "fp32"],
            &["does not divide"],
        ),
        (
            &["model", "--synthetic", "--strategies", "fp32,chekpoint"],
            &["no remedy `chekpoint`", "did you mean `checkpoint`?"],
        ),
        (&["model", "--synthetic", "--strategies", "lora + qlora"], &["which exclude each other"]),
        (&["model", "--synthetic", "--strategies", "checkpoint,fp32+checkpoint"], &["is named twice"]),
        (&["model", "--synthetic", "--target", "rtx-4091"], &["no card is known by that name"]),
        (&["model", "--synthetic", "--batch", "0"], &["invalid value '0'"]),
        (
            &["model", "--synthetic", "--strategies", "fp32", "--name", "a/b"],
            &["not a valid experiment name"],
        ),
        (&["model", "--synthetic", "--force"], &["--output <FILE>"]),
    ] {
        let error = error(&dir, args);
        for part in parts {
            assert!(error.contains(part), "{args:?}: {part} is not in\n{error}");
        }
    }
}
