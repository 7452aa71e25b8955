//! Expands an experiment file: sweep axes x strategies = points, each with its resolved configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::sweep::{SweepPoint, Variant, sweep_points, variants};
use super::{kept, layers};
use base::rates::BytesPerSecond;
use device::{DeviceKind, Limits};
use spec::{
    Document, Environment, ExperimentInput, PlanKeys, Problem, Repeats, Resolved, RunConfig, Setting,
    Sources, Span, WrittenStrategy,
};

/// One experiment file, expanded.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    pub name: String,
    pub file: PathBuf,
    /// The strategy that ratios refer to.
    pub baseline: String,
    /// The kind of device that the experiment requires, if any.
    pub requires: Option<DeviceKind>,
    /// `[target]`
    pub limits: Limits,
    /// `[plan]`
    pub plan: PlanKeys,
    /// `[target] link`: the rate of the link between a card and its host.
    pub link: Option<BytesPerSecond>,
    pub repeats: Repeats,
    /// Swept keys, in the order of the file: those of `[sweep]`, then those inside strategies.
    pub axes: Vec<String>,
    /// Keys and values that the command line sets in every run.
    pub overrides: Vec<(String, String)>,
    /// In table order: the strategies of the first axis point, then those of the next.
    pub points: Vec<Point>,
    /// Strategies that are invalid at every point of the sweep, with the problems at the first.
    pub(super) never_valid: Vec<(String, Vec<Problem>)>,
    /// Where keys were written, for errors that are found later.
    pub sources: Sources,
}

impl Experiment {
    /// Sets what is known of each run's data once it was opened.
    pub fn set_data_properties(&mut self, know: impl Fn(&mut RunConfig)) {
        let configs = self.points.iter_mut().flat_map(|point| {
            let others = point.without.iter_mut().map(|(_, config)| config);
            point.config.iter_mut().chain(others)
        });
        configs.for_each(know);
    }

    /// Fails if a strategy with a wanted point is invalid at every point of the sweep.
    ///
    /// # Errors
    /// The problems of all such strategies.
    pub fn check(&self, is_wanted: impl Fn(&Point) -> bool) -> Result<(), spec::Error> {
        let is_wanted = |strategy: &str| {
            self.points.iter().any(|point| point.source.strategy == strategy && is_wanted(point))
        };
        let wanted = self.never_valid.iter().filter(|(strategy, _)| is_wanted(strategy));
        let problems: Vec<Problem> = wanted.flat_map(|(_, problems)| problems).cloned().collect();
        if problems.is_empty() { Ok(()) } else { Err(self.sources.error(&problems)) }
    }

    /// Fails if an input of a wanted run was not read completely, so that training might differ from what is declared.
    ///
    /// # Errors
    /// The problems of all such inputs.
    pub fn check_unread(&self, is_wanted: impl Fn(&Point) -> bool) -> Result<(), spec::Error> {
        let problems = self.unread(is_wanted);
        if problems.is_empty() { Ok(()) } else { Err(self.sources.error(&problems)) }
    }

    /// The same problems, and settings without effect, each as a text.
    pub fn warnings(&self, is_wanted: impl Fn(&Point) -> bool) -> Vec<String> {
        let wanted = self.points.iter().filter(|point| is_wanted(point));
        let problems = wanted.flat_map(|point| point.unread.iter().chain(&point.unneeded));
        self.sources.texts(&problems.cloned().collect::<Vec<_>>())
    }

    fn unread(&self, is_wanted: impl Fn(&Point) -> bool) -> Vec<Problem> {
        self.points.iter().filter(|point| is_wanted(point)).flat_map(|point| &point.unread).cloned().collect()
    }
}

/// One point of the expanded sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The strategy's label, `name/key=value` for one of a sweep inside a strategy.
    pub strategy: String,
    /// A value for each of the experiment's axes that this point lies on, as written in TOML.
    pub axes: Vec<(String, String)>,
    /// The complete configuration, or why this combination is invalid.
    pub config: Result<RunConfig, String>,
    /// The keys that the strategy itself (not `[defaults]`) changes, each with the configuration without that one key.
    pub without: Vec<(String, RunConfig)>,
    /// Problems of inputs that were not read completely.
    pub(super) unread: Vec<Problem>,
    /// Problems of settings without effect.
    pub(super) unneeded: Vec<Problem>,
    pub(super) source: StrategySource,
}

