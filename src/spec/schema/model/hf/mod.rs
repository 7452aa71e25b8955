//! `[model.hf]`: a transformer described by a Hugging Face `config.json`, resolved to `[model.transformer]`.

mod activation;
mod experts;
mod fields;
mod gemma;
mod gpt2;
mod json;
mod known;
mod llama;
mod olmo;
mod parallel;
mod published;
mod quantization;
mod rotary;
mod unsupported;
mod windows;
mod write;

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

pub use published::{BuiltInModel, built_in_models};
pub use write::HfConfiguration;

use fields::{ConfigError, ConfigFields, Findings};
use serde_json::{Map, Value, json};

use super::Transformer;
use crate::reader::declare::{Accepting, KeywordEnum, Optional, key_table, keywords};
use crate::reader::error::{Problem, Remark};
use crate::reader::keys::{Keys, ValueParser as _};
use crate::reader::list::List;
use crate::reader::parsers::{Boolean, DIMENSION, NonEmptyText};
use crate::reader::paths::{PathCodec, file_path};
use crate::reader::reference::Accepts;
use crate::reader::tree::{Node, Table, TableEntry, Value as TreeValue};
use base::units::Bytes;
use base::{brief, regular};
use data::weights_in;

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
        Gemma3 = "gemma3_text",
        Phi3 = "phi3",
        Starcoder2 = "starcoder2",
        GptNeo = "gpt_neo",
        Smollm3 = "smollm3",
        Granite = "granite",
        Olmo2 = "olmo2",
        Olmo3 = "olmo3",
        GptNeox = "gpt_neox",
        Phi = "phi",
        Falcon = "falcon",
        Mixtral = "mixtral",
        Qwen3Moe = "qwen3_moe",
        Olmoe = "olmoe",
    }
}

