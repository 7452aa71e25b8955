//! A validated experiment, from which single runs are resolved.

use std::path::{Path, PathBuf};

use super::load::{self, ExperimentInput, Loaded, load};
use super::overrides;
use super::strategies::{distinct_labels, inherit, no_strategy};
use super::written::{self, Axis, Case, ExperimentFile, Sweep, WrittenStrategy, check_setting};
use crate::reader::error::{Error, Problem, Remark};
use crate::reader::keys::Reader;
use crate::reader::parse::parse;
use crate::reader::paths::Environment;
use crate::reader::source::{SourceText, Sources, Span};
use crate::reader::tree::{Table, Value};
use crate::schema::hints::EXPERIMENT;
use crate::schema::key::{Key, STRATEGY};
use crate::schema::plan::PlanKeys;
use crate::schema::repeats::Repeats;
use crate::schema::resolved::RunConfig;
use crate::schema::settings::Setting;
use crate::schema::{rules, run_tables};
use base::rates::BytesPerSecond;
use device::{DeviceKind, Limits};

/// The merged files and command line of an experiment. Its strategies include the keys that they inherit.
pub struct Document<'a> {
    pub name: String,
    pub baseline: String,
    pub requires: Option<DeviceKind>,
    pub limits: Limits,
    pub plan: PlanKeys,
    /// The rate of the link between a card and its host.
    pub link: Option<BytesPerSecond>,
    pub repeats: Repeats,
    pub strategies: Vec<WrittenStrategy>,
    pub sweep: Sweep,
    pub sources: Sources,
    environment: &'a Environment<'a>,
    /// All files and overrides of the file, merged.
    file: Table,
    /// A run without a strategy.
    tree: Table,
    overrides: Vec<Setting>,
}

/// A resolved run.
pub struct Resolved {
    pub config: RunConfig,
    /// The spans of its keys.
    pub tree: Table,
    /// Inputs that were not read: a run with them cannot train.
    pub unread: Vec<Problem>,
    /// Settings without effect.
    pub unneeded: Vec<Problem>,
}

