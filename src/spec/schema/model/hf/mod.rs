//! `[model.hf]`: a transformer described by a Hugging Face `config.json`, resolved to `[model.transformer]`.

mod activation;
mod fields;
mod gemma;
mod gpt2;
mod llama;
mod rotary;
mod windows;
mod write;

use std::path::{Path, PathBuf};

pub use write::HfConfiguration;

use fields::{ConfigError, ConfigFields};

use super::Transformer;
use crate::reader::declare::{Accepting, KeywordEnum, Optional, key_table, keywords};
use crate::reader::error::Problem;
use crate::reader::keys::Keys;
use crate::reader::parsers::{Boolean, DIMENSION};
use crate::reader::paths::{PathCodec, file_path};
use base::regular;

keywords! {
    /// The model families of `config.json`, by their `model_type`. To add one, add its line here; the matches over them
    /// do not compile without it.
    pub enum ModelFamily {
        Gpt2 = "gpt2",
        Llama = "llama",
        Mistral = "mistral",
        Qwen2 = "qwen2",
        Qwen3 = "qwen3",
        Gemma2 = "gemma2",
    }
}

impl ModelFamily {
    /// The library's class of the model with its head.
    fn class(self) -> &'static str {
        match self {
            ModelFamily::Gpt2 => "GPT2LMHeadModel",
            ModelFamily::Llama => "LlamaForCausalLM",
            ModelFamily::Mistral => "MistralForCausalLM",
            ModelFamily::Qwen2 => "Qwen2ForCausalLM",
            ModelFamily::Qwen3 => "Qwen3ForCausalLM",
            ModelFamily::Gemma2 => "Gemma2ForCausalLM",
        }
    }

    fn read(self, fields: &ConfigFields, hf: &Hf) -> Result<Transformer, ConfigError> {
        match self {
            ModelFamily::Gpt2 => gpt2::read(fields, hf),
            ModelFamily::Llama | ModelFamily::Mistral | ModelFamily::Qwen2 | ModelFamily::Qwen3 => {
                llama::read(fields, hf, self)
            }
            ModelFamily::Gemma2 => gemma::read(fields, hf),
        }
    }
}

const CONFIG: Accepting<PathCodec> = Accepting(file_path("config.json"), |path| {
    let families: Vec<String> = ModelFamily::ALL
        .iter()
        .map(|family| format!("`{}` ({})", family.keyword(), family.class()))
        .collect();
    path.and(&format!("its `model_type` is one of {}", families.join(", ")))
});

key_table! {
    /// A Hugging Face model configuration, and the keys that override it.
    pub struct Hf {
        /// Path of the `config.json`, relative to the experiment file.
        pub config: PathBuf = CONFIG;
        /// Context length in tokens; by default the number of positions of the configuration.
        pub context: Option<usize> = Optional(DIMENSION), default None;
        /// Whether to use the dropout probabilities of the configuration; false: no dropout.
        pub dropout: bool = Boolean, default true;
        /// Safetensors file with the initial parameters, or the index of several; by default, parameters are
        /// initialized randomly.
        pub weights: Option<PathBuf> = Optional(file_path("model.safetensors")), default None;
    }
}

/// The key of `[model.hf]` that decides a key of `[model.transformer]`.
pub(crate) fn decides(key: &str) -> Option<String> {
    let key = match key.strip_prefix("model.transformer.")? {
        own @ ("context" | "weights") => own,
        _ => "config",
    };
    Some(format!("model.hf.{key}"))
}

impl Hf {
    /// The described model. Problems of the configuration are reported at the key `config`.
    pub(super) fn resolve(self, keys: &mut Keys<'_>) -> Option<Transformer> {
        let problem = match self.read() {
            Ok(model) => return Some(model),
            Err(problem) => problem,
        };
        let at = keys.entry("config").map(|entry| entry.node.span);
        keys.reader().problem(at.into_iter().fold(problem, Problem::at));
        None
    }

    fn read(&self) -> Result<Transformer, Problem> {
        let file = self.config.display();
        let text = regular::read_to_string(&self.config).map_err(|error| {
            Problem::new(format!("cannot read {file}: {}", regular::reason(&error)))
                .help("use the path of a model's config.json; relative paths start at the folder of the experiment file")
        })?;
        let fields = ConfigFields::parse(&text).map_err(|problem| {
            Problem::new(format!("{file} is not a model configuration: {problem}"))
                .help("use the path of a model's config.json")
        })?;
        transformer(&fields, self).map_err(|ConfigError { field, message, help }| {
            let place = place(&self.config, &text, field.as_deref());
            Problem::new(format!("{place}: {message}")).help(help)
        })
    }
}

fn transformer(fields: &ConfigFields, hf: &Hf) -> Result<Transformer, ConfigError> {
    let model_type = fields.string("model_type")?.ok_or_else(|| fields.missing("model_type"))?;
    let known = ModelFamily::ALL;
    let family = known.iter().find(|family| family.keyword() == model_type).ok_or_else(|| {
        let known: Vec<&str> = known.iter().map(|family| family.keyword()).collect();
        ConfigError {
            field: Some("model_type".to_owned()),
            message: format!("`model_type` is \"{model_type}\", which runner does not support"),
            help: format!("use one of {}, or describe the model in [model.transformer]", known.join(", ")),
        }
    })?;
    let model = family.read(fields, hf)?;
    fields.check_initialization(model.weights.is_some())?;
    fields.check_unknown(&model_type)?;
    Ok(model)
}

/// The file and, if it contains the field, its line.
fn place(file: &Path, text: &str, field: Option<&str>) -> String {
    let at = field.and_then(|field| text.find(&format!("\"{field}\"")));
    match at {
        Some(at) => format!("{}:{}", file.display(), text[..at].matches('\n').count() + 1),
        None => file.display().to_string(),
    }
}

#[cfg(test)]
mod configurations;
#[cfg(test)]
mod tests;
