//! The reference of keys, from their declarations.

use super::declare::{ChoiceTable, KeyCodec, KeyTable, Variant};
use super::write::{TableWriter, WriteMode};
use crate::schema::data::Data;
use crate::schema::model::Model;
use crate::schema::repeats;
use crate::schema::resolved::{Evaluation, Measure, Train};
use crate::schema::strategy::Strategy;

/// A declared key.
pub(crate) struct DeclaredKey {
    key: &'static str,
    /// Its doc comment.
    doc: String,
    accepts: Accepts,
    /// The default in TOML; `None` for a required key.
    default: Option<String>,
}

/// The values that a key accepts.
pub(crate) struct Accepts {
    text: String,
    /// The keys of its table, if it is or may be one.
    keys: Vec<DeclaredKey>,
}

/// A key as users read about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReference {
    /// `train.optimizer.adamw.lr`; keys of a strategy are under `strategies.NAME`.
    pub path: String,
    pub doc: String,
    pub accepts: String,
    pub default: Option<String>,
}

impl Accepts {
    pub(crate) fn value(text: impl Into<String>) -> Accepts {
        Accepts { text: text.into(), keys: Vec::new() }
    }

    pub(crate) fn table<T: KeyTable>() -> Accepts {
        Accepts { text: "a table".into(), keys: T::reference() }
    }

    pub(crate) fn one_of<T: ChoiceTable>() -> Accepts {
        Accepts::value("exactly one of the tables below it").or_tables(T::VARIANTS)
    }

    pub(crate) fn or_tables<T>(self, variants: &[Variant<T>]) -> Accepts {
        let keys = variants.iter().map(|variant| DeclaredKey {
            key: variant.key,
            doc: variant.doc.trim().into(),
            accepts: Accepts { text: "a table".into(), keys: (variant.reference)() },
            default: None,
        });
        Accepts { keys: keys.collect(), ..self }
    }

    /// A list of such tables.
    pub(crate) fn listed(self) -> Accepts {
        Accepts { text: "a list of tables".into(), ..self }
    }

    pub(crate) fn or(self, text: &str) -> Accepts {
        Accepts { text: format!("{}, or {text}", self.text), ..self }
    }

    pub(crate) fn and(self, text: &str) -> Accepts {
        Accepts { text: format!("{}; {text}", self.text), ..self }
    }

    /// The table without a key that must be left out there.
    pub(crate) fn without(mut self, key: &str) -> Accepts {
        self.keys.retain(|declared| declared.key != key);
        self
    }
}

/// One key of a `key_table!`. `earlier` are the keys above it, which `default_code` may refer to.
pub(crate) fn declared<C: KeyCodec>(
    (key, doc): (&'static str, &str),
    codec: C,
    default: Option<C::Output>,
    default_code: &str,
    earlier: &[DeclaredKey],
) -> DeclaredKey {
    let words: Vec<&str> = default_code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let depends = earlier.iter().map(|other| other.key).filter(|other| words.contains(other));
    let depends: Vec<String> = depends.map(|other| format!("`{other}`")).collect();
    let written = default.map(|default| {
        let mut lines = TableWriter::empty(WriteMode::Complete);
        codec.write(key, &default, &mut lines);
        lines.default_text(key)
    });
    let default = written.map(|text| match depends.is_empty() {
        true => format!("`{text}`"),
        false => format!("follows {}", depends.join(" and ")),
    });
    DeclaredKey { key, doc: doc.trim().to_owned(), accepts: codec.accepts(), default }
}

/// All declared keys of an experiment's tables, in their order.
pub fn key_reference() -> Vec<KeyReference> {
    let mut all = Vec::new();
    list("model", Accepts::one_of::<Model>().keys, &mut all);
    list("data", Accepts::one_of::<Data>().keys, &mut all);
    list("train", Train::reference(), &mut all);
    list("evaluation", Evaluation::reference(), &mut all);
    list("measure", Measure::reference(), &mut all);
    list("measure", vec![repeats::reference()], &mut all);
    list("strategies.NAME", Strategy::reference(), &mut all);
    all
}

fn list(table: &str, keys: Vec<DeclaredKey>, all: &mut Vec<KeyReference>) {
    for DeclaredKey { key, doc, accepts: Accepts { text, keys }, default } in keys {
        let path = format!("{table}.{key}");
        all.push(KeyReference { path: path.clone(), doc, accepts: text, default });
        list(&path, keys, all);
    }
}

impl DeclaredKey {
    pub(crate) fn new(key: &'static str, doc: &str, accepts: Accepts, default: Option<&str>) -> DeclaredKey {
        DeclaredKey { key, doc: doc.into(), accepts, default: default.map(str::to_owned) }
    }
}
