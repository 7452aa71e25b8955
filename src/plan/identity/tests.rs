use std::collections::BTreeSet;

use super::*;
use crate::expand;
use device::DeviceKind;
use spec::{Model, Transformer, variants};
use testing::choice::Choice;
use testing::keys::{KEYS, Key, UNSAID, meets_needs, position};
use testing::{choice, sample, small_with, target};

/// The shortest experiment: all required keys.
const SHORTEST: &str = r#"
[model.transformer]
layers = 2
d_model = 64
heads = 2
context = 32
[data.text]
paths = ["/nowhere"]
[train]
batch_size = 6
optimizer.adamw.lr = 1e-3
[evaluation]
[strategies.plain]
"#;

/// Settings added to the shortest experiment: each variant of a choice, and settings that change the defaults of
/// others.
const EXPERIMENTS: &[&[&str]] = &[
    &[],
    &["train.optimizer.adafactor.lr = 1e-2"],
    &["train.optimizer.adam.lr = 1e-3"],
    &["train.optimizer.lion.lr = 1e-4"],
    &["train.optimizer.muon = { lr = 1e-2, adamw = { lr = 1e-3 } }"],
    &["train.optimizer.sgd.lr = 0.1"],
    &["train.schedule.linear = {}"],
    &["train.schedule.cosine = {}"],
    &["train.schedule.warmup_stable_decay.decay = 1"],
    &["data.text.tokens.file = '/nowhere'"],
    &["data.tokens.paths = ['/nowhere']"],
    &["data.synthetic = {}"],
    &[
        "model = { sequential = { input = [4], layers = [{ residual = { layers = ['layer_norm'] } }, { linear = { out = 9 } }] } }",
        "data = { random = {} }",
    ],
    &[
        "model = { sequential = { input = [4], layers = [{ linear = 9 }] } }",
        "data = { tensors = { input = '/nowhere', targets = '/nowhere' } }",
    ],
    &[
        "model = { sequential = { input = [4], layers = [{ linear = 9 }] } }",
        "data = { idx = { images = '/nowhere', labels = '/nowhere' } }",
    ],
    &[
        "model = { sequential = { input = [3072], layers = [{ linear = 10 }] } }",
        "data = { cifar = { paths = ['/nowhere'] } }",
    ],
    &[
        "model = { sequential = { input = [3, 8, 8], layers = [{ linear = 9 }] } }",
        "data = { images = { folder = '/nowhere' } }",
    ],
    &[
        "model.transformer.positions = 'rotary'",
        "model.transformer.rotary.scaling = { factor = 8, original = 64 }",
    ],
    &["precision = 'fp16'"],
    &["precision = 'fp16'", "loss_scale = { dynamic = {} }"],
];

/// The overrides and runs of these experiments.
fn experiments() -> Vec<(Vec<String>, RunConfig)> {
    let read = |overrides: &&[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|setting| setting.to_string()).collect();
        let config = read(SHORTEST, &overrides).unwrap();
        (overrides, config)
    };
    EXPERIMENTS.iter().map(read).collect()
}

/// The one run of an experiment.
fn read(experiment: &str, overrides: &[String]) -> Result<RunConfig, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    std::fs::write(&file, experiment).unwrap();
    let mut experiment = expand(&file, overrides, &|_| None).map_err(|error| error.to_string())?;
    experiment.points.remove(0).config
}

fn id(config: &RunConfig) -> String {
    configuration_id(config, "data")
}

/// A run as TOML, with all its keys.
fn full_toml(config: &RunConfig) -> String {
    let toml = config.to_toml("run", "plain").replace("[strategies.plain]", "[strategy]");
    toml.lines().skip(1).map(|line| format!("{line}\n")).collect()
}

/// Each key of a run's TOML as a setting like `train.seed = 0`.
fn settings(toml: &str) -> Vec<String> {
    let mut table = String::new();
    let mut settings = Vec::new();
    for line in toml.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix('[') {
            Some(name) => table = format!("{}.", name.trim_end_matches(']')),
            None => settings.push(format!("{table}{line}")),
        }
    }
    settings
}

