//! Remedies for a run's peak memory: changes of one strategy key each, with their predictions.

use std::path::Path;

use super::Compiler;
use super::expand::{Base, expand_generated};
use super::feasible::unknown_sizes;
use super::search::tables;
use base::parallel;
use compile::Violation;
use device::Target;
use memory::{Prediction, RunSchedule, predict};
use pytorch::Machine;
use spec::{Collect, Environment, ExperimentInput, KeywordEnum as _, RunConfig};

/// One change of a strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The setting, as written in a strategy: `recompute = "block"`.
    pub setting: String,
    /// Its effect on the training result.
    pub result: &'static str,
    /// The changed run.
    pub config: RunConfig,
}

/// A change that lowers the peak, and its prediction for one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Remedy {
    pub change: Change,
    pub prediction: Prediction,
}

/// Changes of a run in PyTorch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TorchRemedies {
    /// Changes that lower the peak, the most effective first.
    pub lower: Vec<(Change, pytorch::Forecast)>,
    /// Changes that are not predicted.
    pub not_predicted: Vec<Change>,
}

pub(super) const BITWISE: &str = "bitwise equal";
pub(super) const ROUNDING: &str = "equal up to rounding";
pub(super) const PRECISION: &str = "losses within 1%";
pub(super) const STORAGE: &str = "losses within 3%";
pub(super) const ADAPTERS: &str = "trains adapters only";

/// A key of a strategy with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedKey {
    key: &'static str,
    value: String,
    /// Keys that change with it.
    also: &'static [(&'static str, &'static str)],
    /// Its effect on the training result.
    pub result: &'static str,
}

impl ChangedKey {
    /// Another batch size, which is another training.
    pub fn batch_size(size: usize) -> ChangedKey {
        ChangedKey::training("set.\"train.batch_size\"", size)
    }

    /// Another context length: the key of each way to describe a model, of which one is valid.
    pub fn contexts(context: usize) -> [ChangedKey; 2] {
        ["set.\"model.hf.context\"", "set.\"model.transformer.context\""]
            .map(|key| ChangedKey::training(key, context))
    }

    fn training(key: &'static str, value: usize) -> ChangedKey {
        ChangedKey { key, value: value.to_string(), also: &[], result: "another training" }
    }

    /// Whether it changes this key.
    pub fn is(&self, key: &str) -> bool {
        self.key == key
    }

    /// Whether it moves values to the host.
    pub fn is_offload(&self) -> bool {
        self.key.starts_with("offload.")
    }

    /// As written in a strategy: `recompute = "block"`.
    pub fn setting(&self) -> String {
        self.lines().join(", ")
    }

    /// The same, a line for each key.
    pub fn lines(&self) -> Vec<String> {
        let also = self.also.iter().map(|(key, value)| format!("{key} = {value}"));
        [format!("{} = {}", self.key, self.value)].into_iter().chain(also).collect()
    }
}

/// A key, its new value, and the effect on the training result.
type KeyChange = (&'static str, fn(&RunConfig) -> String, &'static str);

/// The changes, each tried by itself. Those that undo a memory-hungry choice come first.
const CHANGES: &[KeyChange] = &[
    ("leak", |_| "\"off\"".into(), BITWISE),
    ("keep", |_| "[]".into(), BITWISE),
    ("release", |_| "\"eager\"".into(), BITWISE),
    ("evaluation_pass", |_| "\"no_grad\"".into(), BITWISE),
    ("set.\"evaluation.collect\"", to_host, BITWISE),
    ("gradients", |_| "\"free\"".into(), BITWISE),
    ("allocator", |_| "\"arena\"".into(), BITWISE),
    ("attention", |_| "\"fused\"".into(), ROUNDING),
    ("recompute", |_| "\"block\"".into(), BITWISE),
    ("accumulate", |config| (2 * config.strategy.accumulate).to_string(), ROUNDING),
    ("loss_chunks", |config| (8.max(2 * config.strategy.loss_chunks)).to_string(), ROUNDING),
    ("update", |_| "\"in_backward\"".into(), BITWISE),
    ("offload.parameters", |_| "true".into(), BITWISE),
    ("offload.optimizer", |_| "true".into(), ROUNDING),
    ("offload.activations", |_| "true".into(), BITWISE),
    ("optimizer_state", |_| "\"bf16\"".into(), STORAGE),
    ("optimizer_state", |_| "\"8bit\"".into(), STORAGE),
    ("precision", |_| "\"bf16\"".into(), PRECISION),
    ("params", |_| "\"bf16\"".into(), STORAGE),
];

/// Further changes, for combinations.
const MORE_CHANGES: &[KeyChange] =
    &[("recompute", |_| "[\"norm\"]".into(), BITWISE), ("recompute", |_| "[\"mlp\"]".into(), BITWISE)];

/// With 16-bit parameters alone, as `model.to(torch.bfloat16)` has it.
const PURE_BF16: &[(&str, &str)] = &[("residual", "\"bf16\""), ("master_weights", "false")];

/// Changes that train low-rank factors instead of the model.
const LORA_CHANGES: &[KeyChange] = &[
    ("lora", |_| lora("base = \"bf16\", tables = \"bf16\""), ADAPTERS),
    ("lora", |_| lora("base = \"nf4\", double_quantization = true"), ADAPTERS),
];

/// `lora` with the usual rank, on all linear layers.
pub(super) fn lora(base: &str) -> String {
    format!("{{ rank = 16, alpha = 32, targets = [\"all-linear\"], {base} }}")
}

/// How far the training result may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tolerance {
    Bitwise,
    Rounding,
    Precision,
    Storage,
    /// Low-rank factors may be trained instead of the model.
    Any,
}

