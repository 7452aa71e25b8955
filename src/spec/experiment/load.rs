//! Reads an experiment file, the files that it extends, and the overrides of the command line.

use std::path::{Path, PathBuf};

use super::strategies::no_strategy;
use crate::reader::error::{Problem, all};
use crate::reader::other_files::{OtherFile, OtherKind, Wanted, other_file};
use crate::reader::parse::parse;
use crate::reader::paths::{self, Environment};
use crate::reader::source::{SourceText, Sources, Span};
use crate::reader::tree::{Table, Value};
use crate::schema::key::{BY_LAYER, Key, STRATEGY, is_experiment_key};
use crate::schema::model::expand_shorthand;
use crate::schema::settings::Setting;
use base::regular;

/// Largest number of files that extend each other, the experiment file included.
const MOST_FILES: usize = 100;

/// Keys of which every experiment file has one.
const PARTS: [&str; 7] = ["extends", "model", "data", "train", "defaults", "strategies", "sweep"];

/// An experiment file, or the text of one that a command generates.
#[derive(Clone, Copy, Debug)]
pub enum ExperimentInput<'a> {
    File(&'a Path),
    /// Relative paths start from the working directory.
    Generated {
        name: &'a str,
        text: &'a str,
    },
}

impl<'a> ExperimentInput<'a> {
    /// The file, or the name that errors have in its place.
    pub fn path(self) -> &'a Path {
        match self {
            ExperimentInput::File(path) => path,
            ExperimentInput::Generated { name, .. } => Path::new(name),
        }
    }
}

/// The parsed files and overrides, of which only `extends` was evaluated.
#[derive(Default)]
pub(crate) struct Loaded {
    /// The files, those that others extend first, and last the overrides.
    pub(crate) layers: Vec<Table>,
    /// Number of layers that are files which the experiment file extends.
    pub(crate) bases: usize,
    /// Overrides of keys of runs, which also override strategies and defaults.
    pub(crate) overrides: Vec<Setting>,
}

/// Reads all texts of an experiment into `sources`. Fails if a file cannot be read, is not TOML or extends itself, or
/// if an override is not `key=value`.
pub(crate) fn load(
    input: ExperimentInput<'_>,
    overrides: &[String],
    environment: &Environment<'_>,
    sources: &mut Sources,
) -> Result<Loaded, Vec<Problem>> {
    let mut loaded = Loaded::default();
    let mut loader = Loader { sources, environment, stack: Vec::new() };
    match input {
        ExperimentInput::File(file) => loader.file(&mut loaded.layers, file, None)?,
        ExperimentInput::Generated { name, text } => loader.generated(&mut loaded.layers, name, text)?,
    }
    loaded.layers.reverse();
    loaded.bases = loaded.layers.len() - 1;
    all(overrides.iter().map(|text| loader.argument(&mut loaded, text)))?;
    Ok(loaded)
}

struct Loader<'a> {
    sources: &'a mut Sources,
    environment: &'a Environment<'a>,
    /// The chain of files being read, each extending the next: names and canonical paths.
    stack: Vec<(String, PathBuf)>,
}

