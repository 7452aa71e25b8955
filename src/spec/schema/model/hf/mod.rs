//! `[model.hf]`: a transformer described by a Hugging Face `config.json`, resolved to `[model.transformer]`.

mod activation;
mod fields;
mod gemma;
mod gpt2;
mod json;
mod known;
mod llama;
mod quantization;
mod rotary;
mod unsupported;
mod windows;
mod write;

use std::io;
use std::path::{Path, PathBuf};

pub use write::HfConfiguration;

use fields::{ConfigError, ConfigFields, Findings};
use serde_json::{Value, json};

use super::Transformer;
use crate::reader::declare::{Accepting, KeywordEnum, Optional, key_table, keywords};
use crate::reader::error::{Problem, Remark};
use crate::reader::keys::Keys;
use crate::reader::list::List;
use crate::reader::parsers::{Boolean, DIMENSION, NonEmptyText};
use crate::reader::paths::{PathCodec, file_path};
use base::units::Bytes;
use base::{brief, regular};

/// Largest configuration, with room for the labels and token lists that some contain.
const LARGEST_FILE: Bytes = Bytes(64 << 20);

keywords! {
    /// The model families of `config.json`, by their `model_type`. To add one, add its line here; the matches over them
    /// do not compile without it.
    pub enum ModelFamily {
        Gpt2 = "gpt2",
        Llama = "llama",
        Mistral = "mistral",
        Qwen2 = "qwen2",
        Qwen3 = "qwen3",
        Gemma = "gemma",
        Gemma2 = "gemma2",
        Phi3 = "phi3",
        Starcoder2 = "starcoder2",
        GptNeo = "gpt_neo",
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
            ModelFamily::Gemma => "GemmaForCausalLM",
            ModelFamily::Gemma2 => "Gemma2ForCausalLM",
            ModelFamily::Phi3 => "Phi3ForCausalLM",
            ModelFamily::Starcoder2 => "Starcoder2ForCausalLM",
            ModelFamily::GptNeo => "GPTNeoForCausalLM",
        }
    }

    /// The library's default of `initializer_range`.
    fn deviation(self) -> f64 {
        if self == ModelFamily::Starcoder2 { 0.018_042 } else { 0.02 }
    }

    fn read(self, fields: &ConfigFields, hf: &Hf) -> Transformer {
        match self {
            ModelFamily::Gpt2 => gpt2::gpt2(fields, hf),
            ModelFamily::GptNeo => gpt2::gpt_neo(fields, hf),
            ModelFamily::Llama | ModelFamily::Mistral | ModelFamily::Qwen2 | ModelFamily::Qwen3 => {
                llama::read(fields, hf, self)
            }
            ModelFamily::Phi3 => llama::phi3(fields, hf),
            ModelFamily::Starcoder2 => llama::starcoder2(fields, hf),
            ModelFamily::Gemma => gemma::gemma(fields, hf),
            ModelFamily::Gemma2 => gemma::gemma2(fields, hf),
        }
    }
}

const IGNORE: List<NonEmptyText> = List {
    of: "fields",
    example: "[\"unsloth_version\"]",
    may_be_empty: true,
    may_repeat: false,
    element: NonEmptyText,
};

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
        /// Fields of the configuration to ignore: unknown ones, which stop a sweep, and `quantization_config`.
        pub ignore: Vec<String> = IGNORE, default Vec::new();
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

/// A described model.
#[derive(Debug)]
struct Described {
    model: Transformer,
    /// Unknown fields, by full name.
    unknown: Vec<String>,
    /// The problem of a run without a quantized base, if the weights are quantized.
    quantized: Option<ConfigError>,
}

impl Hf {
    /// A configuration without further keys.
    fn of(config: &str) -> Hf {
        Hf { config: config.into(), context: None, dropout: true, ignore: Vec::new(), weights: None }
    }

    /// The described model. Problems of the configuration are reported at the key `config`.
    pub(super) fn resolve(self, keys: &mut Keys<'_>) -> Option<Transformer> {
        let span = keys.entry("config").map(|entry| entry.node.span);
        let at = |problem| span.into_iter().fold(problem, Problem::at);
        let file = self.config.display();
        let text = match regular::open_up_to(&self.config, LARGEST_FILE).and_then(io::read_to_string) {
            Ok(text) => text,
            Err(error) => {
                let problem = Problem::new(format!("cannot read {file}: {}", regular::reason(&error)));
                let help = "use the path of a model's config.json; relative paths start at the folder of the experiment file";
                keys.reader().problem(at(problem.help(help)));
                return None;
            }
        };
        let map = match json::object(&text) {
            Ok(map) => map,
            Err(reason) => {
                let problem = Problem::new(format!("{file} is not a model configuration: {reason}"));
                keys.reader().problem(at(problem.help("use the path of a model's config.json")));
                return None;
            }
        };
        let position = |field: Option<&str>| field.and_then(|field| text.find(&format!("\"{field}\"")));
        let problem = |ConfigError { field, message, help }: ConfigError| {
            let place = place(&self.config, &text, position(field.as_deref()));
            at(Problem::new(format!("{place}: {message}")).help(help))
        };
        match describe(&map, &self) {
            Ok(Described { model, unknown, quantized }) => {
                if let Some(error) = unknown_fields(&unknown) {
                    keys.reader().remark(Remark::Unread(problem(error)));
                }
                if let Some(error) = quantized {
                    keys.reader().remark(Remark::Quantized(problem(error)));
                }
                Some(model)
            }
            Err(mut errors) => {
                errors.sort_by_key(|error| position(error.field.as_deref()));
                errors.into_iter().for_each(|error| keys.reader().problem(problem(error)));
                None
            }
        }
    }
}