impl ModelFamily {
    /// The library's class of the model with its head.
    pub fn class(self) -> &'static str {
        match self {
            ModelFamily::Gpt2 => "GPT2LMHeadModel",
            ModelFamily::Llama => "LlamaForCausalLM",
            ModelFamily::Mistral => "MistralForCausalLM",
            ModelFamily::Qwen2 => "Qwen2ForCausalLM",
            ModelFamily::Qwen3 => "Qwen3ForCausalLM",
            ModelFamily::Gemma => "GemmaForCausalLM",
            ModelFamily::Gemma2 => "Gemma2ForCausalLM",
            ModelFamily::Gemma3 => "Gemma3ForCausalLM",
            ModelFamily::Phi3 => "Phi3ForCausalLM",
            ModelFamily::Starcoder2 => "Starcoder2ForCausalLM",
            ModelFamily::GptNeo => "GPTNeoForCausalLM",
            ModelFamily::Smollm3 => "SmolLM3ForCausalLM",
            ModelFamily::Granite => "GraniteForCausalLM",
            ModelFamily::Olmo2 => "Olmo2ForCausalLM",
            ModelFamily::Olmo3 => "Olmo3ForCausalLM",
            ModelFamily::GptNeox => "GPTNeoXForCausalLM",
            ModelFamily::Phi => "PhiForCausalLM",
            ModelFamily::Falcon => "FalconForCausalLM",
            ModelFamily::Mixtral => "MixtralForCausalLM",
            ModelFamily::Qwen3Moe => "Qwen3MoeForCausalLM",
            ModelFamily::Olmoe => "OlmoeForCausalLM",
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
            ModelFamily::Llama
            | ModelFamily::Mistral
            | ModelFamily::Qwen2
            | ModelFamily::Qwen3
            | ModelFamily::Smollm3
            | ModelFamily::Granite => llama::read(fields, hf, self),
            ModelFamily::Olmo2 => olmo::olmo2(fields, hf),
            ModelFamily::Olmo3 => olmo::olmo3(fields, hf),
            ModelFamily::GptNeox => parallel::gpt_neox(fields, hf),
            ModelFamily::Phi => parallel::phi(fields, hf),
            ModelFamily::Falcon => parallel::falcon(fields, hf),
            ModelFamily::Mixtral => experts::mixtral(fields, hf),
            ModelFamily::Qwen3Moe => experts::qwen3(fields, hf),
            ModelFamily::Olmoe => experts::olmoe(fields, hf),
            ModelFamily::Phi3 => llama::phi3(fields, hf),
            ModelFamily::Starcoder2 => llama::starcoder2(fields, hf),
            ModelFamily::Gemma => gemma::gemma(fields, hf),
            ModelFamily::Gemma2 => gemma::gemma2(fields, hf),
            ModelFamily::Gemma3 => gemma::gemma3(fields, hf),
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
    /// A Hugging Face model configuration, and the keys that override it. `model.hf = "NAME"` is short for a table with
    /// `published`, `model.hf = "./FOLDER"` for one with `config`.
    pub struct Hf: Default {
        /// Path of a `config.json`, or of a model's folder, whose weights are loaded if it has any; relative to the
        /// experiment file.
        pub config: Option<PathBuf> = Optional(CONFIG), default None;
        /// A built-in configuration in place of a file: `runner models` lists them.
        pub published: Option<String> = Optional(NonEmptyText), default None;
        /// Context length in tokens; by default the number of positions of the configuration.
        pub context: Option<usize> = Optional(DIMENSION), default None;
        /// Whether to use the dropout probabilities of the configuration; false: no dropout.
        pub dropout: bool = Boolean, default true;
        /// Fields of the configuration to ignore: unknown ones, which stop a sweep, and `quantization_config`.
        pub ignore: Vec<String> = IGNORE, default Vec::new();
        /// Safetensors file with the initial parameters, or the index of several; by default those of the folder
        /// `config`, else parameters are initialized randomly.
        pub weights: Option<PathBuf> = Optional(file_path("model.safetensors")), default None;
    }
}

/// The keys of `[model.hf]` of which the first that was written decides a key of `[model.transformer]`.
pub(crate) fn decides(key: &str) -> Vec<String> {
    let keys: &[&str] = match key.strip_prefix("model.transformer.") {
        None => &[],
        Some("context") => &["context"],
        // A folder has weights, too.
        Some("weights") => &["weights", "config", "published"],
        Some(_) => &["config", "published"],
    };
    keys.iter().map(|key| format!("model.hf.{key}")).collect()
}

/// A described model.
#[derive(Debug)]
struct Described {
    model: Transformer,
    /// Unknown fields, by full name.
    unknown: Vec<String>,
    /// Fields to ignore that are no unknown fields.
    unneeded: Vec<String>,
    /// The problem of a run without a quantized base, if the weights are quantized.
    quantized: Option<ConfigError>,
}

/// Expands `model.hf = "NAME"` to the table that it is short for. The other key is off, so that it replaces one of a file
/// that this one extends.
pub(crate) fn expand_shorthand(file: &mut Table) {
    let Some(model) = file.table_mut("model") else { return };
    let Some(entry) = model.entries.iter_mut().find(|entry| entry.key == "hf") else { return };
    let Node { value: TreeValue::Text(text), span } = &entry.node else { return };
    if text == "off" {
        return;
    }
    let is_path = text.contains('/') || text.ends_with(".json");
    let [chosen, other] = if is_path { ["config", "published"] } else { ["published", "config"] };
    let (span, key_span) = (*span, entry.key_span);
    let entry_of = |key: &str, text: &str| TableEntry {
        key: key.to_owned(),
        key_span,
        node: Node { value: TreeValue::Text(text.to_owned()), span },
    };
    let entries = vec![entry_of(chosen, text), entry_of(other, "off")];
    entry.node = Node { value: TreeValue::Table(Table { entries }), span };
}

/// The values of `model` in a file: `hf` may be short.
pub(crate) fn shorthand(mut model: Accepts) -> Accepts {
    let text = "a name of `runner models`, or the path of a folder or a `config.json`";
    for hf in model.keys.iter_mut().filter(|variant| variant.key == "hf") {
        hf.accepts = hf.accepts.clone().or(text, NonEmptyText.forms());
    }
    model
}

impl Hf {
    /// The described model. Problems of the configuration are reported at the key that chose it.
    pub(super) fn resolve(self, keys: &mut Keys<'_>) -> Option<Transformer> {
        let [config, published] =
            ["config", "published"].map(|key| keys.entry(key).map(|entry| entry.node.span));
        let (places, source) = match (&self.config, &self.published) {
            (Some(_), Some(_)) => (
                [config, published],
                Err(Problem::new("[model.hf] has both `config` and `published`: choose one")),
            ),
            (Some(path), None) => ([config, None], Source::at(path)),
            (None, Some(name)) => {
                let folder = published.map(|span| keys.reader().sources.directory(span).join(name));
                ([published, None], Source::named(name, folder.as_deref()))
            }
            (None, None) => {
                keys.missing("config", "`config = \"config.json\"`, or `published = \"gpt2\"`");
                return None;
            }
        };
        let at = |problem| places.into_iter().flatten().fold(problem, Problem::at);
        let Source { file, text, map, weights } =
            source.map_err(|problem| keys.reader().problem(at(problem))).ok()?;
        let hf = Hf { weights: self.weights.or(weights), ..self };
        let position = |field: Option<&str>| field.and_then(|field| text.find(&format!("\"{field}\"")));
        let problem = |ConfigError { field, message, help }: ConfigError| {
            let place = place(&file, &text, position(field.as_deref()));
            at(Problem::new(format!("{place}: {message}")).help(help))
        };
        match describe(&map, &hf) {
            Ok(Described { model, unknown, unneeded, quantized }) => {
                if let Some(error) = unknown_fields(&unknown) {
                    keys.reader().remark(Remark::Unread(problem(error)));
                }
                let ignore = keys.entry("ignore").map(|entry| entry.node.span);
                for field in &unneeded {
                    let (field, file) = (brief::line(field), file.display());
                    let message =
                        format!("`ignore` lists `{field}`, but {file} has no unknown field of that name");
                    let problem = Problem::new(message).help("remove it there");
                    keys.reader().remark(Remark::Unneeded(ignore.into_iter().fold(problem, Problem::at)));
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

/// A configuration that was read.
struct Source {
    /// For messages: the file, or the name of a built-in configuration.
    file: PathBuf,
    text: String,
    map: Map<String, Value>,
    /// The weights beside it.
    weights: Option<PathBuf>,
}

impl Source {
    /// A configuration file, or a folder with one.
    fn at(path: &Path) -> Result<Source, Problem> {
        if path.is_dir() {
            let source = Source::of_file(&path.join("config.json"))?;
            return Ok(Source { weights: weights_in(path), ..source });
        }
        Source::of_file(path)
    }

    /// A built-in configuration, or else the folder of this name.
    fn named(name: &str, folder: Option<&Path>) -> Result<Source, Problem> {
        let folder = folder.filter(|folder| folder.is_dir());
        match (published::find(name), folder) {
            (Some(_), Some(_)) => Err(Problem::new(format!(
                "`{name}` is a built-in configuration, and a folder beside this file"
            ))
            .help(format!(
                "write ./{name} for the folder; rename the folder to use the built-in configuration"
            ))),
            (Some(config), None) => Source::parse(Path::new(name), config),
            (None, Some(folder)) => Source::at(folder),
            (None, None) => Err(Problem::new(format!("there is no built-in configuration \"{name}\""))
                .help(published::near(name))),
        }
    }

    fn of_file(path: &Path) -> Result<Source, Problem> {
        let text = regular::open_up_to(path, LARGEST_FILE).and_then(io::read_to_string).map_err(|error| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            let help = match published::find(name) {
                Some(_) => format!("write published = \"{name}\" for the built-in configuration"),
                None => "use the path of a model's config.json or its folder; relative paths start at the folder of \
                         the experiment file"
                    .to_owned(),
            };
            Problem::new(format!("cannot read {}: {}", path.display(), regular::reason(&error))).help(help)
        })?;
        Source::parse(path, text)
    }

    fn parse(file: &Path, text: String) -> Result<Source, Problem> {
        let map = json::object(&text).map_err(|reason| {
            Problem::new(format!("{} is not a model configuration: {reason}", file.display()))
                .help("use the path of a model's config.json")
        })?;
        Ok(Source { file: file.to_owned(), text, map, weights: None })
    }
}

/// The model of a configuration, or all its errors.
fn describe(map: &Map<String, Value>, hf: &Hf) -> Result<Described, Vec<ConfigError>> {
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
    model.family = Some(family);
    model.weights.clone_from(&hf.weights);
    let is_ignored = |field: &str| hf.ignore.iter().any(|ignored| ignored == field);
    let quantized = if is_ignored(quantization::FIELD) { None } else { quantization::read(&fields) };
    fields.ignore(&[quantization::FIELD]);
    fields.check_unread(family.keyword());
    for field in hf.ignore.iter().filter(|field| *field != quantization::FIELD && fields.is_read(field)) {
        let message = format!("`ignore` lists `{field}`, which runner reads");
        fields.error(field, message, "`ignore` is for unknown fields: remove it there".to_owned());
    }
    let is_quantized = fields.has(quantization::FIELD);
    let Findings { errors, unknown } = findings;
    let errors = errors.into_inner();
    if !errors.is_empty() {
        return Err(errors);
    }
    let (ignored, unknown): (Vec<String>, _) =
        unknown.into_inner().into_iter().partition(|field| is_ignored(field));
    let is_unneeded = |field: &&String| match field.as_str() {
        quantization::FIELD => !is_quantized,
        _ => !ignored.contains(field),
    };
    let unneeded = hf.ignore.iter().filter(is_unneeded).cloned().collect();
    Ok(Described { model, unknown, unneeded, quantized })
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
fn of_class(map: &Map<String, Value>) -> Option<ModelFamily> {
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