impl<'a> Document<'a> {
    /// Reads an experiment. Fails with all its problems, also in parts that no run uses.
    pub fn read(
        input: ExperimentInput<'_>,
        overrides: &[String],
        environment: &'a Environment<'a>,
    ) -> Result<Document<'a>, Error> {
        let mut sources = Sources::default();
        let document = load(input, overrides, environment, &mut sources)
            .and_then(|loaded| Document::check(input.path(), loaded, environment, &sources));
        match document {
            Ok(document) => Ok(document.with_sources(sources)),
            Err(problems) => Err(sources.error(&problems)),
        }
    }

    fn check(
        file: &Path,
        loaded: Loaded,
        environment: &'a Environment<'a>,
        sources: &Sources,
    ) -> Result<Document<'a>, Vec<Problem>> {
        let Loaded { layers, bases, overrides } = loaded;
        let reader = Reader::partial(&EXPERIMENT, sources, environment);
        let (files, arguments) = layers.split_at(bases + 1);
        let replacing: Vec<&Setting> =
            overrides.iter().filter(|setting| check_setting(&reader, setting)).collect();
        let changing = |layer: &&Table| {
            let own = Reader::partial(&EXPERIMENT, sources, environment);
            written::read(&own, layer);
            own.check().map_err(|problems| problems.into_iter().for_each(|one| reader.problem(one))).is_ok()
        };
        let changing: Vec<&Table> = arguments.iter().filter(changing).collect();
        for file in files {
            let mut file = file.clone();
            changing.iter().for_each(|layer| file.merge((*layer).clone()));
            replacing.iter().for_each(|setting| overrides::replace(&mut file, setting));
            written::read(&reader, &file);
        }
        reader.check()?;
        let mut merged = Table::default();
        for (index, mut layer) in layers.into_iter().enumerate() {
            if index < bases {
                // Results are stored under the name: it is not inherited.
                layer.remove("name");
            }
            merged.merge(layer);
        }
        overrides.iter().for_each(|setting| overrides::replace(&mut merged, setting));
        let reader = Reader::partial(&EXPERIMENT, sources, environment);
        let written = written::read(&reader, &merged);
        let written = reader.finish(written)?;
        let name = experiment_name(file, &written);
        let mut strategies = inherit(&written.strategies)?;
        if let Some(ablation) = &written.sweep.ablation {
            strategies = ablation.expand(strategies)?;
        }
        check_point_count(&strategies, &written.sweep)?;
        distinct_labels(&strategies)?;
        let baseline = baseline(&written, &strategies);
        let (name, baseline) = match (name, baseline) {
            (Ok(name), Ok(baseline)) => (name, baseline),
            (name, baseline) => return Err(name.err().into_iter().chain(baseline.err()).collect()),
        };
        let document = Document {
            name,
            baseline,
            requires: written.requires,
            limits: written.limits,
            plan: written.plan,
            link: written.link,
            repeats: written.repeats,
            strategies,
            sweep: written.sweep,
            sources: Sources::default(),
            environment,
            tree: load::run_tree(merged.clone()),
            file: merged,
            overrides,
        };
        document.check_axes()?;
        Ok(document)
    }

    /// Resolves the run with these settings; later settings override earlier ones, and the command line overrides all.
    pub fn resolve<'s>(
        &self,
        settings: impl IntoIterator<Item = &'s Setting>,
    ) -> Result<Resolved, Vec<Problem>> {
        let mut tree = self.tree.clone();
        settings.into_iter().for_each(|setting| tree.set(setting));
        self.overrides.iter().for_each(|setting| tree.set(setting));
        run_tables::complete_inference(&mut tree);
        let reader = Reader::complete(&EXPERIMENT, &self.sources, self.environment);
        let config = run_tables::read_run(&reader, &tree);
        let remarks = reader.remarks();
        let config = reader.finish(config)?;
        rules::check(&config, &tree)?;
        let has_quantized_base = config.strategy.lora.as_ref().is_some_and(|lora| lora.base.is_quantized());
        let (mut unread, mut unneeded, mut problems) = (Vec::new(), Vec::new(), Vec::new());
        for remark in remarks {
            match remark {
                Remark::Unread(problem) => unread.push(problem),
                Remark::Unneeded(problem) => unneeded.push(problem),
                Remark::Quantized(_) if has_quantized_base => {}
                Remark::Quantized(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() { Ok(Resolved { config, tree, unread, unneeded }) } else { Err(problems) }
    }

    /// Reads strategies from a generated text. They replace those of the file for the caller, who resolves them.
    ///
    /// # Errors
    /// The text is no table `[strategies.NAME]` for each, or a key or value is invalid.
    pub fn generated_strategies(&mut self, text: &str) -> Result<Vec<WrittenStrategy>, Error> {
        let source = self.sources.add(SourceText {
            name: "generated strategies".to_owned(),
            directory: PathBuf::from("/"),
            text: text.to_owned(),
            numbered: true,
        });
        let read = || {
            let mut table = parse(text, source, 0)?;
            load::flatten(&mut table);
            let reader = Reader::partial(&EXPERIMENT, &self.sources, self.environment);
            let written = written::read(&reader, &table);
            Ok(reader.finish(written)?.strategies)
        };
        read().map_err(|problems: Vec<Problem>| self.sources.error(&problems))
    }

    /// Drops `[defaults]`.
    pub fn drop_defaults(&mut self) {
        self.tree.remove(STRATEGY);
    }

    /// The keys that the command line sets in every run.
    pub fn overrides(&self) -> impl Iterator<Item = &Setting> {
        self.overrides.iter()
    }

    /// All axes; the axes of a strategy with that strategy.
    fn axes(&self) -> impl Iterator<Item = (&Axis, Option<&WrittenStrategy>)> {
        let own = self.strategies.iter().flat_map(|s| s.axes.iter().map(move |axis| (axis, Some(s))));
        self.sweep.axes().map(|axis| (axis, None)).chain(own)
    }

    /// Fails if a key gets values from two sources, one of which would be ignored silently.
    fn check_axes(&self) -> Result<(), Vec<Problem>> {
        let mut problems = Vec::new();
        let shared: Vec<&Axis> = self.sweep.axes().collect();
        for (index, axis) in shared.iter().enumerate() {
            if let Some(other) = shared[..index].iter().find(|other| other.key.conflicts(&axis.key)) {
                problems.push(
                    Problem::new(format!("`{}` is swept twice", axis.key))
                        .at(axis.key_span)
                        .at(other.key_span)
                        .help("keep one of the two axes"),
                );
            }
        }
        // The rows of an ablation have no other keys than their strategy.
        for strategy in self.strategies.iter().filter(|strategy| !strategy.is_partial) {
            let labels = strategy.labels();
            let own = strategy.settings.iter().map(StrategyKey::set);
            for own in own.chain(strategy.axes.iter().map(StrategyKey::swept)) {
                let about = |case: &&Case| labels.iter().any(|label| case.selects(&strategy.name, label));
                let cases = self.sweep.include.iter().filter(about);
                let included = cases.flat_map(|case| &case.settings).map(|s| (&s.key, s.key_span));
                let axes = shared.iter().map(|axis| (&axis.key, axis.key_span));
                if let Some((axis, place)) = axes.chain(included).find(|(axis, _)| own.conflicts(axis)) {
                    problems.push(own.problem(axis, place, &strategy.name));
                }
            }
            problems.extend(axis_conflicts(strategy));
        }
        for setting in &self.overrides {
            if let Some((axis, _)) = self.axes().find(|(axis, _)| axis.key.conflicts(&setting.key)) {
                problems.push(
                    Problem::new(format!("`{}` is swept: it cannot be set to one value", axis.key))
                        .at(setting.key_span)
                        .at(axis.key_span)
                        .help("override the axis instead, as in --set 'sweep.grid.\"train.batch_size\"=[4]'"),
                );
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    fn with_sources(self, mut sources: Sources) -> Document<'a> {
        for setting in &self.overrides {
            sources.locate(setting.key.to_string(), setting.key_span);
        }
        for (axis, _) in self.axes() {
            sources.locate(axis.key.to_string(), axis.key_span);
        }
        locate_table(&mut sources, "", &self.tree);
        locate_table(&mut sources, "", &self.file);
        for strategy in &self.strategies {
            for setting in &strategy.settings {
                locate(&mut sources, setting);
            }
        }
        Document { sources, ..self }
    }
}

/// Problems of keys that a strategy both sets and sweeps, or sweeps twice.
fn axis_conflicts(strategy: &WrittenStrategy) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, axis) in strategy.axes.iter().enumerate() {
        let set = strategy.settings.iter().map(StrategyKey::set).find(|set| set.conflicts(&axis.key));
        let mut before = strategy.axes[..index].iter().map(StrategyKey::swept);
        let swept = before.find(|swept| swept.conflicts(&axis.key));
        let own = set.into_iter().chain(swept);
        problems.extend(own.map(|own| own.problem(&axis.key, axis.key_span, &strategy.name)));
    }
    problems
}

/// A key that a strategy sets or sweeps.
struct StrategyKey<'a> {
    key: &'a Key,
    span: Span,
    verb: &'static str,
    /// Whether it is an empty table, which does not conflict with axes of its keys.
    is_empty: bool,
}

impl StrategyKey<'_> {
    fn set(setting: &Setting) -> StrategyKey<'_> {
        let is_empty = setting.node.table().is_some_and(|table| table.entries.is_empty());
        StrategyKey { key: &setting.key, span: setting.key_span, verb: "sets", is_empty }
    }

    fn swept(axis: &Axis) -> StrategyKey<'_> {
        StrategyKey { key: &axis.key, span: axis.key_span, verb: "sweeps", is_empty: false }
    }

    fn conflicts(&self, axis: &Key) -> bool {
        self.key.conflicts(axis) && !(self.is_empty && axis.is_below(self.key))
    }

    fn problem(&self, axis: &Key, place: Span, strategy: &str) -> Problem {
        let StrategyKey { verb, .. } = self;
        Problem::new(format!("the axis `{axis}` sweeps a key that the strategy `{strategy}` {verb} itself"))
            .at(place)
            .at(self.span)
            .help(format!("remove the axis, or take `{axis}` out of the strategy"))
    }
}

