//! The forms of the values that keys accept, as JSON Schema (draft 7) for editors.

use std::ops::{Bound, RangeInclusive};

use serde_json::{Map, Value, json};

use super::declare::KeywordEnum;
use super::reference::{Accepts, DeclaredKey};

/// Regular expressions are of the common part of ECMA 262, which editors use, and of Rust.
pub(crate) const NOT_EMPTY: &str = r"[\s\S]";
/// A mistake in a pattern of names or paths.
pub(crate) const GLOB_MISTAKE: &str = r"[^/]\*\*|\*\*[^/]|\[[^\]]*$";

const OFF: &str = "off";

/// A form of value that a key accepts.
#[derive(Clone)]
pub(crate) enum Form {
    /// One of these texts.
    Words(Vec<String>),
    /// A text that matches one regular expression, and not another one.
    Text {
        pattern: String,
        refused: Option<String>,
    },
    Boolean,
    Integer(RangeInclusive<u64>),
    /// One of these integers.
    Integers(&'static [u64]),
    Number((Bound<f64>, Bound<f64>)),
    List {
        element: Box<Accepts>,
        may_be_empty: bool,
        may_repeat: bool,
    },
    /// A list without elements.
    EmptyList,
    /// A list whose elements are those of the list of a key, which contains this one.
    ListOf {
        key: &'static str,
        may_be_empty: bool,
    },
    /// A table with the key's keys.
    Table,
    /// A table with exactly one of the key's keys.
    OneOf,
    /// A table with names as keys, which may be nested, and these texts as values.
    ByName(Vec<String>),
}

impl Form {
    pub(crate) fn words(words: &[&str]) -> Form {
        Form::Words(words.iter().map(|word| (*word).to_owned()).collect())
    }

    pub(crate) fn matching(pattern: String) -> Form {
        Form::Text { pattern, refused: None }
    }

    /// A pattern of names.
    pub(crate) fn glob() -> Form {
        Form::Text { pattern: NOT_EMPTY.to_owned(), refused: Some(GLOB_MISTAKE.to_owned()) }
    }

    pub(crate) fn by_name<T: KeywordEnum>() -> Form {
        Form::ByName(T::ALL.iter().map(|word| word.keyword().to_owned()).collect())
    }

    /// Its type, and the keywords for values of this type; for tables, they are given.
    fn schema(&self, table: &Value) -> (&'static str, Value) {
        match self {
            Form::Words(words) => ("string", json!({ "enum": words })),
            Form::Text { pattern, refused } => {
                let refused = refused
                    .as_ref()
                    .map(|refused| json!({ "not": { "type": "string", "pattern": refused } }));
                ("string", merged([json!({ "pattern": pattern }), refused.unwrap_or_else(|| json!({}))]))
            }
            Form::Boolean => ("boolean", json!({})),
            Form::Integer(range) => ("integer", json!({ "minimum": range.start(), "maximum": range.end() })),
            Form::Integers(numbers) => ("integer", json!({ "enum": numbers })),
            Form::Number((from, to)) => ("number", merged([bound(*from, "inimum"), bound(*to, "aximum")])),
            Form::List { element, may_be_empty, may_repeat } => (
                "array",
                json!({
                    "items": element.complete(),
                    "minItems": usize::from(!may_be_empty),
                    "uniqueItems": !may_repeat,
                }),
            ),
            Form::ListOf { key, may_be_empty } => (
                "array",
                json!({
                    "items": { "$ref": format!("#/definitions/{key}/items") },
                    "minItems": usize::from(!may_be_empty),
                }),
            ),
            Form::EmptyList => ("array", json!({ "maxItems": 0 })),
            Form::Table | Form::OneOf => ("object", table.clone()),
            Form::ByName(words) => ("object", by_name(words)),
        }
    }
}

/// A bound: `minimum` or `exclusiveMinimum`, or the same of the maximum.
fn bound(bound: Bound<f64>, name: &str) -> Value {
    match bound {
        Bound::Included(number) => json!({ format!("m{name}"): number }),
        Bound::Excluded(number) => json!({ format!("exclusiveM{name}"): number }),
        Bound::Unbounded => json!({}),
    }
}

/// Names with these texts or "off", nested at most as deep as the names of layers.
fn by_name(words: &[String]) -> Value {
    let words: Vec<&str> = words.iter().map(String::as_str).chain([OFF]).collect();
    let leaf = json!({ "enum": words });
    let nested =
        |inner: Value| json!({ "type": "object", "additionalProperties": { "anyOf": [leaf, inner] } });
    (0..4).fold(nested(json!(false)), |inner, _| nested(inner))
}

/// A table with no other keys.
pub(crate) fn closed(properties: Map<String, Value>) -> Value {
    json!({ "properties": properties, "additionalProperties": false })
}

/// The keywords of all these schemas.
pub(crate) fn merged(schemas: impl IntoIterator<Item = Value>) -> Value {
    let mut all = Map::new();
    for schema in schemas {
        if let Value::Object(keywords) = schema {
            all.extend(keywords);
        }
    }
    Value::Object(all)
}

impl Accepts {
    /// The schema of the values. `table`: keywords for its table. `is_optional`: "off" is valid.
    ///
    /// Alternatives of different types become one schema where their keywords do not meet, since editors mark the mistake
    /// in it; of alternatives in `anyOf`, they only report that none is valid.
    pub(crate) fn schema(&self, is_optional: bool, table: &Value) -> Value {
        let mut words: Vec<&str> = Vec::new();
        let mut others = Vec::new();
        for form in &self.forms {
            match form {
                Form::Words(all) => words.extend(all.iter().map(String::as_str)),
                form => others.push(form.schema(table)),
            }
        }
        let is_word = |(kind, _): &&(&str, Value)| *kind == "boolean";
        let has_text = others.iter().any(|(kind, _)| *kind == "string");
        let off = is_optional.then_some(OFF);
        if others.iter().all(|other| is_word(&other)) {
            let flags = if others.is_empty() { vec![] } else { vec![json!(true), json!(false)] };
            let words = words.into_iter().chain(off).map(Value::from);
            return json!({ "enum": flags.into_iter().chain(words).collect::<Vec<_>>() });
        }
        if words.is_empty() && !has_text {
            others.extend(off.map(|_| ("string", json!({ "pattern": "^off$" }))));
        } else {
            words.extend(off);
        }
        let types: Vec<&str> = others.iter().map(|(kind, _)| *kind).collect();
        let kind = if let [one] = types[..] { json!({ "type": one }) } else { json!({ "type": types }) };
        let other = merged(others.into_iter().map(|(_, keywords)| keywords).chain([kind]));
        match words.is_empty() {
            true => other,
            false => json!({ "anyOf": [{ "enum": words }, other] }),
        }
    }

