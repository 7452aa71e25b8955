//! `tokens` of `[data.text]`: bytes, ids, or a tokenizer's.

use std::path::PathBuf;

use crate::reader::declare::{InlineTable, KeyCodec, Optional, inline_table, key_table};
use crate::reader::forms::Form;
use crate::reader::keys::{Keys, ValueParser};
use crate::reader::parsers::{Boolean, NonEmptyText};
use crate::reader::paths::{PathCodec, file_in_folder};
use crate::reader::reference::Accepts;
use crate::reader::tree::{Node, Value};
use crate::reader::write::TableWriter;

/// The kind of tokens.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub enum Tokens {
    /// The bytes of the text.
    Bytes,
    /// The token ids that a JSON field lists.
    Ids,
    Tokenizer(Tokenizer),
}

key_table! {
    /// A tokenizer of Hugging Face's `tokenizers` library.
    pub struct Tokenizer {
        /// Path of the `tokenizer.json`, or of a model's folder with it; relative to the experiment file.
        pub file: PathBuf = TOKENIZER;
        /// Whether the tokenizer adds its special tokens to each document (`add_special_tokens`).
        pub special: bool = Boolean, default true;
        /// Token appended to each document, after the special tokens.
        pub end: Option<String> = Optional(NonEmptyText), default None;
    }
}

const TOKENIZER: PathCodec = file_in_folder("tokenizer.json");

/// A keyword or a table.
pub(super) struct TokensCodec;

const TABLE: InlineTable<Tokenizer> =
    inline_table("data.text.tokens", "`tokens`", "file = \"tokenizer.json\"");

impl KeyCodec for TokensCodec {
    type Output = Tokens;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<Tokens> {
        if node.table().is_some() {
            return TABLE.read(keys, key, node).map(Tokens::Tokenizer);
        }
        let read = keys.parse(key, node, &TokensKeyword);
        if let (None, Value::Text(text)) = (&read, &node.value)
            && text.ends_with(".json")
        {
            keys.reader().advise(&format!("write tokens = {{ file = \"{text}\" }}"));
        }
        read
    }

    fn write(&self, key: &str, value: &Tokens, lines: &mut TableWriter) {
        match value {
            Tokens::Bytes => lines.line(key, "\"bytes\""),
            Tokens::Ids => lines.line(key, "\"ids\""),
            Tokens::Tokenizer(tokenizer) => TABLE.write(key, tokenizer, lines),
        }
    }

    fn example(&self, key: &str) -> String {
        TABLE.example(key)
    }

    fn accepts(&self) -> Accepts {
        Accepts::table::<Tokenizer>().or("\"bytes\" or \"ids\"", TokensKeyword.forms())
    }
}

/// The value that is not a table.
struct TokensKeyword;

impl ValueParser for TokensKeyword {
    type Output = Tokens;

    fn parse(&self, value: &Value) -> Option<Tokens> {
        match value {
            Value::Text(text) if text == "bytes" => Some(Tokens::Bytes),
            Value::Text(text) if text == "ids" => Some(Tokens::Ids),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        "\"bytes\", \"ids\" or { file = \"tokenizer.json\" }".to_owned()
    }

    fn forms(&self) -> Vec<Form> {
        vec![Form::words(&self.keywords())]
    }

    fn keywords(&self) -> Vec<&'static str> {
        vec!["bytes", "ids"]
    }
}