/// The place in the file that errors found later point at.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StrategySource {
    /// The strategy's name in the file, without the values of its own axes.
    pub(super) strategy: String,
    /// The span of its `recompute` key, if it has one.
    pub(super) recompute: Option<Span>,
}

/// Expands an experiment file, as [`expand_all`] does.
///
/// # Errors
/// Those of `expand_all`, and strategies that are invalid at every point of the sweep.
pub fn expand(
    file: &Path,
    overrides: &[String],
    environment: &Environment<'_>,
) -> Result<Experiment, spec::Error> {
    let experiment = expand_all(file, overrides, environment)?;
    experiment.check(|_| true)?;
    Ok(experiment)
}

/// Expands an experiment file, with all strategies: [`Experiment::check`] refuses those that are never valid. Overrides
/// are `key=value`: those of a run's keys (`train.batch_size`, `accumulate`) are applied last, to every run;
/// `defaults.accumulate`, which strategies still win over, `strategies.NAME.KEY`, `sweep.KEY`, `measure.repeats`,
/// `target.memory` and the like change the file. Values are TOML, or bare words.
///
/// # Errors
///
/// All mistakes in the file, in the files that it extends and in the overrides, used by a run or not.
pub fn expand_all(
    file: &Path,
    overrides: &[String],
    environment: &Environment<'_>,
) -> Result<Experiment, spec::Error> {
    let document = Document::read(ExperimentInput::File(file), overrides, environment)?;
    let (points, never_valid) = points(&document).map_err(|problems| document.sources.error(&problems))?;
    Ok(Experiment { never_valid, axes: axes(&document), ..experiment(document, file, points) })
}

fn experiment(document: Document<'_>, file: &Path, points: Vec<Point>) -> Experiment {
    Experiment {
        name: document.name.clone(),
        file: file.to_path_buf(),
        baseline: document.baseline.clone(),
        requires: document.requires,
        limits: document.limits,
        plan: document.plan,
        link: document.link,
        repeats: document.repeats,
        axes: Vec::new(),
        overrides: document.overrides().map(named).collect(),
        points,
        never_valid: Vec::new(),
        sources: document.sources,
    }
}

/// What generated strategies start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The keys outside `[defaults]` and the strategies, with the first values of the sweep.
    Plain,
    /// The run with this index.
    Run(usize),
}

/// Expands an experiment with generated strategies (`[strategies.NAME]` tables) in place of its own, at one point of its
/// sweep. A strategy that is invalid has its reason; the first one is the baseline.
///
/// # Errors
/// As `expand_all`; and mistakes in the generated text.
pub fn expand_generated(
    input: ExperimentInput<'_>,
    overrides: &[String],
    environment: &Environment<'_>,
    base: Base,
    strategies: &str,
) -> Result<Experiment, spec::Error> {
    let mut document = Document::read(input, overrides, environment)?;
    let settings = base_settings(&document, base).map_err(|problems| document.sources.error(&problems))?;
    if base == Base::Plain {
        document.drop_defaults();
    }
    let written = document.generated_strategies(strategies)?;
    let points = written.iter().map(|strategy| generated_point(&document, strategy, &settings)).collect();
    let baseline = written.first().map_or_else(String::new, |strategy| strategy.name.clone());
    Ok(Experiment { baseline, ..experiment(document, input.path(), points) })
}

fn base_settings(document: &Document<'_>, base: Base) -> Result<Vec<Setting>, Vec<Problem>> {
    let variants = variants(document);
    let points = sweep_points(document, &variants)?;
    let point = match base {
        Base::Plain => points.first(),
        Base::Run(index) => points.get(index),
    };
    let Some(SweepPoint { variant, values }) = point else { return Ok(Vec::new()) };
    let Variant { strategy, values: own, .. } = &variants[*variant];
    let settings = match base {
        Base::Plain => values.iter().copied().filter(|value| !value.is_of_strategy()).cloned().collect(),
        Base::Run(_) => {
            values.iter().copied().chain(&strategy.settings).chain(own.iter().copied()).cloned().collect()
        }
    };
    Ok(settings)
}