#[test]
fn key_at_its_default_does_not_change_the_id() {
    for (overrides, config) in experiments() {
        for setting in settings(&full_toml(&config)) {
            let with_it = [overrides.as_slice(), std::slice::from_ref(&setting)].concat();
            assert_eq!(id(&read(SHORTEST, &with_it).unwrap()), id(&config), "{setting}");
        }
    }
}

#[test]
fn every_value_of_a_strategy_key_changes_the_id() {
    for (key, Key { name, values, .. }) in KEYS.iter().enumerate() {
        assert!(values.len() > 1, "`{name}` has one value");
        let explicit = (0..values.len()).filter(|&value| values[value] != UNSAID);
        let mut compared = 0;
        for value in explicit.clone() {
            // With the keys that this value requires, if the other value is valid with them.
            let own = choice(&[(key, value)]);
            for other in explicit.clone().filter(|&other| other != value) {
                let mut changed = own.clone();
                changed.0[key] = other;
                if (0..KEYS.len()).all(|key| meets_needs(KEYS, &changed.0, key)) {
                    let ids = [&own, &changed].map(|choice| id(&small_with(choice)));
                    assert_ne!(ids[0], ids[1], "values {value} and {other} of `{name}` share an id");
                    compared += 1;
                }
            }
        }
        assert!(compared > 0, "no two values of `{name}` were compared");
    }
}

#[test]
fn id_depends_on_the_data_but_not_on_its_path() {
    let config = read(SHORTEST, &[]).unwrap();
    let elsewhere = read(SHORTEST, &["data.text.paths = ['/elsewhere']".to_owned()]).unwrap();
    assert_ne!(config, elsewhere);
    assert_eq!(id(&config), id(&elsewhere));
    assert_ne!(configuration_id(&config, "other data"), id(&config));
}

