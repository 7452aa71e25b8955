//! Remedies for a run's peak memory: changes of one strategy key each, with their predictions.

use std::path::Path;

use super::Compiler;
use super::expand::{Experiment, Point, expand_all};
use super::feasible::unknown_sizes;
use base::parallel;
use compile::Violation;
use device::Target;
use memory::{Prediction, RunSchedule, predict};
use pytorch::Machine;
use spec::{Collect, Environment, KeywordEnum as _, RunConfig};

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

const BITWISE: &str = "bitwise equal";
const ROUNDING: &str = "equal up to rounding";
const PRECISION: &str = "losses within 1%";
const STORAGE: &str = "losses within 3%";

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
    ("offload", |_| "{ parameters = true }".into(), BITWISE),
    ("offload", |_| "{ optimizer = true }".into(), ROUNDING),
    ("offload", |_| "{ activations = true }".into(), BITWISE),
    ("optimizer_state", |_| "\"bf16\"".into(), STORAGE),
    ("optimizer_state", |_| "\"8bit\"".into(), STORAGE),
    ("precision", |_| "\"bf16\"".into(), PRECISION),
    ("params", |_| "\"bf16\"".into(), STORAGE),
];

/// The same outputs, collected in host memory.
fn to_host(config: &RunConfig) -> String {
    config.collect().map_or("\"off\"".into(), |collect| {
        let Collect { what, to: _, concatenate } = collect;
        format!("{{ what = \"{}\", to = \"host\", concatenate = {concatenate} }}", what.keyword())
    })
}

/// The changes of one run of an experiment. `number` is the run's index. Each change acts as `--set
/// strategies.NAME.KEY=VALUE`; invalid ones are skipped. `know` sets what is known of a run's data.
pub fn changes(
    file: &Path,
    overrides: &[String],
    environment: &Environment<'_>,
    number: usize,
    know: &dyn Fn(&mut RunConfig),
) -> Vec<Change> {
    let expanded = |overrides: &[String]| {
        // A change that makes the run invalid is not a remedy.
        expand_all(file, overrides, environment).ok()
    };
    let Some((now, experiment)) =
        expanded(overrides).and_then(|experiment| Some((experiment.points.get(number)?.clone(), experiment)))
    else {
        return Vec::new();
    };
    let Ok(mut config) = now.config.clone() else { return Vec::new() };
    know(&mut config);
    let config = &config;
    let strategy = &now.source.strategy;
    let changed = |(key, value, result): &KeyChange| {
        let value = value(config);
        let change = format!("strategies.{strategy:?}.{key}={value}");
        let with = [overrides, &[change]].concat();
        let changed = expanded(&with)?;
        let mut config = same_point(&experiment, changed, &now, number)?;
        know(&mut config);
        if unknown_sizes(&config).is_some() {
            return None;
        }
        Some(Change { setting: format!("{key} = {value}"), result, config })
    };
    CHANGES.iter().filter_map(changed).filter(|change| change.config != *config).collect()
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

/// The run at the same point of the changed experiment.
fn same_point(before: &Experiment, after: Experiment, now: &Point, number: usize) -> Option<RunConfig> {
    let is_alike = before.points.len() == after.points.len();
    let point = after.points.into_iter().nth(number).filter(|_| is_alike)?;
    (point.strategy == now.strategy && point.axes == now.axes).then_some(point.config.ok()?)
}

fn predicted(config: &RunConfig, target: &Target) -> Result<Prediction, Violation> {
    let mut compiler = Compiler::new(target);
    Ok(predict(&compiler.compile(config)?.program, target, RunSchedule::of(config)))
}
