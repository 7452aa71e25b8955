//! The fields of a configuration: each is read, known to change nothing, unknown, or an error. Problems are collected.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Hf, known};
use crate::reader::parsers::{DIMENSION, FloatRange, POSITIVE, UsizeRange};
use crate::schema::model::transformer::{LAYERS, RATE};
use base::brief;

/// A problem of a configuration, and a hint.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ConfigError {
    pub(super) field: Option<String>,
    pub(super) message: String,
    pub(super) help: String,
}

/// What was found in a file, its nested tables included.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) errors: RefCell<Vec<ConfigError>>,
    /// The full names of unknown fields.
    pub(super) unknown: RefCell<Vec<String>>,
}

/// A table of fields. A field that cannot be read is an error in the findings, and its default stands in for it.
pub(super) struct ConfigFields<'a> {
    map: &'a Map<String, Value>,
    /// The name of a nested table: `rope_scaling`.
    name: Option<&'static str>,
    requested: RefCell<BTreeSet<String>>,
    findings: &'a Findings,
}

impl<'a> ConfigFields<'a> {
    pub(super) fn new(map: &'a Map<String, Value>, findings: &'a Findings) -> ConfigFields<'a> {
        ConfigFields { map, name: None, requested: RefCell::default(), findings }
    }

    /// All fields, read or not.
    pub(super) fn map(&self) -> &Map<String, Value> {
        self.map
    }

    /// The value of a field, unless it is missing or null.
    fn get(&self, field: &str) -> Option<&'a Value> {
        self.ignore(&[field]);
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn full(&self, field: &str) -> String {
        let field = brief::line(field);
        self.name.map_or_else(|| field.clone().into_owned(), |name| format!("{name}.{field}"))
    }

    pub(super) fn error(&self, field: &str, message: String, help: String) {
        self.findings.errors.borrow_mut().push(ConfigError { field: Some(field.to_owned()), message, help });
    }

    /// Reports a missing required field.
    pub(super) fn missing(&self, field: &str) {
        let message = format!("`{}` is missing", self.full(field));
        let help = "use a complete config.json, as published or saved".to_owned();
        self.error(self.name.unwrap_or(field), message, help);
    }

    /// Reports a value that is not supported.
    pub(super) fn unsupported(&self, field: &str, expected: &str) {
        let found = self.map.get(field).unwrap_or(&Value::Null).to_string();
        let message =
            format!("`{}` is {}, which runner does not support", self.full(field), brief::line(&found));
        self.error(field, message, format!("it supports {expected}"));
    }

    fn mismatch(&self, field: &str, expected: &str) {
        let found = self.map.get(field).unwrap_or(&Value::Null).to_string();
        let message = format!("`{}` must be {expected}, not {}", self.full(field), brief::line(&found));
        self.error(field, message, "correct it, or save the model again".to_owned());
    }

    /// A value of this kind, if the field is neither missing nor null.
    fn read<T>(
        &self,
        field: &str,
        expected: impl FnOnce() -> String,
        parse: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let parsed = parse(self.get(field)?);
        if parsed.is_none() {
            self.mismatch(field, &expected());
        }
        parsed
    }

    /// A size that is never null.
    pub(super) fn size(&self, field: &str, default: usize) -> usize {
        self.whole(field, DIMENSION, default)
    }

    /// The number of blocks.
    pub(super) fn layers(&self, field: &str, default: usize) -> usize {
        self.whole(field, LAYERS, default)
    }

    fn whole(&self, field: &str, range: UsizeRange, default: usize) -> usize {
        if self.map.get(field).is_some_and(Value::is_null) {
            let UsizeRange(numbers) = range;
            self.mismatch(field, &format!("a whole number from {} to {}", numbers.start(), numbers.end()));
            return default;
        }
        self.integer(field, range).unwrap_or(default)
    }

    pub(super) fn optional_size(&self, field: &str) -> Option<usize> {
        self.integer(field, DIMENSION)
    }

    /// A size; `null` if the field is null, `default` if it is missing.
    pub(super) fn size_or(&self, field: &str, null: usize, default: usize) -> usize {
        let otherwise = if self.map.contains_key(field) { null } else { default };
        self.optional_size(field).unwrap_or(otherwise)
    }

    pub(super) fn integer(&self, field: &str, UsizeRange(range): UsizeRange) -> Option<usize> {
        let expected = || format!("a whole number from {} to {}", range.start(), range.end());
        self.read(field, expected, |value| {
            // Some programs write sizes as floats.
            let float = || value.as_f64().filter(|float| float.fract() == 0.0 && (0.0..1e15).contains(float));
            let size = value.as_u64().or_else(|| float().map(|float| float as u64));
            size.and_then(|size| usize::try_from(size).ok()).filter(|size| range.contains(size))
        })
    }

    /// The first of these fields that is a whole number.
    pub(super) fn integer_or(&self, fields: &[&str]) -> Option<usize> {
        fields.iter().find_map(|field| self.integer(field, UsizeRange(0..=64)))
    }

    /// A number above 0.
    pub(super) fn number(&self, field: &str) -> Option<f64> {
        self.in_range(field, POSITIVE)
    }

    fn in_range(&self, field: &str, range: FloatRange) -> Option<f64> {
        let holds = |number: &f64| range.contains(*number);
        self.read(field, || range.expected.to_owned(), |value| value.as_f64().filter(holds))
    }

    /// A required number above 0; 1 if it cannot be read.
    pub(super) fn required_number(&self, field: &str) -> f64 {
        if self.get(field).is_none() {
            self.missing(field);
        }
        self.number(field).unwrap_or(1.0)
    }

    /// A number above 0; `None` if the field is null, `default` if it is missing.
    pub(super) fn number_or(&self, field: &str, default: Option<f64>) -> Option<f64> {
        if self.map.contains_key(field) { self.number(field) } else { default }
    }

    /// A list of numbers above 0 of this length.
    pub(super) fn numbers(&self, field: &str, length: usize) -> Option<Vec<f64>> {
        let number = |value: &Value| value.as_f64().filter(|number| POSITIVE.contains(*number));
        let parse = |value: &Value| value.as_array()?.iter().map(number).collect::<Option<Vec<f64>>>();
        let expected = || format!("a list of {length} numbers above 0, one for each pair of channels");
        self.read(field, expected, |value| parse(value).filter(|numbers| numbers.len() == length))
    }

    /// Whether a field is present and null.
    pub(super) fn is_null(&self, field: &str) -> bool {
        self.map.get(field).is_some_and(Value::is_null)
    }

    pub(super) fn has(&self, field: &str) -> bool {
        self.map.get(field).is_some_and(|value| !value.is_null())
    }

    pub(super) fn flag(&self, field: &str) -> Option<bool> {
        self.read(field, || "true or false".to_owned(), Value::as_bool)
    }

    pub(super) fn word(&self, field: &str) -> Option<String> {
        self.read(field, || "a word".to_owned(), |value| value.as_str().map(str::to_owned))
    }

    pub(super) fn words(&self, field: &str) -> Option<Vec<String>> {
        let word = |value: &Value| value.as_str().map(str::to_owned);
        self.read(
            field,
            || "a list of words".to_owned(),
            |value| value.as_array()?.iter().map(word).collect(),
        )
    }

    /// A value of another form, as `parse` reads it.
    pub(super) fn value<T>(
        &self,
        field: &str,
        expected: &str,
        parse: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        self.read(field, || expected.to_owned(), parse)
    }

    /// A nested table.
    pub(super) fn table(&self, field: &'static str) -> Option<ConfigFields<'a>> {
        let map = self.read(field, || "a table".to_owned(), Value::as_object)?;
        Some(ConfigFields { map, name: Some(field), requested: RefCell::default(), findings: self.findings })
    }

    /// The meaning of a string field, one of `known`; that of `default` if the field is missing or cannot be read.
    pub(super) fn one_of<T: Copy>(&self, field: &str, default: &str, known: &[(&str, T)]) -> Option<T> {
        let meaning = |word: &str| known.iter().find(|(name, _)| *name == word).map(|(_, meaning)| *meaning);
        let word = self.word(field);
        let found = meaning(word.as_deref().unwrap_or(default));
        if found.is_none() {
            let names: Vec<String> = known.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            self.unsupported(field, &names.join(", "));
        }
        found.or_else(|| meaning(default))
    }

    /// Checks that a field is missing or has this value. Returns whether it does.
    pub(super) fn require(&self, field: &str, expected: &Value) -> bool {
        let same = |value: &Value| match (value.as_f64(), expected.as_f64()) {
            (Some(found), Some(expected)) => found == expected,
            _ => value == expected,
        };
        let holds = self.get(field).is_none_or(same);
        if !holds {
            self.unsupported(field, &expected.to_string());
        }
        holds
    }

    /// A dropout probability; `default` if it is missing, 0 if `hf` disables dropout.
    pub(super) fn dropout_rate(&self, field: &str, default: f64, hf: &Hf) -> f64 {
        if !hf.dropout {
            self.ignore(&[field]);
            return 0.0;
        }
        self.in_range(field, RATE).unwrap_or(default)
    }

    /// Ignores fields that do not affect training.
    pub(super) fn ignore(&self, fields: &[&str]) {
        self.requested.borrow_mut().extend(fields.iter().map(|field| (*field).to_owned()));
    }

    /// Whether the file has a field that was read.
    pub(super) fn is_read(&self, field: &str) -> bool {
        self.map.contains_key(field) && self.requested.borrow().contains(field)
    }

    /// Reports the fields that were not read: those that change the computation are errors, other unknown fields are
    /// listed.
    pub(super) fn check_unread(&self, family: &str) {
        let requested = self.requested.borrow();
        for (field, value) in self.map {
            if requested.contains(field) || value.is_null() || known::changes_nothing(field) {
                continue;
            }
            match known::changed_part(field) {
                Some(_) if known::is_neutral(field, value) => {}
                Some(part) => {
                    let message = format!(
                        "`{}` stands for {part}, which {family} does not have here",
                        self.full(field)
                    );
                    let help = "runner cannot train this model; in a copy of the file, remove the field if it is not used";
                    self.error(field, message, help.to_owned());
                }
                None => self.findings.unknown.borrow_mut().push(self.full(field)),
            }
        }
    }
}
