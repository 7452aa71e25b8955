//! `runner sweep --save`: final parameters as Hugging Face's libraries read them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::test_folder::{TestFolder, Tiny, said};
use safetensors::SafeTensors;
use serde_json::{Value, json};

const LLAMA: &str =
    "positions = \"rotary\"\nnorm = \"rms\"\nactivation = \"swiglu\"\nbias = false\nkv_heads = 1\n";

/// An experiment of a small decoder with these keys of the model, and strategies.
fn folder(model: &str, more: &str) -> TestFolder {
    let dir = TestFolder::new();
    let tiny = Tiny { layers: 2, d_model: 16, context: 16, batch_size: 3, ..Tiny::default() };
    let text = tiny.with(more).replace("context = 16\n", &format!("context = 16\n{model}"));
    dir.write("tiny.toml", text);
    dir
}

fn sweep(dir: &TestFolder, file: &str, more: &[&str]) -> String {
    let arguments = [&["sweep", "--device", "cpu", file], more].concat();
    said(&dir.runner(&arguments))
}

fn only(dir: &TestFolder, pattern: &str) -> PathBuf {
    let [found] = <[PathBuf; 1]>::try_from(dir.find(pattern)).unwrap();
    found
}

/// Shape and bytes of a file's tensors, by name.
fn tensors(file: &Path) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let bytes = fs::read(file).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    read.iter()
        .map(|(name, tensor)| (name.to_owned(), (tensor.shape().to_vec(), tensor.data().to_vec())))
        .collect()
}

#[test]
fn saved_checkpoint_holds_the_final_parameters() {
    for model in ["", LLAMA] {
        let dir = folder(model, "[strategies.plain]\n");
        sweep(&dir, "tiny.toml", &["--dump", "dumps", "--save", "saved"]);
        let weights = only(&dir, "saved/*/model.safetensors");
        let config = only(&dir, "saved/*/config.json");
        let text = fs::read_to_string(dir.path("tiny.toml")).unwrap();
        let (before, rest) = text.split_once("[model.transformer]").unwrap();
        let (_, after) = rest.split_once("\n[").unwrap();
        let hf = format!("[model.hf]\nconfig = {config:?}\nweights = {weights:?}\n");
        dir.write("again.toml", format!("{before}{hf}[{after}"));
        sweep(&dir, "again.toml", &["--dump", "again"]);
        let last = tensors(&only(&dir, "dumps/*/final.safetensors"));
        assert!(last == tensors(&only(&dir, "again/*/initial.safetensors")), "{model}");
        // The command does nothing the second time.
        let text = sweep(&dir, "tiny.toml", &["--save", "saved"]);
        assert!(text.contains("exists already"), "{text}");
    }
}

/// The folder of a run that trains these adapters beside a stored base, dumps and saves them, and the saved
/// configuration.
fn saved_adapter(lora: &str) -> (TestFolder, Value) {
    let dir = folder(&format!("{LLAMA}tied = false\n"), "[strategies.plain]\n");
    sweep(&dir, "tiny.toml", &["--dump", "base"]);
    fs::copy(only(&dir, "base/*/final.safetensors"), dir.path("start.safetensors")).unwrap();
    let text = fs::read_to_string(dir.path("tiny.toml")).unwrap();
    let text = text.replace("context = 16\n", "context = 16\nweights = \"start.safetensors\"\n");
    dir.write(
        "tiny.toml",
        text.replace("[strategies.plain]\n", &format!("[strategies.lora]\nlora = {lora}\n")),
    );
    sweep(&dir, "tiny.toml", &["--dump", "dumps", "--save", "saved"]);
    let config = fs::read(only(&dir, "saved/*/adapter_config.json")).unwrap();
    (dir, serde_json::from_slice(&config).unwrap())
}

#[test]
fn saved_adapter_holds_factors_of_parts_and_trained_layers() {
    let (dir, config) = saved_adapter(
        "{ rank = 2, alpha = 6, targets = [\"v_proj\"], rslora = true, dropout = 0.1, trained = [\"embedding\"] }",
    );
    assert_eq!(config["target_modules"], json!(["self_attn.v_proj"]));
    assert_eq!(config["modules_to_save"], json!(["model.embed_tokens"]));
    assert_eq!([&config["use_rslora"], &config["lora_dropout"]], [&json!(true), &json!(0.1)]);
    let last = tensors(&only(&dir, "dumps/*/final.safetensors"));
    let saved = tensors(&only(&dir, "saved/*/adapter_model.safetensors"));
    assert_eq!(saved.len(), 2 * 2 + 1);
    assert_eq!(saved["base_model.model.model.embed_tokens.weight"], last["embedding.table"]);
    let factor = "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight";
    assert_eq!(saved[factor], last["blocks.1.attention.v.lora_B"]);
}

