//! Declared keys and the values that they accept, for the reference of keys.

use super::declare::{ChoiceTable, KeyCodec, KeyTable, Variant};
use super::write::{TableWriter, WriteMode};

/// A declared key.
pub(crate) struct DeclaredKey {
    pub(crate) key: &'static str,
    /// Its doc comment.
    pub(crate) doc: String,
    pub(crate) accepts: Accepts,
    /// The default in TOML; `None` for a required key.
    pub(crate) default: Option<String>,
}

/// The values that a key accepts.
pub(crate) struct Accepts {
    pub(crate) text: String,
    /// The keys of its table, if it is or may be one.
    pub(crate) keys: Vec<DeclaredKey>,
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

    /// A list of such values.
    pub(crate) fn listed(self, text: String) -> Accepts {
        Accepts { text, ..self }
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

impl DeclaredKey {
    pub(crate) fn new(key: &'static str, doc: &str, accepts: Accepts, default: Option<&str>) -> DeclaredKey {
        DeclaredKey { key, doc: doc.into(), accepts, default: default.map(str::to_owned) }
    }
}
