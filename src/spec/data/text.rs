//! `[data.text]`

use std::path::PathBuf;

use super::{DataSource, something_is_left};
use crate::declare::{Declared, Inline, Optional, inline, section, words};
use crate::error::Problem;
use crate::kinds::{Flag, SHARE, Text as Name, word};
use crate::paths::{OneFile, Paths};
use crate::reader::{Keys, Kind};
use crate::tree::{Entry, Table, Value};
use crate::write::Lines;
use data::{DataSet, Documents, Encoding, TextSet, TokenizerFile};

section! {
    /// Files of text, in the order of their sorted paths.
    pub struct Text {
        /// Absolute paths and globs.
        pub paths: Vec<PathBuf> = Paths;
        pub tokens: Tokens = TokensOrTable, default Tokens::Bytes;
        /// The field that is the text of each line, where lines are objects in JSON.
        pub jsonl: Option<String> = Optional(Name), default None;
        /// How documents become samples.
        pub documents: Arrangement = word(), default Arrangement::Joined;
        /// The share, from the front, that is trained on; the rest is evaluated on.
        pub split: f64 = SHARE, default 0.9;
    }
}

words! {
    pub enum Arrangement {
        /// Samples are stretches of all documents, one after the other.
        Joined = "joined",
        /// A sample is one, and padding.
        Padded = "padded",
        /// A sample is as many as it has room for, which see nothing of each other, and padding.
        Packed = "packed",
    }
}

/// What tokens are.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub enum Tokens {
    /// The bytes of the text.
    Bytes,
    Tokenizer(Tokenizer),
}

section! {
    /// What makes tokens of text, as the `tokenizers` library of Hugging Face's writes it.
    pub struct Tokenizer {
        pub file: PathBuf = OneFile("tokenizer.json");
        /// Whether each document has the tokens that the tokenizer itself puts around a text.
        pub special: bool = Flag, default true;
        /// The token that ends each document beside those.
        pub end: Option<String> = Optional(Name), default None;
    }
}

/// A word, or a table.
struct TokensOrTable;

const TABLE: Inline<Tokenizer> = inline("data.text.tokens", "`tokens`", "file = \"tokenizer.json\"");

impl Declared for TokensOrTable {
    type Output = Tokens;

    fn read<'a>(&self, keys: &Keys<'a>, entry: &'a Entry) -> Option<Tokens> {
        if entry.node.table().is_some() {
            return TABLE.read(keys, entry).map(Tokens::Tokenizer);
        }
        let read = keys.parse(entry, &NoTable);
        if let (None, Value::Text(text)) = (&read, &entry.node.value)
            && text.ends_with(".json")
        {
            keys.reader().advise(&format!("write tokens = {{ file = \"{text}\" }}"));
        }
        read
    }

    fn write(&self, key: &str, value: &Tokens, lines: &mut Lines) {
        match value {
            Tokens::Bytes => lines.line(key, "\"bytes\""),
            Tokens::Tokenizer(tokenizer) => TABLE.write(key, tokenizer, lines),
        }
    }

    fn example(&self, key: &str) -> String {
        TABLE.example(key)
    }
}

/// The form that is no table.
struct NoTable;

impl Kind for NoTable {
    type Output = Tokens;

    fn parse(&self, value: &Value) -> Option<Tokens> {
        matches!(value, Value::Text(text) if text == "bytes").then_some(Tokens::Bytes)
    }

    fn expected(&self) -> String {
        "\"bytes\" or { file = \"tokenizer.json\" }".to_owned()
    }

    fn words(&self) -> Vec<&'static str> {
        vec!["bytes"]
    }
}

impl Text {
    /// Text of bytes.
    pub fn new(paths: Vec<PathBuf>, split: f64) -> Text {
        Text { paths, tokens: Tokens::Bytes, jsonl: None, documents: Arrangement::Joined, split }
    }
}

impl DataSource for Text {
    fn data_set(&self) -> Box<dyn DataSet> {
        let documents = self.documents();
        let Text { paths, tokens, jsonl, documents: _, split } = self.clone();
        let encoding = match tokens {
            Tokens::Bytes => Encoding::Bytes,
            Tokens::Tokenizer(Tokenizer { file, special, end }) => {
                Encoding::Tokenizer(TokenizerFile { file, special, end })
            }
        };
        Box::new(TextSet { paths, encoding, jsonl, documents, split })
    }

    fn documents(&self) -> Documents {
        match self.documents {
            Arrangement::Joined => Documents::Joined,
            Arrangement::Padded => Documents::Padded,
            Arrangement::Packed => Documents::Packed,
        }
    }

    fn leaves_some_to_evaluate(&self, tree: &Table) -> Result<(), Problem> {
        something_is_left(self.split, "data.text.split", tree)
    }
}