impl Loader<'_> {
    /// Adds a file and the files that it extends.
    fn file(&mut self, layers: &mut Vec<Table>, path: &Path, from: Option<Span>) -> Result<(), Vec<Problem>> {
        let name = path.display().to_string();
        let attach_span = |message: String| match from {
            Some(span) => Problem::new(message).at(span),
            None => Problem::new(message),
        };
        let failed =
            |error: std::io::Error| attach_span(format!("cannot read {name}: {}", regular::reason(&error)));
        let real = path.canonicalize().map_err(failed)?;
        if self.stack.iter().any(|(_, known)| *known == real) {
            let chain: Vec<&str> = self.stack.iter().map(|(name, _)| name.as_str()).chain([&*name]).collect();
            return Err(attach_span(format!("files extend each other in a cycle: {}", chain.join(" -> ")))
                .help("remove one of the `extends`")
                .into());
        }
        if self.stack.len() == MOST_FILES {
            let first = &self.stack[0].0;
            return Err(attach_span(format!(
                "{first} extends more than {} files, one through another",
                MOST_FILES - 1
            ))
            .help("merge them into fewer files")
            .into());
        }
        // A file that others extend may be empty.
        let is_other = |other: &OtherFile| from.is_none() || other.kind != OtherKind::Empty;
        let instead = || {
            let other = other_file(path, Wanted::Experiment).filter(is_other)?;
            let problem = attach_span(other.message(path, Wanted::Experiment));
            Some(problem.help(other.help).lines(other.lines))
        };
        let text =
            regular::read_to_string(path).map_err(|error| instead().unwrap_or_else(|| failed(error)))?;
        let directory = real.parent().unwrap_or(Path::new("/")).to_path_buf();
        let source = self.sources.add(SourceText { name: name.clone(), directory, text, numbered: true });
        let mut table = parse(self.sources.text(source), source, 0)
            .map_err(|problems| instead().map_or(problems, Vec::from))?;
        let is_experiment = table.entries.iter().any(|entry| PARTS.contains(&entry.key.as_str()));
        if !is_experiment && let Some(problem) = instead() {
            return Err(problem.into());
        }
        flatten(&mut table);
        let base = self.base(&table, path)?;
        layers.push(table);
        if let Some((base, span)) = base {
            self.stack.push((name, real));
            self.file(layers, &base, Some(span))?;
        }
        Ok(())
    }

    /// Adds a generated text, which extends nothing.
    fn generated(&mut self, layers: &mut Vec<Table>, name: &str, text: &str) -> Result<(), Vec<Problem>> {
        let (name, text) = (name.to_owned(), text.to_owned());
        let source =
            self.sources.add(SourceText { name, directory: working_directory()?, text, numbered: false });
        let mut table = parse(self.sources.text(source), source, 0)?;
        flatten(&mut table);
        layers.push(table);
        Ok(())
    }

    /// The file that this one extends.
    fn base(&self, table: &Table, file: &Path) -> Result<Option<(PathBuf, Span)>, Problem> {
        let Some(entry) = table.entry("extends") else { return Ok(None) };
        let span = entry.node.span;
        let Value::Text(written) = &entry.node.value else {
            return Err(Problem::new(format!(
                "`extends` must be the path of a file, not {}",
                entry.node.value
            ))
            .at(span));
        };
        let written = paths::expand_variables(written, self.environment)
            .map_err(|(message, help)| Problem::new(message).at(span).help(help))?;
        let folder = file.parent().unwrap_or(Path::new(""));
        Ok(Some((paths::tidy(&folder.join(written)), span)))
    }

    /// Adds one `key=value`. Keys of runs are kept apart and applied last; other keys change the file.
    fn argument(&mut self, loaded: &mut Loaded, argument: &str) -> Result<(), Vec<Problem>> {
        const FLAG: &str = "--set ";
        let text = format!("{FLAG}{argument}");
        let name = "the command line".to_string();
        let source =
            self.sources.add(SourceText { name, directory: working_directory()?, text, numbered: false });
        let mut table = self.argument_table(source, argument, FLAG.len())?;
        flatten(&mut table);
        for setting in table.settings() {
            if setting.key.to_string() == "extends" {
                return Err(Problem::new("`extends` cannot be set on the command line")
                    .at(setting.key_span)
                    .help("write a file that extends both")
                    .into());
            }
            if !is_experiment_key(&setting.key) {
                loaded.overrides.push(setting);
            }
        }
        table.entries.retain(|entry| match entry.node.table() {
            Some(table) if entry.key == "measure" => table.entry("repeats").is_some(),
            _ => is_experiment_key(&Key::new(&entry.key)),
        });
        strategies_exist(&table, &loaded.layers)?;
        loaded.layers.push(table);
        Ok(())
    }

    /// Parses an override. A value that is not TOML is read as a string without quotes.
    fn argument_table(&self, source: usize, argument: &str, offset: usize) -> Result<Table, Vec<Problem>> {
        let text = self.sources.text(source);
        let end = text.len();
        let Some((key, value)) = argument.split_once('=') else {
            let span = Span { source, start: offset, end };
            return Err(Problem::new("an override must be KEY=VALUE")
                .at(span)
                .help("for example --set train.batch_size=4")
                .into());
        };
        match parse(text, source, offset) {
            Ok(table) => Ok(table),
            Err(problems) => {
                let word = value.trim();
                let bare = !word.is_empty() && !word.contains(['"', '\'', '[', ']', '{', '}', '\n', '#']);
                if !bare {
                    return Err(problems);
                }
                let mut table = parse(&format!("{}{key}=\"\"", &text[..offset]), source, offset)?;
                let start = end - value.trim_start().len();
                let span = Span { source, start, end: start + word.len() };
                fill(&mut table, word, span);
                Ok(table)
            }
        }
    }
}