/// The model of a configuration, or all its errors.
fn describe(map: &serde_json::Map<String, Value>, hf: &Hf) -> Result<Described, Vec<ConfigError>> {
    let findings = Findings::default();
    let fields = ConfigFields::new(map, &findings);
    let Some(family) = family(&fields) else { return Err(findings.errors.into_inner()) };
    for (field, expected) in [
        ("add_cross_attention", json!(false)),
        ("is_encoder_decoder", json!(false)),
        ("pruned_heads", json!({})),
    ] {
        fields.require(field, &expected);
    }
    let mut model = family.read(&fields, hf);
    // Stored parameters are not drawn.
    match hf.weights {
        Some(_) => fields.ignore(&["initializer_range"]),
        None => model.initial_deviation = fields.number("initializer_range").unwrap_or(family.deviation()),
    }
    model.weights.clone_from(&hf.weights);
    let is_ignored = |field: &str| hf.ignore.iter().any(|ignored| ignored == field);
    let quantized = if is_ignored(quantization::FIELD) { None } else { quantization::read(&fields) };
    fields.ignore(&[quantization::FIELD]);
    fields.check_unread(family.keyword());
    let Findings { errors, unknown } = findings;
    let errors = errors.into_inner();
    if !errors.is_empty() {
        return Err(errors);
    }
    let unknown = unknown.into_inner().into_iter().filter(|field| !is_ignored(field)).collect();
    Ok(Described { model, unknown, quantized })
}

/// The family: by `model_type`, which early versions of the library did not write, else by the class of the model or by
/// GPT-2's field names.
fn family(fields: &ConfigFields) -> Option<ModelFamily> {
    let Some(model_type) = fields.word("model_type") else {
        if fields.has("model_type") {
            return None;
        }
        let found = of_class(fields.map())
            .or_else(|| (fields.has("n_embd") && fields.has("n_layer")).then_some(ModelFamily::Gpt2));
        if found.is_none() {
            fields.missing("model_type");
        }
        return found;
    };
    let found = ModelFamily::ALL.iter().find(|family| family.keyword() == model_type);
    if found.is_none() {
        unknown_family(fields, &model_type);
    }
    found.copied()
}

/// The family of the class in `architectures`, whatever its head and the case of its name.
fn of_class(map: &serde_json::Map<String, Value>) -> Option<ModelFamily> {
    let stem = |class: &str| {
        let heads = ["LMHeadModel", "DoubleHeadsModel", "ForCausalLM", "Model"];
        let head = heads.iter().find_map(|head| class.strip_suffix(head));
        head.or_else(|| class.split_once("For").map(|(stem, _)| stem)).map(str::to_lowercase)
    };
    let classes = map.get("architectures")?.as_array()?;
    let stems: Vec<String> = classes.iter().filter_map(Value::as_str).filter_map(stem).collect();
    let is_named = |family: &&ModelFamily| stem(family.class()).is_some_and(|stem| stems.contains(&stem));
    ModelFamily::ALL.iter().find(is_named).copied()
}

fn unknown_family(fields: &ConfigFields, model_type: &str) {
    let known: Vec<&str> = ModelFamily::ALL.iter().map(|family| family.keyword()).collect();
    let known = known.join(", ");
    let name = brief::line(model_type);
    let (reason, help) = match unsupported::missing(model_type, fields.map()) {
        Some(missing) if missing.describable => (
            "which runner does not read".to_owned(),
            format!(
                "describe the model in [model.transformer], whose keys cover its blocks, or use one of {known}"
            ),
        ),
        Some(missing) => (
            format!("a model with {}, which runner does not support", missing.part),
            format!("use a model of these families: {known}"),
        ),
        None => (
            "which runner does not know".to_owned(),
            format!(
                "use one of {known}; [model.transformer] describes other decoders, if its keys cover their blocks"
            ),
        ),
    };
    fields.error("model_type", format!("`model_type` is \"{name}\", {reason}"), help);
}

/// The problem of unknown fields: they could change the training.
fn unknown_fields(unknown: &[String]) -> Option<ConfigError> {
    let first = unknown.first()?;
    let names: Vec<String> = unknown.iter().map(|field| format!("`{field}`")).collect();
    let (are, they) = if unknown.len() == 1 {
        ("is an unknown field", "it changes")
    } else {
        ("are unknown fields", "they change")
    };
    let quoted: Vec<String> = unknown.iter().map(|field| format!("{field:?}")).collect();
    Some(ConfigError {
        field: first.rsplit('.').next().map(str::to_owned),
        message: format!("{} {are}: runner ignores what {they}", names.join(", ")),
        help: format!("if {they} nothing in training, write ignore = [{}] in [model.hf]", quoted.join(", ")),
    })
}

/// The file, and the line of a position in it.
fn place(file: &Path, text: &str, at: Option<usize>) -> String {
    match at {
        Some(at) => format!("{}:{}", file.display(), text[..at].matches('\n').count() + 1),
        None => file.display().to_string(),
    }
}

#[cfg(test)]
mod configurations;
#[cfg(test)]
mod tests;
