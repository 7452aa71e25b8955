//! `[data.text]`

use crate::reader::reference::Accepts;
use std::path::PathBuf;

use super::{DataSource, check_split};
use crate::reader::declare::{
    InlineTable, KeyCodec, KeywordEnum as _, Optional, inline_table, key_table, keywords,
};
use crate::reader::error::Problem;
use crate::reader::keys::{Keys, ValueParser};
use crate::reader::parsers::{Boolean, DIMENSION, NonEmptyText, SHARE, keyword};
use crate::reader::paths::{PATHS, file_path};
use crate::reader::tree::{Node, Table, Value};
use crate::reader::write::TableWriter;
use crate::schema::rules::attach_span;
use data::{DataSet, Documents, Encoding, TextSet, TokenizerFile};

key_table! {
    /// Text files, in the order of their sorted paths.
    pub struct Text {
        /// Paths and globs, relative to the experiment file; `${VARIABLE}` is expanded.
        pub paths: Vec<PathBuf> = PATHS;
        /// The tokens: bytes of the text, or those of a Hugging Face tokenizer file.
        pub tokens: Tokens = TokensCodec, default Tokens::Bytes;
        /// The field that holds the text, for files in which each line is a JSON object (JSON Lines).
        pub jsonl: Option<String> = Optional(NonEmptyText), default None;
        /// How documents become samples.
        pub documents: DocumentArrangement = keyword(), default DocumentArrangement::Joined;
        /// The length that documents are padded to. Only with `documents = "padded"`.
        pub pad_to: PadTo = keyword(), default PadTo::Context;
        /// Padded lengths are multiples of this, or the whole context (collators: `pad_to_multiple_of`). Only with
        /// `pad_to = "batch"`.
        pub pad_to_multiple_of: usize = DIMENSION, default 1;
        /// Share of the data, from the front, for training; the rest is for evaluation.
        pub split: f64 = SHARE, default 0.9;
    }
}

keywords! {
    /// How documents become samples.
    pub enum DocumentArrangement {
        /// All documents are concatenated; samples are slices of the row of tokens.
        Joined = "joined",
        /// One document per sample, padded.
        Padded = "padded",
        /// As many documents per sample as fit, with a block-diagonal attention mask, padded.
        Packed = "packed",
    }
}

keywords! {
    /// The length that documents are padded to.
    pub enum PadTo {
        /// The model's context: all micro-batches have one shape.
        Context = "context",
        /// The longest document of the micro-batch, as PyTorch's collators do: shapes, memory and time vary.
        Batch = "batch",
    }
}

/// The kind of tokens.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub enum Tokens {
    /// The bytes of the text.
    Bytes,
    Tokenizer(Tokenizer),
}

key_table! {
    /// A tokenizer of Hugging Face's `tokenizers` library.
    pub struct Tokenizer {
        /// Path of the `tokenizer.json`, relative to the experiment file.
        pub file: PathBuf = file_path("tokenizer.json");
        /// Whether the tokenizer adds its special tokens to each document (`add_special_tokens`).
        pub special: bool = Boolean, default true;
        /// Token appended to each document, after the special tokens.
        pub end: Option<String> = Optional(NonEmptyText), default None;
    }
}

/// A keyword or a table.
struct TokensCodec;

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
            Tokens::Tokenizer(tokenizer) => TABLE.write(key, tokenizer, lines),
        }
    }

    fn example(&self, key: &str) -> String {
        TABLE.example(key)
    }

    fn accepts(&self) -> Accepts {
        Accepts::table::<Tokenizer>().or("\"bytes\"")
    }
}

/// The value that is not a table.
struct TokensKeyword;

impl ValueParser for TokensKeyword {
    type Output = Tokens;

    fn parse(&self, value: &Value) -> Option<Tokens> {
        matches!(value, Value::Text(text) if text == "bytes").then_some(Tokens::Bytes)
    }

    fn expected(&self) -> String {
        "\"bytes\" or { file = \"tokenizer.json\" }".to_owned()
    }

    fn keywords(&self) -> Vec<&'static str> {
        vec!["bytes"]
    }
}

impl Text {
    /// Text with bytes as tokens.
    pub fn new(paths: Vec<PathBuf>, split: f64) -> Text {
        Text {
            paths,
            tokens: Tokens::Bytes,
            jsonl: None,
            documents: DocumentArrangement::Joined,
            pad_to: PadTo::Context,
            pad_to_multiple_of: 1,
            split,
        }
    }
}

impl DataSource for Text {
    fn data_set(&self) -> Box<dyn DataSet> {
        let documents = self.documents();
        let Text { paths, tokens, jsonl, documents: _, pad_to: _, pad_to_multiple_of: _, split } =
            self.clone();
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
            DocumentArrangement::Joined => Documents::Joined,
            DocumentArrangement::Padded => Documents::Padded,
            DocumentArrangement::Packed => Documents::Packed,
        }
    }

    fn batch_multiple(&self) -> Option<usize> {
        (self.pad_to == PadTo::Batch).then_some(self.pad_to_multiple_of)
    }

    fn has_evaluation_data(&self, tree: &Table) -> Result<(), Problem> {
        check_split(self.split, "data.text.split", tree)
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        if self.pad_to == PadTo::Batch && self.documents != DocumentArrangement::Padded {
            let message = format!(
                "pad_to = \"batch\" pads documents, one per sample; documents = \"{}\" does not pad to a length",
                self.documents.keyword()
            );
            let keys = ["data.text.pad_to", "data.text.documents"];
            return Err(attach_span(
                message,
                &keys,
                tree,
                "use documents = \"padded\" or pad_to = \"context\"",
            ));
        }
        if self.pad_to_multiple_of > 1 && self.pad_to == PadTo::Context {
            let message = "pad_to_multiple_of rounds the lengths of pad_to = \"batch\"; all samples have the length of the context".to_owned();
            let keys = ["data.text.pad_to_multiple_of", "data.text.pad_to"];
            return Err(attach_span(
                message,
                &keys,
                tree,
                "use pad_to = \"batch\" or remove pad_to_multiple_of",
            ));
        }
        Ok(())
    }
}