fn working_directory() -> Result<PathBuf, Problem> {
    std::env::current_dir().map_err(|error| {
        Problem::new(format!("cannot determine the working directory: {}", regular::reason(&error)))
    })
}

/// An override only changes existing strategies: a misspelt name must not add one.
fn strategies_exist(table: &Table, layers: &[Table]) -> Result<(), Vec<Problem>> {
    let strategies = |table: &'_ Table| -> Vec<(String, Span)> {
        let table = table.entry("strategies").and_then(|entry| entry.node.table());
        table.into_iter().flat_map(|t| &t.entries).map(|e| (e.key.clone(), e.key_span)).collect()
    };
    let known: Vec<String> = layers.iter().flat_map(strategies).map(|(name, _)| name).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    all(strategies(table).into_iter().filter(|(name, _)| !known.contains(&name.as_str())).map(
        |(name, span)| -> Result<(), Vec<Problem>> {
            Err(no_strategy(&format!("there is no strategy `{name}` to change"), &name, span, &known).into())
        },
    ))?;
    Ok(())
}

/// Replaces the only value of a nested table by a string.
fn fill(table: &mut Table, word: &str, span: Span) {
    for entry in &mut table.entries {
        match &mut entry.node.value {
            Value::Table(inner) => fill(inner, word, span),
            value => {
                *value = Value::Text(word.to_string());
                entry.node.span = span;
            }
        }
    }
}

/// Flattens the tables whose keys may be written nested or quoted, and expands short notations, so that all notations merge
/// as the same key.
pub(crate) fn flatten(file: &mut Table) {
    expand_shorthand(file);
    if let Some(grid) = file.table_mut("sweep").and_then(|sweep| sweep.table_mut("grid")) {
        grid.flatten();
    }
    for name in BY_LAYER {
        if let Some(table) = file.table_mut("defaults").and_then(|defaults| defaults.table_mut(name)) {
            table.flatten();
        }
    }
    let Some(strategies) = file.table_mut("strategies") else { return };
    for entry in &mut strategies.entries {
        if let Value::Table(strategy) = &mut entry.node.value {
            for name in ["set", "sweep"].into_iter().chain(BY_LAYER) {
                if let Some(table) = strategy.table_mut(name) {
                    table.flatten();
                }
            }
        }
    }
}

/// The tree of a run, without the keys of the experiment. `[defaults]` become the strategy's own keys.
pub(crate) fn run_tree(mut file: Table) -> Table {
    let defaults = file.remove("defaults");
    file.entries.retain(|entry| !is_experiment_key(&Key::new(&entry.key)));
    if let Some(mut defaults) = defaults {
        defaults.key = STRATEGY.to_string();
        file.entries.push(defaults);
    }
    file
}
