//! What an experiment is about: from flags, or from answers in a terminal.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use super::deepspeed::Translation;
use super::prompt::{self, Prompt};
use super::{Args, strategies};
use crate::failure::Failure;
use crate::{fits, target};
use ::plan::Combination;
use base::globs;

/// Choices of an experiment.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) model: Model,
    pub(super) context: usize,
    pub(super) data: Data,
    pub(super) batch: usize,
    pub(super) target: Option<PathBuf>,
    /// The strategies to compare; empty: those that `fits` finds best.
    pub(super) strategies: Vec<Combination>,
}

#[derive(Debug)]
pub(super) enum Model {
    /// A built-in configuration, or a path.
    Described(String),
    Own {
        layers: u32,
        d_model: u32,
        heads: u32,
        vocabulary: u32,
    },
}

#[derive(Debug)]
pub(super) enum Data {
    Text { paths: Vec<String>, tokenizer: Option<String> },
    Tokens(Vec<String>),
    Synthetic,
}

/// Default number of samples.
const BATCH: usize = 8;
/// Default context of a model without one.
const CONTEXT: usize = 1024;
/// Number of byte values.
const BYTES: u32 = 256;
const OWN: &str = "own";
const PROPOSED: &str = "those that fit best";
const THIS: &str = "this machine";

impl Answers {
    /// The answers that flags give; if a required one is missing, a terminal is asked for all that flags leave out.
    ///
    /// # Errors
    /// Flags that contradict each other or are missing, a model that cannot be read, files that do not exist.
    pub(super) fn complete(args: &Args, translation: &Translation) -> Result<Answers, Failure> {
        if let [first, second, ..] = args.model.as_slice() {
            return Err(Failure::input(format!(
                "`init` takes one model, not both `{first}` and `{second}`\n = help: name a configuration or a file"
            )));
        }
        let missing: Vec<&str> = [missing_model(args), missing_data(args)].into_iter().flatten().collect();
        match prompt::terminal().filter(|_| !missing.is_empty()) {
            Some(prompt) => Answers::asked(args, translation, prompt),
            None if missing.is_empty() => Answers::given(args, translation),
            None => Err(Failure::input(format!(
                "`init` needs {}\n = help: in a terminal, it asks for them",
                missing.join("; and ")
            ))),
        }
    }

    fn given(args: &Args, translation: &Translation) -> Result<Answers, Failure> {
        let model = match (args.model.first(), args.layers, args.d_model, args.heads) {
            (None, Some(layers), Some(d_model), Some(heads)) => {
                if args.vocabulary.is_none() && !args.tokens.is_empty() {
                    return Err(Failure::input(
                        "--tokens needs --vocabulary: more than the largest token id",
                    ));
                }
                Model::Own { layers, d_model, heads, vocabulary: args.vocabulary.unwrap_or(BYTES) }
            }
            (Some(model), ..) => Model::Described(model.clone()),
            _ => return Err(Failure::input("`init` needs a model")),
        };
        let own = match &model {
            Model::Described(model) => fits::context_of(model)?,
            Model::Own { .. } => CONTEXT,
        };
        let data = Answers::given_data(args, &model);
        Failure::collect(data.files().map(|path| exists(path).map_err(Failure::input)))?;
        let has_bf16 = has_bf16(args.target.as_deref())?;
        Ok(Answers {
            model,
            context: args.context.map_or(own, |context| context as usize),
            data,
            batch: given_batch(args, translation).unwrap_or(BATCH),
            target: args.target.clone(),
            strategies: strategies::named(&args.strategies, has_bf16)?,
        })
    }

    fn asked(
        args: &Args,
        translation: &Translation,
        mut prompt: Prompt<impl BufRead, impl Write>,
    ) -> Result<Answers, Failure> {
        let (model, own) = asked_model(args, &mut prompt)?;
        let context = match args.context {
            Some(context) => context as usize,
            None => prompt.ask("Tokens of each sample", &own.to_string(), size)? as usize,
        };
        let data = match missing_data(args) {
            None => Answers::given_data(args, &model),
            Some(_) => asked_data(&model, &mut prompt)?,
        };
        Failure::collect(data.files().map(|path| exists(path).map_err(Failure::input)))?;
        let batch = match given_batch(args, translation) {
            Some(batch) => batch,
            None => prompt.ask("Samples of an optimizer step", &BATCH.to_string(), size)? as usize,
        };
        let target = match &args.target {
            Some(target) => Some(target.clone()),
            None => prompt.ask("Card, of `runner devices --targets`", THIS, |answer| {
                let card = Some(PathBuf::from(answer)).filter(|_| answer != THIS);
                card.as_deref().map(target::find).transpose().map_err(|error| error.to_string())?;
                Ok(card)
            })?,
        };
        let has_bf16 = has_bf16(target.as_deref())?;
        let named = |names: &str| {
            let names: Vec<String> = names.split(',').map(str::to_owned).collect();
            strategies::named(&names, has_bf16).map_err(|error| error.to_string())
        };
        let strategies = match args.strategies.is_empty() {
            false => strategies::named(&args.strategies, has_bf16)?,
            true => prompt.ask("Strategies, such as fp32,lora + checkpoint", PROPOSED, |names| {
                if names == PROPOSED { Ok(Vec::new()) } else { named(names) }
            })?,
        };
        Ok(Answers { model, context, data, batch, target, strategies })
    }

