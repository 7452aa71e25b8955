//! Declared keys and the values that they accept, for the reference of keys.

use super::declare::{ChoiceTable, KeyCodec, KeyTable, Variant};
use super::forms::Form;
use super::keys::ValueParser;
use super::write::{TableWriter, WriteMode};

/// A declared key.
#[derive(Clone)]
pub(crate) struct DeclaredKey {
    pub(crate) key: &'static str,
    /// Its doc comment.
    pub(crate) doc: String,
    pub(crate) accepts: Accepts,
    /// The default in TOML; `None` for a required key.
    pub(crate) default: Option<String>,
}

/// The values that a key accepts, for people and for editors.
#[derive(Clone)]
pub(crate) struct Accepts {
    pub(crate) text: String,
    pub(crate) forms: Vec<Form>,
    /// The keys of its table, if it is or may be one.
    pub(crate) keys: Vec<DeclaredKey>,
}

impl Accepts {
    pub(crate) fn value(text: impl Into<String>, forms: Vec<Form>) -> Accepts {
        Accepts { text: text.into(), forms, keys: Vec::new() }
    }

    /// The values of a parser.
    pub(crate) fn parsed(parser: &impl ValueParser) -> Accepts {
        Accepts::value(parser.expected(), parser.forms())
    }

    pub(crate) fn table<T: KeyTable>() -> Accepts {
        Accepts::table_of_keys(T::reference())
    }

    /// A table with these keys.
    pub(crate) fn table_of_keys(keys: Vec<DeclaredKey>) -> Accepts {
        Accepts { keys, ..Accepts::value("a table", vec![Form::Table]) }
    }

    pub(crate) fn one_of<T: ChoiceTable>() -> Accepts {
        Accepts::value("exactly one of the tables below it", Vec::new()).or_tables(T::VARIANTS)
    }

    pub(crate) fn or_tables<T>(self, variants: &[Variant<T>]) -> Accepts {
        let keys = variants.iter().map(|variant| DeclaredKey {
            key: variant.key,
            doc: variant.doc.trim().into(),
            accepts: Accepts::table_of_keys((variant.reference)()),
            default: None,
        });
        self.or_one_of(keys.collect())
    }

    /// Or a table with exactly one of these keys.
    pub(crate) fn or_one_of(mut self, keys: Vec<DeclaredKey>) -> Accepts {
        self.forms.push(Form::OneOf);
        Accepts { keys, ..self }
    }

    /// A list of such values.
    pub(crate) fn listed(self, text: String, may_be_empty: bool, may_repeat: bool) -> Accepts {
        let keys = self.keys.clone();
        let list = Form::List { element: Box::new(self), may_be_empty, may_repeat };
        Accepts { text, forms: vec![list], keys }
    }

    pub(crate) fn or(self, text: &str, forms: Vec<Form>) -> Accepts {
        Accepts { text: format!("{}, or {text}", self.text), forms: [self.forms, forms].concat(), ..self }
    }

    pub(crate) fn and(self, text: &str) -> Accepts {
        Accepts { text: format!("{}; {text}", self.text), ..self }
    }

    /// The table with a key whose list must be empty there.
    pub(crate) fn with_empty(mut self, key: &str) -> Accepts {
        for declared in self.keys.iter_mut().filter(|declared| declared.key == key) {
            declared.accepts = Accepts::value("an empty list", vec![Form::EmptyList]);
        }
        self
    }

    /// The table without one of its keys.
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
    /// Its documentation.
    pub(crate) fn lines(&self) -> Vec<String> {
        lines(&self.doc, &self.accepts.text, self.default.as_deref())
    }

    pub(crate) fn new(key: &'static str, doc: &str, accepts: Accepts, default: Option<&str>) -> DeclaredKey {
        DeclaredKey { key, doc: doc.into(), accepts, default: default.map(str::to_owned) }
    }
}

/// The documentation of a key.
pub(crate) fn lines(doc: &str, accepts: &str, default: Option<&str>) -> Vec<String> {
    let default = default.map(|default| format!("Default: {default}."));
    [doc.to_owned(), format!("Accepts: {accepts}.")].into_iter().chain(default).collect()
}