#[test]
fn known_template_and_its_text_share_an_id() {
    let id = |template: &str| {
        let more = ["jsonl = 'messages'".to_owned(), format!("template = {template}")];
        id(&read(SHORTEST, &more.map(|line| format!("data.text.{line}"))).unwrap())
    };
    assert_eq!(id("'chatml'"), id(r#""<|im_start|>{role}\n{content}<|im_end|>\n""#));
    assert_ne!(id("'chatml'"), id("'{content}'"));
}

/// Every hashed line is necessary: without it, the run is different or invalid.
#[test]
fn no_key_at_its_default_is_hashed() {
    let shortest = experiments().into_iter().map(|(_, config)| config);
    let drawn = sample(20).into_iter().chain([Choice::plain()]).map(|choice| small_with(&choice));
    // The number of tokens found in the data is not a key, and the family is not hashed.
    let drawn = drawn.map(|config| {
        let model = match config.model.clone() {
            Model::Transformer(model) => Model::Transformer(Transformer { family: None, ..model }),
            other => other,
        };
        RunConfig { data_len: None, lengths: None, all_packed: None, model, ..config }
    });
    for config in drawn.chain(shortest) {
        let identity = config.identity();
        let lines: Vec<&str> = identity.lines().collect();
        assert_eq!(reread(&lines), Ok(config.clone()), "{identity}");
        let needed = |line: &&str| !line.is_empty() && !line.starts_with('[');
        for (index, line) in lines.iter().enumerate().filter(|(_, line)| needed(line)) {
            let less: Vec<&str> = [&lines[..index], &lines[index + 1..]].concat();
            assert_ne!(reread(&less), Ok(config.clone()), "`{line}` is a default");
        }
    }
}

/// Reads hashed lines as an experiment, with paths added to the data.
fn reread(lines: &[&str]) -> Result<RunConfig, String> {
    let paths = |table: &str| format!("{table}\npaths = [\"/nowhere\"]");
    let [text, tokens] = ["[data.text]", "[data.tokens]"];
    let text = lines.join("\n").replace(text, &paths(text)).replace(tokens, &paths(tokens));
    let cifar = "[data.cifar]";
    let text = text.replace(cifar, &paths(cifar));
    let images = "[data.images]";
    let text = text.replace(images, &format!("{images}\nfolder = \"/nowhere\""));
    let text = [("[data.tensors]", "input", "targets"), ("[data.idx]", "images", "labels")].into_iter().fold(
        text,
        |text, (table, input, targets)| {
            let files = format!("{table}\n{input} = \"/nowhere\"\n{targets} = \"/nowhere\"");
            text.replace(table, &files)
        },
    );
    let text = text.replace("tokens = {}", "tokens = { file = \"/nowhere\" }");
    let strategy = if text.contains("[strategy]") { "" } else { "\n[strategy]" };
    read(&format!("{text}{strategy}").replace("[strategy]", "[strategies.plain]"), &[])
}

/// Every key that has a default. New keys are added here.
const KNOWN_DEFAULTS: &[&str] = &[
    "model.transformer.vocabulary = 256",
    "model.transformer.embedding_scale = \"off\"",
    "model.transformer.kv_heads = 2",
    "model.transformer.head_dim = 32",
    "model.transformer.causal = true",
    "model.transformer.window = \"off\"",
    "model.transformer.global_every = \"off\"",
    "model.transformer.global_first = \"off\"",
    "model.transformer.attention_scale = \"off\"",
    "model.transformer.window_attention_scale = \"off\"",
    "model.transformer.attention_softcap = \"off\"",
    "model.transformer.qk_norm = false",
    "model.transformer.qk_norm_over = \"head\"",
    "model.transformer.d_ff = 256",
    "model.transformer.activation = \"gelu_tanh\"",
    "model.transformer.experts = \"off\"",
    "model.transformer.norm = \"layer\"",
    "model.transformer.norm_epsilon = 1e-5",
    "model.transformer.residual_scale = \"off\"",
    "model.transformer.norm_placement = \"pre\"",
    "model.transformer.sub_layers = \"sequential\"",
    "model.transformer.positions = \"learned\"",
    "model.transformer.rotary = { base = 10000.0, channels = \"off\", scaling = \"off\", divisors = [], window_base = \"off\", skip_every = \"off\" }",
    // With scaling.
    "model.transformer.rotary = { base = 10000.0, channels = \"off\", scaling = { factor = 8.0, low = 1.0, high = 4.0, original = 64 }, divisors = [], window_base = \"off\", skip_every = \"off\" }",
    "model.transformer.bias = true",
    "model.transformer.qkv_bias = true",
    "model.transformer.tied = true",
    "model.transformer.head_bias = false",
    "model.transformer.logit_scale = \"off\"",
    "model.transformer.logit_softcap = \"off\"",
    "model.transformer.dropout = 0.0",
    "model.transformer.initial_deviation = 0.02",
    "model.transformer.family = \"off\"",
    "data.text.tokens = \"bytes\"",
    "data.text.tokens = { file = \"/nowhere\", special = true, end = \"off\" }",
    "data.text.jsonl = \"off\"",
    "data.text.template = \"off\"",
    "data.text.mask = \"none\"",
    "data.text.documents = \"joined\"",
    "data.text.pad_to = \"context\"",
    "data.text.pad_to_multiple_of = 1",
    "data.text.evaluate = []",
    "data.text.split = 0.9",
    "data.tokens.format = \"u16\"",
    "data.tokens.header = 0",
    "data.tokens.evaluate = []",
    "data.tokens.split = 0.9",
    "model.sequential.loss = \"cross_entropy\"",
    "model.sequential.weights = \"off\"",
    "data.tensors.files = []",
    "data.tensors.scale = 1.0",
    "data.tensors.evaluate = \"off\"",
    "data.tensors.split = 0.9",
    "data.idx.mean = []",
    "data.idx.std = []",
    "data.idx.crop = \"off\"",
    "data.idx.flip = false",
    "data.idx.evaluate = \"off\"",
    "data.idx.split = 0.9",
    "data.cifar.classes = 10",
    "data.cifar.mean = []",
    "data.cifar.std = []",
    "data.cifar.crop = \"off\"",
    "data.cifar.flip = false",
    "data.cifar.evaluate = []",
    "data.cifar.split = 0.9",
    "data.images.mean = []",
    "data.images.std = []",
    "data.images.crop = \"off\"",
    "data.images.flip = false",
    "data.images.evaluate = \"off\"",
    "data.images.split = 0.9",
    "data.random.samples = \"off\"",
    "data.random.seed = 0",
    "data.synthetic.tokens = 256",
    "data.synthetic.successors = 4",
    "data.synthetic.seed = 0",
    "train.clip_norm = \"off\"",
    "train.seed = 0",
    "train.shuffle = false",
    "train.last_batch = \"drop\"",
    "train.optimizer.adamw.beta1 = 0.9",
    "train.optimizer.adamw.beta2 = 0.999",
    "train.optimizer.adamw.epsilon = 1e-8",
    "train.optimizer.adamw.weight_decay = 0.01",
    "train.optimizer.adamw.decay = \"matrices\"",
    "train.optimizer.adamw.groups = []",
    "train.optimizer.adafactor.beta2_decay = -0.8",
    "train.optimizer.adafactor.epsilon = 1.1920928955078125e-7",
    "train.optimizer.adafactor.scale_epsilon = 0.001",
    "train.optimizer.adafactor.clip_threshold = 1.0",
    "train.optimizer.adafactor.weight_decay = 0.0",
    "train.optimizer.adafactor.decay = \"matrices\"",
    "train.optimizer.adafactor.groups = []",
    "train.optimizer.adam.beta1 = 0.9",
    "train.optimizer.adam.beta2 = 0.999",
    "train.optimizer.adam.epsilon = 1e-8",
    "train.optimizer.adam.weight_decay = 0.0",
    "train.optimizer.adam.decay = \"matrices\"",
    "train.optimizer.adam.groups = []",
    "train.optimizer.lion.beta1 = 0.9",
    "train.optimizer.lion.beta2 = 0.99",
    "train.optimizer.lion.weight_decay = 0.0",
    "train.optimizer.lion.decay = \"matrices\"",
    "train.optimizer.lion.groups = []",
    "train.optimizer.muon.adamw = { lr = 0.001, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01, decay = \"matrices\", groups = [] }",
    "train.optimizer.muon.momentum = 0.95",
    "train.optimizer.muon.nesterov = true",
    "train.optimizer.muon.weight_decay = 0.1",
    "train.optimizer.muon.ns_steps = 5",
    "train.optimizer.muon.epsilon = 1e-7",
    "train.optimizer.muon.adjust = \"original\"",
    "train.optimizer.muon.groups = []",
    "train.optimizer.sgd.momentum = 0.0",
    "model.transformer.family = \"off\"",
    "model.transformer.weights = \"off\"",
    "train.optimizer.sgd.nesterov = false",
    "train.optimizer.sgd.weight_decay = 0.0",
    "train.optimizer.sgd.decay = \"matrices\"",
    "train.optimizer.sgd.groups = []",
    "train.schedule.constant.warmup = 0",
    "train.schedule.linear.warmup = 0",
    "train.schedule.linear.total = \"off\"",
    "train.schedule.linear.floor = 0.0",
    "train.schedule.cosine.warmup = 0",
    "train.schedule.cosine.total = \"off\"",
    "train.schedule.cosine.floor = 0.0",
    "train.schedule.warmup_stable_decay.warmup = 0",
    "train.schedule.warmup_stable_decay.total = \"off\"",
    "train.schedule.warmup_stable_decay.floor = 0.0",
    "evaluation.every = 10",
    "evaluation.batches = 1",
    "evaluation.batch_size = \"off\"",
    "evaluation.collect = \"off\"",
    "measure.what = \"training\"",
    "measure.seeds = \"same\"",
    "measure.warmup_steps = 3",
    "measure.steps = 20",
    "strategy.accumulate = 1",
    "strategy.params = \"fp32\"",
    "strategy.master_weights = true",
    "strategy.gradient_dtype = \"fp32\"",
    "strategy.residual = \"fp32\"",
    "strategy.precision = \"fp32\"",
    "strategy.loss_scale = \"off\"",
    // With fp16.
    "strategy.loss_scale = { dynamic = { initial = 65536.0, backoff = 0.5, growth = 2.0, interval = 2000 } }",
    "strategy.optimizer_state = \"fp32\"",
    "strategy.quantize = { from = 4096, embeddings = false }",
    "strategy.rounding = \"nearest\"",
    "strategy.recompute = \"none\"",
    "strategy.freeze = []",
    "strategy.lora = \"off\"",
    "strategy.place = {}",
    "strategy.loss_chunks = 1",
    "strategy.conv_workspace = \"16 MiB\"",
    "strategy.release = \"eager\"",
    "strategy.keep = []",
    "strategy.leak = \"off\"",
    "strategy.gradients = \"free\"",
    "strategy.update = \"after_backward\"",
    "strategy.allocator = \"arena\"",
    "strategy.empty_cache = \"never\"",
    "strategy.attention = \"fused\"",
    "strategy.evaluation_pass = \"no_grad\"",
    "strategy.init = \"device\"",
    "strategy.offload = { parameters = false, optimizer = false, activations = false, pinned = true, ahead = 1 }",
    "strategy.parallel = { data = 1, shard = \"none\", reduce = \"micro\", keep_gathered = false, ahead = 1 }",
    "strategy.loader = { workers = 0, prefetch = 0, pinned = true, source = \"stream\", dtype = \"i32\", delay = 0.0 }",
    "strategy.input_dtype = \"fp32\"",
    "strategy.graph = false",
];

#[test]
fn defaults_are_those_of_stored_runs() {
    let mut defaults = BTreeSet::new();
    for (_, config) in experiments() {
        let hashed = settings(&config.identity());
        defaults
            .extend(settings(&full_toml(&config)).into_iter().filter(|setting| !hashed.contains(setting)));
    }
    for known in KNOWN_DEFAULTS {
        assert!(defaults.contains(*known), "`{known}` is no longer a default: count the change in DEFAULTS");
    }
    for default in defaults {
        let is_path = default.contains(".paths = ") || default.ends_with(" = \"/nowhere\"");
        let is_known = KNOWN_DEFAULTS.contains(&default.as_str()) || is_path;
        assert!(is_known, "the default `{default}` is missing in KNOWN_DEFAULTS");
    }
}

#[test]
fn experiments_contain_every_variant() {
    let written: String = experiments().iter().map(|(_, config)| full_toml(config)).collect();
    for table in variants() {
        assert!(written.contains(&format!("[{table}]\n")), "`{table}` is missing in EXPERIMENTS");
    }
}

/// An id that changes here changes for every stored run. Note an intended change in the change log.
#[test]
fn ids_are_those_of_stored_runs() {
    let read = |overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|setting| setting.to_string()).collect();
        id(&read(SHORTEST, &overrides).unwrap())
    };
    let mut drawn = small_with(&choice(&[(0, 1), (position(KEYS, "loss_scale"), 3)]));
    drawn.train.batch_size = 6;
    let configurations =
        [read(&[]), read(&["train.optimizer.sgd = { lr = 0.1, momentum = 0.9 }"]), id(&drawn)];
    assert_eq!(configurations, ["729d9ff9f66f3ced", "85e8b05ef111e175", "9d13713676cef0fa"]);

    let cpu = Target { kind: DeviceKind::Cpu, threads: 2, ..target() };
    let card = Target { kind: DeviceKind::Cuda, capability: Some("9.0".to_owned()), ..cpu.clone() };
    assert_eq!(
        [cpu, card].map(|target| run_id("configuration", &target)),
        ["e97f4153f5c13faa", "0a79e56fd376fc05"]
    );
}

/// New fields must be skipped at their defaults: `#[serde(default, skip_serializing_if = ...)]`.
#[test]
fn hashed_target_fields_are_those_of_stored_runs() {
    let written = serde_json::to_value(target()).unwrap();
    let hashed: BTreeSet<&str> = written.as_object().unwrap().keys().map(String::as_str).collect();
    let known =
        ["alignment", "context", "kind", "limited", "memory", "name", "page", "product_workspace", "threads"];
    assert_eq!(hashed, BTreeSet::from(known));
}

#[test]
fn id_does_not_depend_on_the_context_memory() {
    let context = |bytes| Target { context: Bytes(bytes), ..target() };
    assert_eq!(run_id("a", &context(0)), run_id("a", &context(500 << 20)));
    let assumed = Target { figures: Figures::Assumed, ..target() };
    assert_eq!(run_id("a", &assumed), run_id("a", &target()));
    assert_ne!(run_id("a", &target()), run_id("a", &target().with_memory(Bytes(1))));
}