/// Before anything is trained.
#[test]
fn adapters_that_the_library_would_read_otherwise_are_refused() {
    let dir = folder("", "[strategies.plain]\n");
    sweep(&dir, "tiny.toml", &["--dump", "base"]);
    fs::copy(only(&dir, "base/*/final.safetensors"), dir.path("start.safetensors")).unwrap();
    let text = fs::read_to_string(dir.path("tiny.toml")).unwrap();
    let text = text.replace("context = 16\n", "context = 16\nweights = \"start.safetensors\"\n");
    for (lora, reason) in [
        ("targets = [\"mlp\"], trained = [\"embedding\", \"head\"]", "PEFT trains a copy of the embedding"),
        ("targets = [\"attention.q\"]", "the library stacks the parts that have factors"),
    ] {
        let lora = format!("[strategies.lora]\nlora = {{ rank = 2, alpha = 6, {lora} }}\n");
        dir.write("tiny.toml", text.replace("[strategies.plain]\n", &lora));
        let output =
            dir.program(&["sweep", "--device", "cpu", "tiny.toml", "--save", "saved"]).output().unwrap();
        assert!(output.status.code() == Some(2) && said(&output).contains(reason), "{}", said(&output));
        assert!(dir.find("saved/*").is_empty());
    }
}

/// PEFT has factors for queries, keys and values each; here they share the factor A.
#[test]
fn saved_adapter_holds_the_factors_of_stacked_layers() {
    let (dir, config) = saved_adapter("{ rank = 2, alpha = 6, targets = [\"attention.qkv\", \"mlp.out\"] }");
    let modules = ["mlp.down_proj", "self_attn.k_proj", "self_attn.q_proj", "self_attn.v_proj"];
    assert_eq!(config["target_modules"], json!(modules));
    assert_eq!(
        [&config["r"], &config["lora_alpha"], &config["fan_in_fan_out"]],
        [&json!(2), &json!(6.0), &json!(false)]
    );
    let last = tensors(&only(&dir, "dumps/*/final.safetensors"));
    let saved = tensors(&only(&dir, "saved/*/adapter_model.safetensors"));
    assert_eq!(saved.len(), 2 * 2 * 4);
    let of = |module: &str, factor: &str| {
        &saved[&format!("base_model.model.model.layers.1.{module}.lora_{factor}.weight")]
    };
    let mut rows: Vec<u8> = Vec::new();
    for projection in ["q_proj", "k_proj", "v_proj"] {
        let module = format!("self_attn.{projection}");
        assert_eq!(of(&module, "A"), &last["blocks.1.attention.qkv.lora_A"]);
        rows.extend(&of(&module, "B").1);
    }
    assert_eq!(rows, last["blocks.1.attention.qkv.lora_B"].1);
    assert_eq!(of("mlp.down_proj", "B"), &last["blocks.1.mlp.out.lora_B"]);
}

#[test]
fn runs_without_a_checkpoint_are_errors() {
    let plain = "[strategies.plain]\n";
    let lora = "[strategies.lora]\nlora = { rank = 2, alpha = 6, targets = [\"*\"] }\n";
    let inference = "[measure]\nwhat = \"inference\"\n[strategies.plain]\n";
    for (model, strategy, save, reason) in [
        ("norm_placement = \"post\"\n", plain, "saved", "no model family of the library"),
        ("", lora, "saved", "its base is randomly initialized"),
        ("", inference, "saved", "the run trains nothing"),
        ("", plain, "./dumps/../dumps", "--dump and --save name the same folder"),
    ] {
        let dir = folder(model, strategy);
        let command = ["sweep", "--device", "cpu", "tiny.toml", "--dump", "dumps", "--save", save];
        let output = dir.program(&command).output().unwrap();
        assert!(output.status.code() == Some(2) && said(&output).contains(reason), "{}", said(&output));
        assert!(dir.find("results/tiny/*").is_empty(), "nothing is trained");
    }
}

/// Also of a quiet sweep.
#[test]
fn diverged_runs_are_not_saved() {
    let dir = folder("", "[strategies.plain]\nset.\"train.optimizer\" = { sgd = { lr = 1e30 } }\n");
    let text = sweep(&dir, "tiny.toml", &["--save", "saved", "--quiet"]);
    assert!(text.contains("save tiny plain: nothing to save: the run diverged"), "{text}");
    assert!(dir.find("saved/*").is_empty());
}
