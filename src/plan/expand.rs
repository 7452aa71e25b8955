//! Sweep axes x strategies = points, each resolved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::sweep::{Place, Variant, places, variants};
use super::{kept, layers};
use device::{DeviceKind, Limits};
use spec::{Document, Environment, Problem, Repeats, RunConfig, Setting, Sources, Span};

/// One experiment file, expanded.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    pub name: String,
    pub file: PathBuf,
    /// The strategy that ratios are against.
    pub baseline: String,
    /// The kind of device it makes sense on, if only one.
    pub requires: Option<DeviceKind>,
    /// `[target]`
    pub limits: Limits,
    pub repeats: Repeats,
    /// Swept keys, in the order of the file: those of `[sweep]`, then those inside strategies.
    pub axes: Vec<String>,
    /// Keys that the command line sets in every run, and to what.
    pub overrides: Vec<(String, String)>,
    /// In table order: the strategies of the first axis point, then those of the next.
    pub points: Vec<Point>,
    /// Where keys were written, to blame them for what is found out later.
    pub sources: Sources,
}

impl Experiment {
    /// Says of each run what is known of its data: how many tokens there are, where these lie in a row.
    pub fn know_tokens(&mut self, tokens: impl Fn(&RunConfig) -> Option<usize>) {
        let configs = self.points.iter_mut().flat_map(|point| {
            let others = point.without.iter_mut().map(|(_, config)| config);
            point.config.iter_mut().chain(others)
        });
        configs.for_each(|config| config.tokens = tokens(config));
    }
}

/// One point of the expanded sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The strategy's label, `name/key=value` for one of a sweep inside a strategy.
    pub strategy: String,
    /// A value for each of the experiment's axes that this point lies on, as written in TOML.
    pub axes: Vec<(String, String)>,
    /// Complete, or why this combination makes no sense.
    pub config: Result<RunConfig, String>,
    /// The keys that the strategy set itself (not `[defaults]`) to something else than they would be without
    /// it, each with the configuration as it would be without that one key.
    pub without: Vec<(String, RunConfig)>,
    pub(super) origin: Origin,
}

/// What to blame for what is found out of a point later.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Origin {
    /// The strategy as it stands in the file, without the values of a sweep inside it.
    pub(super) strategy: String,
    /// Where it says what is computed again, if it does.
    pub(super) recompute: Option<Span>,
}

/// Expands an experiment file. Overrides are `key=value`: those of a run's keys (`train.batch_size`, `accumulate`)
/// are applied last, to every run; `defaults.accumulate`, which strategies still win over, `strategies.NAME.KEY`,
/// `sweep.KEY`, `measure.repeats`, `target.memory` and the like change the file. Values are TOML, or bare words.
///
/// # Errors
///
/// All that is wrong in the file, in those that it extends or in the overrides, whether a run uses it or not; and where
/// strategies cannot run at any point of the sweep.
pub fn expand(
    file: &Path,
    overrides: &[String],
    environment: &Environment<'_>,
) -> Result<Experiment, spec::Error> {
    let document = Document::read(file, overrides, environment)?;
    let points = points(&document).map_err(|problems| document.sources.error(&problems))?;
    Ok(Experiment {
        name: document.name.clone(),
        file: file.to_path_buf(),
        baseline: document.baseline.clone(),
        requires: document.requires,
        limits: document.limits,
        repeats: document.repeats,
        axes: axes(&document),
        overrides: document.overrides().map(named).collect(),
        points,
        sources: document.sources,
    })
}

fn axes(document: &Document<'_>) -> Vec<String> {
    let shared = document.sweep.axes().map(|axis| &axis.key);
    let included = document.sweep.include.iter().flat_map(|case| &case.settings).map(|setting| &setting.key);
    let own = document.strategies.iter().flat_map(|strategy| &strategy.axes).map(|axis| &axis.key);
    let mut names = Vec::new();
    for name in shared.chain(included).chain(own).map(ToString::to_string) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn points(document: &Document<'_>) -> Result<Vec<Point>, Vec<Problem>> {
    let variants = variants(document);
    let mut points = Vec::new();
    let mut outcomes: BTreeMap<&str, Outcome> = BTreeMap::new();
    for place in places(document, &variants)? {
        let variant = &variants[place.variant];
        let outcome = outcomes.entry(&variant.strategy.name).or_default();
        points.push(point(document, variant, &place, outcome));
    }
    let never_run: Vec<Problem> = outcomes.into_values().flat_map(Outcome::never_runs).collect();
    if never_run.is_empty() { Ok(points) } else { Err(never_run) }
}

/// Whether a strategy can run anywhere.
#[derive(Default)]
struct Outcome {
    runs: bool,
    /// What was wrong where it could not first.
    problems: Vec<Problem>,
}

impl Outcome {
    fn never_runs(self) -> Vec<Problem> {
        if self.runs { Vec::new() } else { self.problems }
    }
}

fn point(document: &Document<'_>, variant: &Variant<'_>, place: &Place<'_>, outcome: &mut Outcome) -> Point {
    let own: Vec<&Setting> = variant.strategy.settings.iter().chain(variant.values.iter().copied()).collect();
    let resolved = resolve(document, place.values.iter().chain(&own).copied());
    let without = match &resolved {
        Ok((config, _)) => without(document, place, &own, config),
        Err(_) => Vec::new(),
    };
    outcome.runs |= resolved.is_ok();
    let mut recompute = None;
    let config = resolved.map(|(config, span)| {
        recompute = span;
        config
    });
    let config = config.map_err(|problems| {
        let reason = problems.first().map(Problem::reason).unwrap_or_default();
        if outcome.problems.is_empty() {
            outcome.problems = problems;
        }
        reason
    });
    let axes = place.values.iter().chain(&variant.values).map(|value| named(value)).collect();
    let origin = Origin { strategy: variant.strategy.name.clone(), recompute };
    Point { strategy: variant.label.clone(), axes, config, without, origin }
}

/// The run with these settings, with what is said of its model's layers and values, and where it says what is computed again.
fn resolve<'s>(
    document: &Document<'_>,
    settings: impl IntoIterator<Item = &'s Setting>,
) -> Result<(RunConfig, Option<Span>), Vec<Problem>> {
    let (config, tree) = document.resolve(settings)?;
    let recompute = tree.find("strategy.recompute").map(|entry| entry.span());
    Ok((kept::resolve(layers::resolve(config, &tree)?, &tree)?, recompute))
}

/// A key and its value, as written in TOML.
fn named(setting: &Setting) -> (String, String) {
    (setting.key.to_string(), setting.node.value.to_string())
}

/// See [`Point::without`]. A key that the run cannot do without is left out.
fn without(
    document: &Document<'_>,
    place: &Place<'_>,
    own: &[&Setting],
    config: &RunConfig,
) -> Vec<(String, RunConfig)> {
    let without = |index: usize| {
        let others = own[..index].iter().chain(&own[index + 1..]);
        let (other, _) = resolve(document, place.values.iter().chain(others).copied()).ok()?;
        (other != *config).then(|| (own[index].key.to_string(), other))
    };
    (0..own.len()).filter_map(without).collect()
}