fn locate_table(sources: &mut Sources, prefix: &str, table: &Table) {
    for entry in &table.entries {
        let dotted = format!("{prefix}{}", entry.key);
        let setting = Setting { key: Key::new(&dotted), key_span: entry.key_span, node: entry.node.clone() };
        locate(sources, &setting);
        if let Some(table) = entry.node.table() {
            locate_table(sources, &format!("{dotted}."), table);
        }
    }
}

fn locate(sources: &mut Sources, setting: &Setting) {
    let key = setting.key.to_string();
    if let Value::List(nodes) = &setting.node.value {
        for (index, node) in nodes.iter().enumerate() {
            sources.locate(format!("{key}[{index}]"), node.span);
        }
    }
    sources.locate(key, setting.key_span.to(setting.node.span));
}

/// The key `name`, or else the file name without its extension. It names the files of results.
fn experiment_name(file: &Path, written: &ExperimentFile) -> Result<String, Problem> {
    let (name, span) = match &written.name {
        Some((name, span)) => (name.clone(), Some(*span)),
        None => (file.file_stem().unwrap_or_default().to_string_lossy().into_owned(), None),
    };
    if name.starts_with('.') || name.contains(['/', '\\']) || name.chars().any(char::is_control) {
        let mut problem = Problem::new(format!(
            "`{name}` is not a valid experiment name: it is the name of the result files"
        ))
        .help("use letters, digits, `-` and `_`");
        problem.places.extend(span);
        return Err(problem);
    }
    Ok(name)
}

