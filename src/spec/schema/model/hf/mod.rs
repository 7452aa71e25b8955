//! `[model.hf]`: a transformer described by a Hugging Face `config.json`, resolved to `[model.transformer]`.

mod activation;
mod fields;
mod gemma;
mod gpt2;
mod llama;
mod rotary;
mod windows;

use std::path::{Path, PathBuf};

use fields::{ConfigError, ConfigFields};

use super::Transformer;
use crate::reader::declare::{Accepting, Optional, key_table};
use crate::reader::error::{Problem, reason};
use crate::reader::keys::Keys;
use crate::reader::parsers::{Boolean, DIMENSION};
use crate::reader::paths::FilePath;
use base::regular;

/// A model type of the library.
struct Family {
    model_type: &'static str,
    /// The library's class of the model with its head.
    class: &'static str,
    read: fn(&ConfigFields, &Hf) -> Result<Transformer, ConfigError>,
}

/// All model types. To add one, add its line here.
const FAMILIES: [Family; 6] = [
    Family { model_type: "gpt2", class: "GPT2LMHeadModel", read: gpt2::read },
    Family {
        model_type: "llama",
        class: "LlamaForCausalLM",
        read: |fields, hf| llama::read(fields, hf, "llama"),
    },
    Family {
        model_type: "mistral",
        class: "MistralForCausalLM",
        read: |fields, hf| llama::read(fields, hf, "mistral"),
    },
    Family {
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        read: |fields, hf| llama::read(fields, hf, "qwen2"),
    },
    Family {
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        read: |fields, hf| llama::read(fields, hf, "qwen3"),
    },
    Family { model_type: "gemma2", class: "Gemma2ForCausalLM", read: gemma::read },
];

const CONFIG: Accepting<FilePath> = Accepting(FilePath("config.json"), |path| {
    let families: Vec<String> =
        FAMILIES.iter().map(|family| format!("`{}` ({})", family.model_type, family.class)).collect();
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
        pub weights: Option<PathBuf> = Optional(FilePath("model.safetensors")), default None;
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
            Problem::new(format!("cannot read {file}: {}", reason(&error)))
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
    let family = FAMILIES.iter().find(|family| family.model_type == model_type).ok_or_else(|| {
        let known = FAMILIES.map(|family| family.model_type).join(", ");
        ConfigError {
            field: Some("model_type".to_owned()),
            message: format!("`model_type` is \"{model_type}\", which runner does not support"),
            help: format!("use one of {known}, or describe the model in [model.transformer]"),
        }
    })?;
    let model = (family.read)(fields, hf)?;
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