impl Tolerance {
    fn of(result: &str) -> Tolerance {
        match result {
            BITWISE => Tolerance::Bitwise,
            ROUNDING => Tolerance::Rounding,
            PRECISION => Tolerance::Precision,
            STORAGE => Tolerance::Storage,
            _ => Tolerance::Any,
        }
    }
}

/// Keys whose change undoes a choice that costs memory and saves no time.
const UNDONE: [&str; 7] =
    ["leak", "keep", "release", "evaluation_pass", "set.\"evaluation.collect\"", "gradients", "allocator"];

impl ChangedKey {
    /// Whether the change undoes a choice that costs memory and saves no time.
    pub fn is_undo(&self) -> bool {
        UNDONE.contains(&self.key)
    }
}

/// The changed keys for combinations: of each group, a combination has at most one. Micro-batches are not among them. Cards
/// before compute capability 8.0 have fp16 units only.
pub fn changed_keys(config: &RunConfig, tolerance: Tolerance, has_bf16: bool) -> Vec<Vec<ChangedKey>> {
    let mut groups: Vec<Vec<ChangedKey>> = Vec::new();
    for (key, value, result) in CHANGES.iter().chain(MORE_CHANGES).chain(LORA_CHANGES) {
        if *key == "accumulate" || Tolerance::of(result) > tolerance {
            continue;
        }
        let Some(value) = suited(key, value(config), has_bf16) else { continue };
        let changed = ChangedKey { key, value, also: &[], result };
        let pure = (*key == "params").then(|| ChangedKey { also: PURE_BF16, ..changed.clone() });
        match groups.iter_mut().find(|group| group.iter().any(|other| other.key == *key)) {
            Some(group) => group.push(changed),
            None => groups.push([changed].into_iter().chain(pure).collect()),
        }
    }
    groups
}

/// A value for a card, which may have fp16 units only. `None`: parameters in fp16 alone would lose their updates.
fn suited(key: &str, value: String, has_bf16: bool) -> Option<String> {
    match key {
        _ if has_bf16 => Some(value),
        "params" => None,
        "precision" | "lora" => Some(value.replace("bf16", "fp16")),
        _ => Some(value),
    }
}

/// The same outputs, collected in host memory.
fn to_host(config: &RunConfig) -> String {
    config.collect().map_or("\"off\"".into(), |collect| {
        let Collect { what, to: _, concatenate } = collect;
        format!("{{ what = \"{}\", to = \"host\", concatenate = {concatenate} }}", what.keyword())
    })
}

/// The changes of one run of an experiment, for a card with or without bf16. `number` is the run's index. Invalid changes are
/// skipped. `know` sets what is known of a run's data.
pub fn changes(
    file: &Path,
    overrides: &[String],
    environment: &Environment<'_>,
    number: usize,
    has_bf16: bool,
    know: &dyn Fn(&mut RunConfig),
) -> Vec<Change> {
    let changed = |keys: Vec<ChangedKey>| {
        let (input, base) = (ExperimentInput::File(file), Base::Run(number));
        let experiment = expand_generated(input, overrides, environment, base, &tables(&[keys], None));
        // A change that makes the run invalid is not a remedy.
        let mut config = experiment.ok()?.points.pop()?.config.ok()?;
        know(&mut config);
        Some(config)
    };
    let Some(own) = changed(Vec::new()) else { return Vec::new() };
    let change = |(key, value, result): &KeyChange| {
        let key = ChangedKey { key, value: suited(key, value(&own), has_bf16)?, also: &[], result };
        let config = changed(vec![key.clone()])?;
        let is_remedy = config != own && unknown_sizes(&config).is_none();
        is_remedy.then(|| Change { setting: key.setting(), result, config })
    };
    CHANGES.iter().filter_map(change).collect()
}

/// The changes that lower the peak of a run, the most effective first.
///
/// # Errors
/// A violation of a program's invariants: a mistake in a pass.
pub fn remedies(config: &RunConfig, changes: Vec<Change>, target: &Target) -> Result<Vec<Remedy>, Violation> {
    let peak_now = predicted(config, target)?.device.steady_peak().live.total();
    let remedies = parallel::map(changes, |change| {
        Ok(Remedy { prediction: predicted(&change.config, target)?, change })
    });
    let mut remedies = remedies.into_iter().collect::<Result<Vec<Remedy>, Violation>>()?;
    remedies.retain(|remedy| remedy.peak() < peak_now);
    remedies.sort_by_key(Remedy::peak);
    Ok(remedies)
}

/// The changes that lower the peak of a run in PyTorch, whose forecast is `now`.
pub fn torch_remedies(now: &pytorch::Forecast, changes: Vec<Change>, machine: &Machine) -> TorchRemedies {
    let mut remedies = TorchRemedies::default();
    for change in changes {
        match machine.run(&change.config).map(|run| run.forecast()) {
            Ok(forecast) => remedies.lower.push((change, forecast)),
            Err(_) => remedies.not_predicted.push(change),
        }
    }
    let peak = |forecast: &pytorch::Forecast| forecast.peak().allocated;
    remedies.lower.retain(|(_, forecast)| peak(forecast) < peak(now));
    remedies.lower.sort_by_key(|(_, forecast)| peak(forecast));
    remedies
}

impl Remedy {
    /// Peak of the device's live bytes.
    pub fn peak(&self) -> u64 {
        self.prediction.device.steady_peak().live.total()
    }
}

fn predicted(config: &RunConfig, target: &Target) -> Result<Prediction, Violation> {
    let mut compiler = Compiler::new(target);
    let own = target.of_rank(config.ranks());
    Ok(predict(&compiler.compile(config)?.program, &own, RunSchedule::of(config)))
}
