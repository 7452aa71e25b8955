//! `runner models`, and models that an experiment names or takes from a folder.

use std::collections::BTreeMap;
use std::fs;

use crate::test_folder::TestFolder;
use device::{DeviceKind, Target};
use plan::Purpose;
use spec::RunConfig;

/// Parameters of the library's models of the same configurations (transformers 5.24.0, on PyTorch's meta device).
const PARAMETERS: [(&str, u64); 39] = [
    ("gpt2", 124_439_808),
    ("gpt2-medium", 354_823_168),
    ("gpt2-large", 774_030_080),
    ("gpt2-xl", 1_557_611_200),
    ("tinyllama-1.1b", 1_100_048_384),
    ("llama-2-7b", 6_738_415_616),
    ("llama-2-13b", 13_015_864_320),
    ("llama-3.1-8b", 8_030_261_248),
    ("llama-3.2-1b", 1_235_814_400),
    ("llama-3.2-3b", 3_212_749_824),
    ("smollm2-135m", 134_515_008),
    ("smollm2-360m", 361_821_120),
    ("mistral-7b", 7_241_732_096),
    ("qwen2.5-0.5b", 494_032_768),
    ("qwen2.5-1.5b", 1_543_714_304),
    ("qwen2.5-7b", 7_615_616_512),
    ("qwen3-0.6b", 596_049_920),
    ("qwen3-8b", 8_190_735_360),
    ("gemma-2-2b", 2_614_341_888),
    ("gemma-2-9b", 9_241_705_984),
    ("gemma-3-1b", 999_885_952),
    ("smollm3-3b", 3_075_098_624),
    ("olmo-2-1b", 1_484_916_736),
    ("olmo-2-7b", 7_298_617_344),
    ("olmo-3-7b", 7_298_011_136),
    ("pythia-160m", 162_322_944),
    ("pythia-1.4b", 1_414_647_808),
    ("pythia-6.9b", 6_857_302_016),
    ("phi-2", 2_779_683_840),
    ("falcon-7b", 6_921_720_704),
    ("falcon-40b", 41_303_293_952),
    ("gemma-2b", 2_506_172_416),
    ("granite-3.3-2b", 2_533_539_840),
    ("phi-3-mini-4k", 3_821_079_552),
    ("starcoder2-3b", 3_030_371_328),
    ("gpt-neo-1.3b", 1_315_575_808),
    ("mixtral-8x7b", 46_702_792_704),
    ("qwen3-30b-a3b", 30_532_122_624),
    ("olmoe-1b-7b", 6_919_161_856),
];

const CHECKPOINTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/vectors/hugging_face");

const REST: &str = "
[data.synthetic]
[train]
batch_size = 2
optimizer.sgd = { lr = 1e-3 }
[strategies.plain]
";

#[test]
fn built_in_models_have_the_parameters_of_the_library() {
    let output = TestFolder::new().runner(&["models", "--json"]);
    let models: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let found: BTreeMap<&str, u64> = models
        .iter()
        .map(|model| {
            (model["name"].as_str().expect("a name"), model["parameters"].as_u64().expect("a number"))
        })
        .collect();
    assert_eq!(found, BTreeMap::from(PARAMETERS));
}

/// The first run of an experiment with this model.
fn config(dir: &TestFolder, model: &str) -> RunConfig {
    dir.configs(&format!("{model}{REST}")).remove(0)
}

/// A card would refuse each launch. Its memory is planned all the same.
#[test]
fn experts_are_planned_for_a_card_and_trained_on_a_cpu() {
    let dir = TestFolder::new();
    dir.write("a.toml", format!("model.hf = {{ config = \"{CHECKPOINTS}/mixtral\", context = 16 }}\n{REST}"));
    let reason = |kind, purpose| {
        let experiment = plan::expand(&dir.path("a.toml"), &[], &|_| None).unwrap();
        let target = Target { kind, ..testing::target() };
        let plan = plan::plan(experiment, &target, purpose, &|_| Some("digest".to_owned())).unwrap();
        plan.runs[0].config.as_ref().err().cloned()
    };
    assert_eq!(reason(DeviceKind::Cpu, Purpose::Train), None);
    assert_eq!(reason(DeviceKind::Cuda, Purpose::Predict), None);
    let refused = reason(DeviceKind::Cuda, Purpose::Train).unwrap();
    assert!(refused.starts_with("this version trains mixtures of experts on the CPU only"), "{refused}");
}

/// The error of an experiment with this model.
fn error(dir: &TestFolder, model: &str) -> String {
    dir.write("a.toml", format!("{model}{REST}"));
    plan::expand(&dir.path("a.toml"), &[], &|_| None).expect_err("invalid").to_string()
}

