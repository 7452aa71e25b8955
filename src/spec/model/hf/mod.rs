//! `[model.hf]`: a transformer as Hugging Face's `config.json` describes it, read as the `[model.transformer]` that it is.

mod activation;
mod fields;
mod gemma;
mod gpt2;
mod llama;
mod rotary;
mod windows;

use std::path::{Path, PathBuf};

use fields::{Fields, Mistake};

use super::Transformer;
use crate::declare::{Optional, section};
use crate::error::Problem;
use crate::kinds::{DIMENSION, Flag};
use crate::load::reason;
use crate::paths::OneFile;
use crate::reader::Keys;
use base::regular;

section! {
    /// What is said of a configuration beside what is in it.
    pub struct Hf {
        pub config: PathBuf = OneFile("config.json");
        /// Positions in a sequence, if not all that the configuration has.
        pub context: Option<usize> = Optional(DIMENSION), default None;
        /// Whether there is what the configuration has of dropout.
        pub dropout: bool = Flag, default true;
        /// A safetensors file that parameters start from, or the index of several.
        pub weights: Option<PathBuf> = Optional(OneFile("model.safetensors")), default None;
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
    /// What the configuration describes; what is wrong with it is told as a problem of its key.
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
                .help("name the config.json of a model; relative paths start at the folder of the experiment")
        })?;
        let fields = Fields::parse(&text).map_err(|problem| {
            Problem::new(format!("{file} is no configuration: {problem}"))
                .help("name the config.json of a model")
        })?;
        transformer(&fields, self).map_err(|Mistake { field, message, help }| {
            let place = place(&self.config, &text, field.as_deref());
            Problem::new(format!("{place}: {message}")).help(help)
        })
    }
}

fn transformer(fields: &Fields, hf: &Hf) -> Result<Transformer, Mistake> {
    let family = fields.word("model_type")?.unwrap_or_default();
    let model = match family.as_str() {
        "gpt2" => gpt2::read(fields, hf),
        "llama" | "mistral" | "qwen2" | "qwen3" => llama::read(fields, hf, &family),
        "gemma2" => gemma::read(fields, hf),
        "" => Err(fields.missing("model_type")),
        _ => Err(Mistake {
            field: Some("model_type".to_owned()),
            message: format!("`model_type` is \"{family}\", which runner does not know"),
            help: "of models of Hugging Face's, it knows gpt2, llama, mistral, qwen2, qwen3 and gemma2; others may be described \
                   in [model.transformer]"
                .to_owned(),
        }),
    }?;
    fields.starts_as(model.weights.is_some())?;
    fields.are_all_known(&family)?;
    Ok(model)
}

/// The file and, if the field is written in it, its line.
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
