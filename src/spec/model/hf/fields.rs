//! The fields of a configuration: each is asked for, known to change nothing, or refused.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::Hf;
use crate::kinds::{Count, DIMENSION, POSITIVE};
use crate::model::transformer::{LAYERS, RATE};
use base::brief;

/// Fields that say how a model is stored, called or sampled from, but nothing of what it computes.
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
    // In how many parts products are computed.
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

/// What parameters that are drawn deviate by.
const DEVIATION: f64 = 0.02;

/// What is wrong with a configuration, and what would work.
#[derive(Debug)]
pub(super) struct Mistake {
    pub(super) field: Option<String>,
    pub(super) message: String,
    pub(super) help: String,
}

pub(super) struct Fields {
    map: Map<String, Value>,
    /// What this table is in the file, if it is not the whole: `rope_scaling`.
    name: Option<&'static str>,
    asked: RefCell<BTreeSet<String>>,
}

impl Fields {
    /// Fails where a text is not one table of JSON.
    pub(super) fn parse(text: &str) -> Result<Fields, String> {
        match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(Fields { map, name: None, asked: RefCell::default() }),
            Ok(_) => Err("it is JSON, but not a table".to_owned()),
            Err(error) => Err(format!("it is not JSON: {error}")),
        }
    }

    /// What a field holds, if it is there and not null.
    fn ask(&self, field: &str) -> Option<&Value> {
        self.asked.borrow_mut().insert(field.to_owned());
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn full(&self, field: &str) -> String {
        self.name.map_or_else(|| field.to_owned(), |name| format!("{name}.{field}"))
    }

    /// That a field which every model needs is not there.
    pub(super) fn missing(&self, field: &str) -> Mistake {
        let message = format!("`{}` is missing", self.full(field));
        let help = "name the config.json of a model, as it was published or saved".to_owned();
        Mistake { field: self.name.map(str::to_owned), message, help }
    }

    /// That a field holds what it must not.
    pub(super) fn refuse(&self, field: &str, expected: &str) -> Mistake {
        let found = self.map.get(field).unwrap_or(&Value::Null).to_string();
        let message =
            format!("`{}` is {}, which runner does not know", self.full(field), brief::line(&found));
        Mistake { field: Some(field.to_owned()), message, help: format!("it knows {expected}") }
    }

    fn mismatch(&self, field: &str, expected: &str) -> Mistake {
        let found = self.map.get(field).unwrap_or(&Value::Null).to_string();
        let message = format!("`{}` must be {expected}, not {}", self.full(field), brief::line(&found));
        Mistake {
            field: Some(field.to_owned()),
            message,
            help: "correct it, or save the model again".to_owned(),
        }
    }

    pub(super) fn size(&self, field: &str) -> Result<usize, Mistake> {
        self.optional_size(field)?.ok_or_else(|| self.missing(field))
    }

    pub(super) fn optional_size(&self, field: &str) -> Result<Option<usize>, Mistake> {
        self.whole(field, DIMENSION)
    }

    /// A size that is the second where it is null, and the third where it is not there.
    pub(super) fn size_or(&self, field: &str, null: usize, default: usize) -> Result<usize, Mistake> {
        let otherwise = if self.map.contains_key(field) { null } else { default };
        Ok(self.optional_size(field)?.unwrap_or(otherwise))
    }

    /// How many blocks there are.
    pub(super) fn layers(&self, field: &str) -> Result<usize, Mistake> {
        self.whole(field, LAYERS)?.ok_or_else(|| self.missing(field))
    }

    pub(super) fn whole(&self, field: &str, Count(range): Count) -> Result<Option<usize>, Mistake> {
        let Some(value) = self.ask(field) else { return Ok(None) };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        let expected = || format!("a whole number from {} to {}", range.start(), range.end());
        size.filter(|size| range.contains(size)).map(Some).ok_or_else(|| self.mismatch(field, &expected()))
    }

    /// A number above 0.
    pub(super) fn number(&self, field: &str) -> Result<Option<f64>, Mistake> {
        let Some(value) = self.ask(field) else { return Ok(None) };
        let number = value.as_f64().filter(|number| (POSITIVE.holds)(*number));
        number.map(Some).ok_or_else(|| self.mismatch(field, POSITIVE.expected))
    }

    /// The same of a field that is no number where it is null, and this one where it is not there.
    pub(super) fn number_or(&self, field: &str, default: f64) -> Result<Option<f64>, Mistake> {
        Ok(if self.map.contains_key(field) { self.number(field)? } else { Some(default) })
    }

    /// Whether a field says that there is none.
    pub(super) fn is_null(&self, field: &str) -> bool {
        self.map.get(field).is_some_and(Value::is_null)
    }

    pub(super) fn flag(&self, field: &str) -> Result<Option<bool>, Mistake> {
        let Some(value) = self.ask(field) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.mismatch(field, "true or false"))
    }

    pub(super) fn word(&self, field: &str) -> Result<Option<String>, Mistake> {
        let Some(value) = self.ask(field) else { return Ok(None) };
        value.as_str().map(|word| Some(word.to_owned())).ok_or_else(|| self.mismatch(field, "a word"))
    }

    pub(super) fn words(&self, field: &str) -> Result<Option<Vec<String>>, Mistake> {
        let Some(value) = self.ask(field) else { return Ok(None) };
        let word = |value: &Value| value.as_str().map(str::to_owned);
        let words = value.as_array().and_then(|values| values.iter().map(word).collect());
        words.map(Some).ok_or_else(|| self.mismatch(field, "a list of words"))
    }

    /// A table within this one.
    pub(super) fn table(&self, field: &'static str) -> Result<Option<Fields>, Mistake> {
        let Some(value) = self.ask(field) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.mismatch(field, "a table"))?.clone();
        Ok(Some(Fields { map, name: Some(field), asked: RefCell::default() }))
    }

    /// What of these a field says, which has a default.
    pub(super) fn one_of<T: Copy>(
        &self,
        field: &str,
        default: &str,
        known: &[(&str, T)],
    ) -> Result<T, Mistake> {
        let word = self.word(field)?;
        let word = word.as_deref().unwrap_or(default);
        let found = known.iter().find(|(name, _)| *name == word);
        let names =
            || known.iter().map(|(name, _)| format!("\"{name}\"")).collect::<Vec<String>>().join(", ");
        found.map(|(_, meaning)| *meaning).ok_or_else(|| self.refuse(field, &names()))
    }

    /// A field that may be there, but says nothing else than this.
    pub(super) fn is_just(&self, field: &str, expected: &Value) -> Result<(), Mistake> {
        let same = |value: &Value| match (value.as_f64(), expected.as_f64()) {
            (Some(found), Some(expected)) => found == expected,
            _ => value == expected,
        };
        if self.ask(field).is_none_or(same) { Ok(()) } else { Err(self.refuse(field, &expected.to_string())) }
    }

    /// A chance of elements to be dropped, and what it is where nothing is said; none if there is to be none.
    pub(super) fn chance(&self, field: &str, default: f64, hf: &Hf) -> Result<f64, Mistake> {
        let rate = self.ask(field).map_or(Some(default), Value::as_f64);
        if !hf.dropout {
            return Ok(0.0);
        }
        rate.filter(|rate| (RATE.holds)(*rate)).ok_or_else(|| self.mismatch(field, RATE.expected))
    }

    /// Fields that have nothing to do with what is trained here.
    pub(super) fn pass_over(&self, fields: &[&str]) {
        self.asked.borrow_mut().extend(fields.iter().map(|field| (*field).to_owned()));
    }

    /// Parameters that are drawn deviate as others' do.
    pub(super) fn starts_as(&self, is_stored: bool) -> Result<(), Mistake> {
        match self.ask("initializer_range").map(Value::as_f64) {
            Some(found) if !is_stored && found != Some(DEVIATION) => Err(Mistake {
                field: Some("initializer_range".to_owned()),
                message: "parameters are drawn with `initializer_range` = 0.02 alone".to_owned(),
                help: "let them start from weights, or write 0.02".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether nothing is there that nobody asked for.
    pub(super) fn are_all_known(&self, family: &str) -> Result<(), Mistake> {
        let asked = self.asked.borrow();
        let unknown = |(field, value): &(&String, &Value)| {
            !asked.contains(*field) && !CHANGE_NOTHING.contains(&field.as_str()) && !value.is_null()
        };
        let unknown: Vec<String> =
            self.map.iter().filter(unknown).map(|(field, _)| brief::line(field).into_owned()).collect();
        let Some(first) = unknown.first() else { return Ok(()) };
        let fields: Vec<String> = unknown.iter().map(|field| format!("`{}`", self.full(field))).collect();
        let what = if fields.len() == 1 { "is no field" } else { "are no fields" };
        Err(Mistake {
            field: Some(first.clone()),
            message: format!("{} {what} of {family} that runner knows", fields.join(", ")),
            help: "what it changes of the model would be left out; where it changes nothing, take it out of a copy of the file"
                .to_owned(),
        })
    }
}
