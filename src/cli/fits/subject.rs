//! What `fits` is asked about: a model, or the model, data and training of an experiment.

use std::path::{Path, PathBuf};

use super::Args;
use crate::failure::Failure;
use ::plan::{Base, Combination, Experiment, expand_generated};
use spec::{ExperimentInput, KeyReference, key_reference};

/// The longest default context.
const CONTEXT: usize = 2048;

/// A model or an experiment, with overrides.
pub(super) struct Subject {
    input: Input,
    overrides: Vec<String>,
}

enum Input {
    Experiment(PathBuf),
    /// A generated experiment, named as the user wrote the model.
    Model {
        name: String,
        text: String,
    },
}

impl Subject {
    /// # Errors
    /// Options that do not apply to experiments; a model that cannot be read.
    pub(super) fn find(args: &Args) -> Result<Subject, Failure> {
        if let Some(setting) = args.set.iter().find(|setting| is_of_strategy(setting)) {
            return Err(Failure::input(format!(
                "`--set {setting}`: `fits` chooses the keys of strategies\n = help: use `runner advise` or `runner plan`"
            )));
        }
        let path = Path::new(&args.model);
        if path.extension().is_some_and(|extension| extension == "toml") {
            if let Some((option, key)) = args
                .context
                .map(|_| ("--context", "model.transformer.context"))
                .or(args.batch.map(|_| ("--batch", "train.batch_size")))
            {
                return Err(Failure::input(format!(
                    "{option} is for models\n = help: for an experiment, use `--set {key}=..`"
                )));
            }
            return Ok(Subject { input: Input::Experiment(path.to_owned()), overrides: args.set.clone() });
        }
        let of_context = |context| {
            let samples = args.batch.unwrap_or(1).saturating_mul(usize::from(args.cards));
            let text = text(&args.model, context, samples);
            let input = Input::Model { name: args.model.clone(), text };
            Subject { input, overrides: args.set.clone() }
        };
        let subject = of_context(args.context);
        if args.context.is_some() {
            return Ok(subject);
        }
        Ok(if subject.context()? > Some(CONTEXT) { of_context(Some(CONTEXT)) } else { subject })
    }

    /// The context of its model; `None` if its run is invalid.
    fn context(&self) -> Result<Option<usize>, Failure> {
        let experiment = self.expand(PLAIN)?;
        let mut configs = experiment.points.iter().filter_map(|point| point.config.as_ref().ok());
        Ok(configs.find_map(|config| config.model.transformer()).map(|model| model.context))
    }

    /// A generated experiment.
    pub(super) fn generated(name: &str, text: String) -> Subject {
        Subject { input: Input::Model { name: name.to_owned(), text }, overrides: Vec::new() }
    }

    /// The model or the file, as the user wrote it.
    pub(super) fn name(&self) -> &str {
        match &self.input {
            Input::Experiment(file) => file.to_str().unwrap_or("experiment"),
            Input::Model { name, .. } => name,
        }
    }

    /// The experiment with generated strategies, at the first point of its sweep.
    pub(super) fn expand(&self, strategies: &str) -> Result<Experiment, Failure> {
        let environment = |name: &str| std::env::var(name).ok();
        let input = match &self.input {
            Input::Experiment(file) => ExperimentInput::File(file),
            Input::Model { name, text } => ExperimentInput::Generated { name, text },
        };
        expand_generated(input, &self.overrides, &environment, Base::Plain, strategies)
            .map_err(Failure::input)
    }

    /// An experiment with these combinations as strategies.
    pub(super) fn written(&self, combinations: &[Combination]) -> Result<String, Failure> {
        let tables: Vec<String> = combinations.iter().map(Combination::table).collect();
        let Some(((first, others), plain)) = tables.split_first().zip(combinations.first()) else {
            return Err(Failure::input("there is no combination to write"));
        };
        let experiment = self.expand(first)?;
        let config = experiment.points.first().and_then(|point| point.config.as_ref().ok());
        let config = config.ok_or_else(|| Failure::input("the experiment has no valid run"))?;
        let base = config.to_toml(&experiment.name, &plain.name());
        Ok([base.as_str()]
            .into_iter()
            .chain(others.iter().map(String::as_str))
            .collect::<Vec<_>>()
            .join("\n"))
    }
}

/// The strategy that a generated experiment needs to be complete.
const PLAIN: &str = "[strategies.plain]\n";

/// The experiment of a model. A folder's weights are not needed.
fn text(model: &str, context: Option<usize>, batch: usize) -> String {
    let path = Path::new(model);
    let value = toml::Value::from(match path.is_dir() {
        true => path.join("config.json").display().to_string(),
        false => model.to_owned(),
    });
    let key = model_key(model);
    let context = context.map(|context| format!(", context = {context}")).unwrap_or_default();
    format!(
        "name = \"fits\"\n\n[model]\nhf = {{ {key} = {value}{context} }}\n\n[data.synthetic]\n\n[train]\n\
         batch_size = {batch}\nclip_norm = 1.0\noptimizer.adamw = {{ lr = 1e-4 }}\n\n[plan]\ntorch_program = \
         \"trainer\"\n\n{PLAIN}"
    )
}

/// The default context of a model: its own, at most 2048 tokens.
///
/// # Errors
/// The model cannot be read.
pub(crate) fn context_of(model: &str) -> Result<usize, Failure> {
    let own = Subject::generated(model, text(model, None, 1)).context()?;
    Ok(own.map_or(CONTEXT, |own| own.min(CONTEXT)))
}

/// The key of `[model.hf]` that has a model as a user writes it: a folder, a file, or a name.
pub(crate) fn model_key(model: &str) -> &'static str {
    let is_path = model.contains('/') || model.ends_with(".json") || Path::new(model).is_dir();
    if is_path { "config" } else { "published" }
}

/// Whether an override is of a strategy's key.
fn is_of_strategy(setting: &str) -> bool {
    let key = setting.split('=').next().unwrap_or_default().trim();
    let first = key.split('.').next().unwrap_or_default();
    let is_key =
        |key: KeyReference| key.path.split('.').nth(2) == Some(first) && key.path.starts_with("strategies.");
    ["defaults", "strategies", "strategy", "sweep"].contains(&first)
        || key_reference().into_iter().any(is_key)
}