fn generated_point(document: &Document<'_>, strategy: &WrittenStrategy, base: &[Setting]) -> Point {
    let resolved = resolve(document, &strategy.extending(base.to_vec()).settings);
    let (config, unread, unneeded) = match resolved {
        Ok(Resolved { config, unread, unneeded, .. }) => (Ok(config), unread, unneeded),
        Err(problems) => {
            (Err(problems.first().map(Problem::reason).unwrap_or_default()), Vec::new(), Vec::new())
        }
    };
    let source = StrategySource { strategy: strategy.name.clone(), recompute: None };
    let (strategy, axes, without) = (strategy.name.clone(), Vec::new(), Vec::new());
    Point { strategy, axes, config, without, unread, unneeded, source }
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

/// All points, and the strategies that are valid at none of them.
type Points = (Vec<Point>, Vec<(String, Vec<Problem>)>);

fn points(document: &Document<'_>) -> Result<Points, Vec<Problem>> {
    let variants = variants(document);
    let mut points = Vec::new();
    let mut validities: BTreeMap<&str, StrategyValidity> = BTreeMap::new();
    for sweep_point in sweep_points(document, &variants)? {
        let variant = &variants[sweep_point.variant];
        // A row of an ablation may lack a key that another key needs.
        let mut of_part = StrategyValidity::default();
        let validity = match variant.strategy.is_partial() {
            true => &mut of_part,
            false => validities.entry(&variant.strategy.name).or_default(),
        };
        points.push(point(document, variant, &sweep_point, validity));
    }
    let never_valid = validities.into_iter().filter(|(_, validity)| !validity.is_valid);
    let never_valid = never_valid.map(|(strategy, validity)| (strategy.to_owned(), validity.problems));
    Ok((points, never_valid.collect()))
}

/// Whether a strategy is valid at any point of the sweep.
#[derive(Default)]
struct StrategyValidity {
    is_valid: bool,
    /// The problems at the first invalid point.
    problems: Vec<Problem>,
}

fn point(
    document: &Document<'_>,
    variant: &Variant<'_>,
    sweep_point: &SweepPoint<'_>,
    validity: &mut StrategyValidity,
) -> Point {
    let own: Vec<&Setting> = variant.strategy.settings.iter().chain(variant.values.iter().copied()).collect();
    let resolved = resolve(document, sweep_point.values.iter().chain(&own).copied());
    let without = match &resolved {
        Ok(resolved) => without(document, sweep_point, &own, &resolved.config),
        Err(_) => Vec::new(),
    };
    validity.is_valid |= resolved.is_ok();
    let (mut recompute, mut unread, mut unneeded) = (None, Vec::new(), Vec::new());
    let config = resolved.map(|resolved| {
        recompute = resolved.tree.find("strategy.recompute").map(|entry| entry.span());
        (unread, unneeded) = (resolved.unread, resolved.unneeded);
        resolved.config
    });
    let config = config.map_err(|problems| {
        let reason = problems.first().map(Problem::reason).unwrap_or_default();
        if validity.problems.is_empty() {
            validity.problems = problems;
        }
        reason
    });
    let axes = sweep_point.values.iter().chain(&variant.values).map(|value| named(value)).collect();
    let source = StrategySource { strategy: variant.strategy.name.clone(), recompute };
    Point { strategy: variant.label.clone(), axes, config, without, unread, unneeded, source }
}

/// Resolves the run with these settings, including the names of layers and values.
fn resolve<'s>(
    document: &Document<'_>,
    settings: impl IntoIterator<Item = &'s Setting>,
) -> Result<Resolved, Vec<Problem>> {
    let Resolved { config, tree, unread, unneeded } = document.resolve(settings)?;
    let config = kept::resolve(layers::resolve(config, &tree)?, &tree)?;
    Ok(Resolved { config, tree, unread, unneeded })
}

/// A key and its value, as written in TOML.
fn named(setting: &Setting) -> (String, String) {
    (setting.key.to_string(), setting.node.value.to_string())
}

/// See [`Point::without`]. Keys without which the run is invalid are left out.
fn without(
    document: &Document<'_>,
    sweep_point: &SweepPoint<'_>,
    own: &[&Setting],
    config: &RunConfig,
) -> Vec<(String, RunConfig)> {
    let without = |index: usize| {
        let others = own[..index].iter().chain(&own[index + 1..]);
        let other = resolve(document, sweep_point.values.iter().chain(others).copied()).ok()?.config;
        (other != *config).then(|| (own[index].key.to_string(), other))
    };
    (0..own.len()).filter_map(without).collect()
}