    /// Keywords for its table, given the properties. A choice among other values is never empty.
    pub(crate) fn table_of(&self, properties: Map<String, Value>) -> Value {
        let one = match (self.is_one_of(), self.forms.len()) {
            (false, _) => json!({}),
            (true, 1) => json!({ "maxProperties": 1 }),
            (true, _) => json!({ "minProperties": 1, "maxProperties": 1 }),
        };
        merged([closed(properties), one])
    }

    /// The schema of an element of a list, required keys included.
    fn complete(&self) -> Value {
        let own = |key: &DeclaredKey| {
            let table = key.accepts.complete();
            (key.key.to_owned(), key.described(key.accepts.schema(key.default.is_some(), &table)))
        };
        let table = self.table_of(self.keys.iter().map(own).collect());
        merged([self.schema(false, &table), self.required()])
    }

    pub(crate) fn is_one_of(&self) -> bool {
        self.forms.iter().any(|form| matches!(form, Form::OneOf))
    }

    /// The keys that a table needs, if no other file or strategy supplies them: a schema beside `schema`.
    pub(crate) fn required(&self) -> Value {
        let tables = self.keys.iter().map(|key| (key.key, key.accepts.required()));
        let tables: Map<String, Value> = tables
            .filter(|(_, required)| required.as_object().is_some_and(|required| !required.is_empty()))
            .map(|(key, required)| (key.to_owned(), required))
            .collect();
        let tables = if tables.is_empty() { json!({}) } else { json!({ "properties": tables }) };
        let required: Vec<&str> =
            self.keys.iter().filter(|key| key.default.is_none()).map(|key| key.key).collect();
        match () {
            () if self.is_one_of() => merged([json!({ "minProperties": 1 }), tables]),
            () if required.is_empty() => tables,
            () => merged([json!({ "required": required }), tables]),
        }
    }
}

impl DeclaredKey {
    /// A schema of its values, with its documentation.
    pub(crate) fn described(&self, schema: Value) -> Value {
        let default =
            self.default.as_deref().and_then(|text| constant(text.strip_prefix('`')?.strip_suffix('`')?));
        let default = default.map(|value| json!({ "default": value }));
        merged([
            json!({ "description": self.lines().join("\n") }),
            default.unwrap_or_else(|| json!({})),
            schema,
        ])
    }
}

/// A value in TOML as JSON; `None` if JSON has no such value.
fn constant(text: &str) -> Option<Value> {
    let table: toml::Table = format!("value = {text}").parse().ok()?;
    serde_json::to_value(table.get("value")?).ok()
}