    fn given_data(args: &Args, model: &Model) -> Data {
        match () {
            () if !args.text.is_empty() => {
                let tokenizer = args.tokenizer.clone().or_else(|| tokenizer_beside(model));
                Data::Text { paths: args.text.clone(), tokenizer }
            }
            () if !args.tokens.is_empty() => Data::Tokens(args.tokens.clone()),
            () => Data::Synthetic,
        }
    }
}

fn missing_model(args: &Args) -> Option<&'static str> {
    let sizes = [args.layers, args.d_model, args.heads];
    let is_complete = !args.model.is_empty() || sizes.iter().all(Option::is_some);
    (!is_complete).then_some(match sizes.iter().any(Option::is_some) {
        true => "all of --layers, --d-model and --heads",
        false => "a model: MODEL, or --layers, --d-model and --heads",
    })
}

fn missing_data(args: &Args) -> Option<&'static str> {
    let has_data = !args.text.is_empty() || !args.tokens.is_empty() || args.synthetic;
    (!has_data).then_some("data: --text, --tokens or --synthetic")
}

fn given_batch(args: &Args, translation: &Translation) -> Option<usize> {
    let translated = translation.batch.as_ref().map(|(batch, _)| *batch);
    args.batch.map(|batch| batch as usize).or(translated)
}

/// Whether the card has units for bf16; this machine has.
fn has_bf16(card: Option<&Path>) -> Result<bool, Failure> {
    Ok(!card.map(target::find).transpose()?.is_some_and(|described| described.target.is_too_old()))
}

/// The model, and its context.
fn asked_model(
    args: &Args,
    prompt: &mut Prompt<impl BufRead, impl Write>,
) -> Result<(Model, usize), Failure> {
    let described = |model: &str| {
        let context = fits::context_of(model).map_err(|error| error.to_string())?;
        Ok((Model::Described(model.to_owned()), context))
    };
    if let Some(model) = args.model.first() {
        return described(model).map_err(Failure::input);
    }
    let has_size = [args.layers, args.d_model, args.heads].iter().any(Option::is_some);
    if !has_size {
        let question = "Model: a name of `runner models`, a path, or own sizes";
        let model = prompt.ask(question, OWN, |model| match model {
            OWN => Ok(None),
            model => described(model).map(Some),
        })?;
        if let Some(model) = model {
            return Ok(model);
        }
    }
    let mut ask = |given: Option<u32>, question, default| match given {
        Some(size) => Ok(size),
        None => prompt.ask(question, default, size),
    };
    let layers = ask(args.layers, "Blocks", "12")?;
    let d_model = ask(args.d_model, "Channels of the residual stream", "768")?;
    let heads = ask(args.heads, "Heads, a divisor of the channels", "12")?;
    let vocabulary = ask(args.vocabulary, "Tokens of the vocabulary; 256 for bytes", "256")?;
    Ok((Model::Own { layers, d_model, heads, vocabulary }, CONTEXT))
}

fn asked_data(model: &Model, prompt: &mut Prompt<impl BufRead, impl Write>) -> Result<Data, Failure> {
    let kind = prompt.ask("Data: text, tokens (16-bit ids) or synthetic", "synthetic", |answer| {
        let kinds = ["text", "tokens", "synthetic"];
        kinds
            .into_iter()
            .find(|kind| *kind == answer)
            .ok_or_else(|| "write text, tokens or synthetic".to_owned())
    })?;
    if kind == "synthetic" {
        return Ok(Data::Synthetic);
    }
    let paths = prompt.ask("Files, such as data/*.txt", "", |answer| {
        let paths: Vec<String> = answer.split_whitespace().map(str::to_owned).collect();
        paths.iter().try_for_each(|path| exists(path))?;
        if paths.is_empty() { Err("name at least one file".to_owned()) } else { Ok(paths) }
    })?;
    if kind == "tokens" {
        return Ok(Data::Tokens(paths));
    }
    let default = tokenizer_beside(model).unwrap_or_else(|| "bytes".to_owned());
    let tokenizer = prompt.ask("Tokenizer: a tokenizer.json, or bytes", &default, |answer| match answer {
        "bytes" => Ok(None),
        file => exists(file).map(|()| Some(file.to_owned())),
    })?;
    Ok(Data::Text { paths, tokenizer })
}

impl Data {
    fn files(&self) -> impl Iterator<Item = &str> {
        let (paths, tokenizer): (&[String], Option<&String>) = match self {
            Data::Text { paths, tokenizer } => (paths, tokenizer.as_ref()),
            Data::Tokens(paths) => (paths, None),
            Data::Synthetic => (&[], None),
        };
        paths.iter().chain(tokenizer).map(String::as_str)
    }
}

/// Fails unless a path or pattern matches a file.
fn exists(path: &str) -> Result<(), String> {
    let has_match = Path::new(path).exists() || globs::files(path).is_ok_and(|files| !files.is_empty());
    if has_match { Ok(()) } else { Err(format!("no file matches `{path}`")) }
}

/// The tokenizer in the folder of a model.
fn tokenizer_beside(model: &Model) -> Option<String> {
    let Model::Described(model) = model else { return None };
    let path = Path::new(model);
    let folder =
        if path.is_dir() { path } else { path.parent().filter(|_| fits::model_key(model) == "config")? };
    let tokenizer = folder.join("tokenizer.json");
    tokenizer.is_file().then(|| tokenizer.display().to_string())
}

fn size(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|size| (1..=1 << 24).contains(size))
        .ok_or_else(|| format!("`{text}` is not a whole number from 1 to {}", 1 << 24))
}