#[test]
fn built_in_model_replaces_a_configuration() {
    let dir = TestFolder::new();
    let short = config(&dir, "model.hf = \"gpt2-medium\"");
    assert_eq!(short.model.transformer().map(|model| (model.layers, model.d_model)), Some((24, 1024)));
    assert_eq!(config(&dir, "[model.hf]\npublished = \"gpt2-medium\""), short);
    let error = error(&dir, "model.hf = \"Llama-3.2-1b\"");
    assert!(error.contains("no built-in configuration \"Llama-3.2-1b\""), "{error}");
    assert!(error.contains("did you mean \"llama-3.2-1b\"?") && error.contains("a.toml:1"), "{error}");
}

/// A short notation replaces the table of the file that is extended.
#[test]
fn short_notation_overrides_the_other_key() {
    let dir = TestFolder::new();
    let base = format!("[model.hf]\nconfig = \"{CHECKPOINTS}/gpt2\"\ncontext = 16\n{REST}");
    dir.write("base.toml", base);
    let config = dir.configs("extends = \"base.toml\"\nmodel.hf = \"gpt2\"\n").remove(0);
    assert_eq!(config.model.transformer().map(|model| model.context), Some(16));
    assert_eq!(config.model.weights(), None);
}

#[test]
fn keys_that_choose_no_configuration_are_errors() {
    let dir = TestFolder::new();
    let name = error(&dir, "[model.hf]\nconfig = \"gpt2\"\ncontext = 64");
    assert!(name.contains("write published = \"gpt2\" for the built-in configuration"), "{name}");
    let both = error(&dir, "[model.hf]\npublished = \"gpt2\"\nconfig = \"config.json\"");
    assert!(both.contains("has both `config` and `published`: choose one"), "{both}");
    let none = error(&dir, "[model.hf]\ncontext = 64");
    assert!(none.contains("`model.hf.config` is missing") && none.contains("`published = "), "{none}");
}

/// The folder of a model stands for its configuration and weights; that of a tokenizer for its file.
#[test]
fn folder_stands_for_configuration_and_weights() {
    let dir = TestFolder::new();
    let folder = format!("{CHECKPOINTS}/llama");
    let files =
        format!("[model.hf]\nconfig = \"{folder}/config.json\"\nweights = \"{folder}/model.safetensors\"");
    let expected = config(&dir, &files);
    assert_eq!(config(&dir, &format!("model.hf = \"{folder}\"")), expected);
    assert_eq!(config(&dir, &format!("[model.hf]\nconfig = \"{folder}\"")), expected);
    let alone = config(&dir, &format!("model.hf = \"{folder}/config.json\""));
    assert_eq!(alone.model.weights(), None, "the configuration alone");

    fs::create_dir(dir.path("mine")).expect("a folder");
    fs::copy(format!("{folder}/config.json"), dir.path("mine/config.json")).expect("a copy");
    assert_eq!(config(&dir, "model.hf = \"mine\""), alone, "without weights");
    dir.write("mine/pytorch_model.bin", b"PK\x03\x04........");
    dir.write("a.toml", format!("model.hf = \"./mine\"{REST}"));
    let refused = dir.program(&["plan", "a.toml"]).output().expect("it starts");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("pytorch_model.bin is a checkpoint of PyTorch (zip)"), "{said}");
    assert!(said.contains("save_pretrained("), "{said}");

    fs::create_dir(dir.path("gpt2")).expect("a folder");
    let error = error(&dir, "model.hf = \"gpt2\"");
    assert!(error.contains("a built-in configuration, and a folder beside this file"), "{error}");
    assert!(error.contains("write ./gpt2"), "{error}");
    let text = "model.hf = \"gpt2-medium\"\n[data.text]\npaths = [\"text.txt\"]\ntokens = { file = \"gpt2\" }\n[train]\nbatch_size = 2\noptimizer.sgd = { lr = 1e-3 }\n[strategies.plain]\n";
    let config = dir.configs(text).remove(0);
    assert!(format!("{:?}", config.data).contains("gpt2/tokenizer.json"), "{:?}", config.data);
}

/// Too large to train in a test: only planned.
#[test]
fn families_are_planned() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/experiments/long/families.toml");
    let output = TestFolder::new().runner(&["plan", file, "--target", "4070", "--filter", "autocast"]);
    let plan = String::from_utf8_lossy(&output.stdout);
    for name in ["gpt2-medium", "tinyllama-1.1b", "llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "gemma-2-2b"]
    {
        assert!(plan.contains(&format!("\npublished {name}\n")), "a group for {name}: {plan}");
    }
}