/// Fails if the sweep has too many points to run, before they fill the memory.
fn check_point_count(strategies: &[WrittenStrategy], sweep: &Sweep) -> Result<(), Problem> {
    const MOST: u128 = 1_000_000;
    let product = |axes: &[Axis]| -> u128 {
        axes.iter().fold(1, |points: u128, axis| points.saturating_mul(axis.values.len() as u128))
    };
    let variants = strategies.iter().map(|strategy| product(&strategy.axes)).fold(0, u128::saturating_add);
    let rows = sweep.zip.iter().filter_map(|group| group.first()).map(|axis| axis.values.len() as u128);
    let points = rows.fold(product(&sweep.grid), u128::saturating_mul).saturating_mul(variants);
    if points <= MOST {
        return check_case_count(points, sweep);
    }
    let own = strategies.iter().flat_map(|strategy| &strategy.axes);
    let longest = sweep.axes().chain(own).max_by_key(|axis| axis.values.len());
    let mut problem = Problem::new(format!("the sweep has {points} points"));
    problem.places.extend(longest.map(|axis| axis.key_span));
    Err(problem
        .help(format!("use at most {MOST}; [[sweep.zip]] takes values together instead of combining them")))
}

/// Fails if comparing each case with every point, included points among them, would take too long.
fn check_case_count(points: u128, sweep: &Sweep) -> Result<(), Problem> {
    const MOST: u128 = 20_000_000;
    let cases = (sweep.include.len() + sweep.exclude.len()) as u128;
    if cases.saturating_mul(points.saturating_add(cases)) <= MOST {
        return Ok(());
    }
    let mut problem =
        Problem::new(format!("the sweep has {points} points, and {cases} cases to include or exclude"));
    problem.places.extend(sweep.include.iter().chain(&sweep.exclude).map(|case| case.span).next());
    Err(problem.help(format!(
        "reduce the product of both to at most {MOST}; a case without some of the keys selects many points"
    )))
}

fn baseline(written: &ExperimentFile, strategies: &[WrittenStrategy]) -> Result<String, Problem> {
    let Some(first) = strategies.first() else {
        return Err(Problem::new("the experiment has no strategies")
            .help("add at least one, even an empty [strategies.plain]"));
    };
    let Some((name, span)) = &written.baseline else {
        return Ok(first.labels().swap_remove(0));
    };
    let labels: Vec<String> = strategies.iter().flat_map(WrittenStrategy::labels).collect();
    if labels.contains(name) {
        return Ok(name.clone());
    }
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    Err(no_strategy(&format!("the baseline `{name}` is not a strategy"), name, *span, &labels))
}
