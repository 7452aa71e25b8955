//! The fields of a configuration: each is read, known to have no effect, or rejected.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::Hf;
use crate::reader::parsers::{DIMENSION, POSITIVE, UsizeRange};
use crate::schema::model::transformer::{LAYERS, RATE};
use base::brief;

/// Fields about storing, calling or sampling from a model, which do not change its computation.
const CHANGE_NOTHING: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "is_decoder",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    // The number of slices in which matmuls are computed.
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "use_bfloat16",
    "use_cache",
];

/// Standard deviation of randomly initialized parameters.
const DEVIATION: f64 = 0.02;

/// A problem of a configuration, and a hint.
#[derive(Debug)]
pub(super) struct ConfigError {
    pub(super) field: Option<String>,
    pub(super) message: String,
    pub(super) help: String,
}

pub(super) struct ConfigFields {
    map: Map<String, Value>,
    /// The name of a nested table: `rope_scaling`.
    name: Option<&'static str>,
    requested: RefCell<BTreeSet<String>>,
}

impl ConfigFields {
    /// Fails if the text is not a JSON object.
    pub(super) fn parse(text: &str) -> Result<ConfigFields, String> {
        match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(ConfigFields { map, name: None, requested: RefCell::default() }),
            Ok(_) => Err("it is JSON, but not an object".to_owned()),
            Err(error) => Err(format!("it is not JSON: {error}")),
        }
    }

    /// The value of a field, unless it is missing or null.
    fn get(&self, field: &str) -> Option<&Value> {
        self.requested.borrow_mut().insert(field.to_owned());
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn full(&self, field: &str) -> String {
        self.name.map_or_else(|| field.to_owned(), |name| format!("{name}.{field}"))
    }

    /// The error about a missing required field.
    pub(super) fn missing(&self, field: &str) -> ConfigError {
        let message = format!("`{}` is missing", self.full(field));
        let help = "use a complete config.json, as published or saved".to_owned();
        ConfigError { field: self.name.map(str::to_owned), message, help }
    }

    /// The error about an unsupported value.
    pub(super) fn unsupported(&self, field: &str, expected: &str) -> ConfigError {
        let found = self.map.get(field).unwrap_or(&Value::Null).to_string();
        let message =
            format!("`{}` is {}, which runner does not support", self.full(field), brief::line(&found));
        ConfigError { field: Some(field.to_owned()), message, help: format!("it supports {expected}") }
    }

    fn mismatch(&self, field: &str, expected: &str) -> ConfigError {
        let found = self.map.get(field).unwrap_or(&Value::Null).to_string();
        let message = format!("`{}` must be {expected}, not {}", self.full(field), brief::line(&found));
        ConfigError {
            field: Some(field.to_owned()),
            message,
            help: "correct it, or save the model again".to_owned(),
        }
    }

    pub(super) fn size(&self, field: &str) -> Result<usize, ConfigError> {
        self.optional_size(field)?.ok_or_else(|| self.missing(field))
    }

    pub(super) fn optional_size(&self, field: &str) -> Result<Option<usize>, ConfigError> {
        self.integer(field, DIMENSION)
    }

    /// A size; `null` if the field is null, `default` if it is missing.
    pub(super) fn size_or(&self, field: &str, null: usize, default: usize) -> Result<usize, ConfigError> {
        let otherwise = if self.map.contains_key(field) { null } else { default };
        Ok(self.optional_size(field)?.unwrap_or(otherwise))
    }

    /// The number of blocks.
    pub(super) fn layers(&self, field: &str) -> Result<usize, ConfigError> {
        self.integer(field, LAYERS)?.ok_or_else(|| self.missing(field))
    }

    pub(super) fn integer(
        &self,
        field: &str,
        UsizeRange(range): UsizeRange,
    ) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        let expected = || format!("a whole number from {} to {}", range.start(), range.end());
        size.filter(|size| range.contains(size)).map(Some).ok_or_else(|| self.mismatch(field, &expected()))
    }

    /// A number above 0.
    pub(super) fn number(&self, field: &str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = value.as_f64().filter(|number| (POSITIVE.holds)(*number));
        number.map(Some).ok_or_else(|| self.mismatch(field, POSITIVE.expected))
    }

    /// A number above 0; `None` if the field is null, `default` if it is missing.
    pub(super) fn number_or(&self, field: &str, default: f64) -> Result<Option<f64>, ConfigError> {
        Ok(if self.map.contains_key(field) { self.number(field)? } else { Some(default) })
    }

    /// Whether a field is present and null.
    pub(super) fn is_null(&self, field: &str) -> bool {
        self.map.get(field).is_some_and(Value::is_null)
    }

    pub(super) fn flag(&self, field: &str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.mismatch(field, "true or false"))
    }

    pub(super) fn string(&self, field: &str) -> Result<Option<String>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_str().map(|word| Some(word.to_owned())).ok_or_else(|| self.mismatch(field, "a word"))
    }

    pub(super) fn strings(&self, field: &str) -> Result<Option<Vec<String>>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let word = |value: &Value| value.as_str().map(str::to_owned);
        let words = value.as_array().and_then(|values| values.iter().map(word).collect());
        words.map(Some).ok_or_else(|| self.mismatch(field, "a list of words"))
    }

    /// A nested table.
    pub(super) fn table(&self, field: &'static str) -> Result<Option<ConfigFields>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.mismatch(field, "a table"))?.clone();
        Ok(Some(ConfigFields { map, name: Some(field), requested: RefCell::default() }))
    }

    /// The meaning of a string field, one of `known`; `default` if it is missing.
    pub(super) fn one_of<T: Copy>(
        &self,
        field: &str,
        default: &str,
        known: &[(&str, T)],
    ) -> Result<T, ConfigError> {
        let word = self.string(field)?;
        let word = word.as_deref().unwrap_or(default);
        let found = known.iter().find(|(name, _)| *name == word);
        let names =
            || known.iter().map(|(name, _)| format!("\"{name}\"")).collect::<Vec<String>>().join(", ");
        found.map(|(_, meaning)| *meaning).ok_or_else(|| self.unsupported(field, &names()))
    }

    /// Checks that a field is missing or has this value.
    pub(super) fn require(&self, field: &str, expected: &Value) -> Result<(), ConfigError> {
        let same = |value: &Value| match (value.as_f64(), expected.as_f64()) {
            (Some(found), Some(expected)) => found == expected,
            _ => value == expected,
        };
        if self.get(field).is_none_or(same) {
            Ok(())
        } else {
            Err(self.unsupported(field, &expected.to_string()))
        }
    }

    /// A dropout probability; `default` if it is missing, 0 if `hf` disables dropout.
    pub(super) fn dropout_rate(&self, field: &str, default: f64, hf: &Hf) -> Result<f64, ConfigError> {
        let rate = self.get(field).map_or(Some(default), Value::as_f64);
        if !hf.dropout {
            return Ok(0.0);
        }
        rate.filter(|rate| (RATE.holds)(*rate)).ok_or_else(|| self.mismatch(field, RATE.expected))
    }

    /// Ignores fields that do not affect training.
    pub(super) fn ignore(&self, fields: &[&str]) {
        self.requested.borrow_mut().extend(fields.iter().map(|field| (*field).to_owned()));
    }

    /// Checks the standard deviation of randomly initialized parameters; `is_stored`: parameters are loaded instead.
    pub(super) fn check_initialization(&self, is_stored: bool) -> Result<(), ConfigError> {
        match self.get("initializer_range").map(Value::as_f64) {
            Some(found) if !is_stored && found != Some(DEVIATION) => Err(ConfigError {
                field: Some("initializer_range".to_owned()),
                message: "`initializer_range` must be 0.02 for random initialization".to_owned(),
                help: "set weights, or change the field to 0.02".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Fails if there are unknown fields.
    pub(super) fn check_unknown(&self, family: &str) -> Result<(), ConfigError> {
        let requested = self.requested.borrow();
        let unknown = |(field, value): &(&String, &Value)| {
            !requested.contains(*field) && !CHANGE_NOTHING.contains(&field.as_str()) && !value.is_null()
        };
        let unknown: Vec<String> =
            self.map.iter().filter(unknown).map(|(field, _)| brief::line(field).into_owned()).collect();
        let Some(first) = unknown.first() else { return Ok(()) };
        let fields: Vec<String> = unknown.iter().map(|field| format!("`{}`", self.full(field))).collect();
        let what = if fields.len() == 1 { "is an unknown field" } else { "are unknown fields" };
        Err(ConfigError {
            field: Some(first.clone()),
            message: format!("{} {what} of {family}", fields.join(", ")),
            help: "runner would ignore its effect; if it has none, remove it from a copy of the file"
                .to_owned(),
        })
    }
}
