//! `[data.text]`

mod encoding;
mod template;

use std::path::PathBuf;

pub use encoding::{Tokenizer, Tokens};

use self::encoding::TokensCodec;
use self::template::{RoleTemplates, Template, TemplateCodec};
use super::{DataSource, check_split, default_split, one_source_of_evaluation};
use crate::reader::declare::{KeywordEnum as _, Optional, key_table, keywords};
use crate::reader::error::Problem;
use crate::reader::parsers::{DIMENSION, NonEmptyText, SHARE, keyword};
use crate::reader::paths::{EVALUATION_PATHS, PATHS};
use crate::reader::tree::Table;
use crate::schema::rules::attach_span;
use data::{DataSet, Documents, Encoding, Part, RecordFormat, Sample, TextSet, TokenizerFile};

key_table! {
    /// Text files, in the order of their sorted paths.
    pub struct Text {
        /// Paths and globs, relative to the experiment file; `${VARIABLE}` is expanded.
        pub paths: Vec<PathBuf> = PATHS;
        /// The tokens: bytes of the text, or those of a Hugging Face tokenizer file.
        pub tokens: Tokens = TokensCodec, default Tokens::Bytes;
        /// The field that holds the text, for files in which each line is a JSON object (JSON Lines), or that are one array
        /// of such objects: its name, or a path such as `data.text` or `choices.0.text`.
        pub jsonl: Option<String> = Optional(NonEmptyText), default None;
        /// How the messages of a conversation become a text, for JSON files with `messages`, `conversations`, `prompt` and
        /// `completion`, or `instruction` and `output`: for each message this text, with its `{role}` and `{content}`, or
        /// the text of its role.
        pub template: Option<Template> = Optional(TemplateCodec), default None;
        /// The tokens that are no targets. Only with `template` and separate documents.
        pub mask: Mask = keyword(), default Mask::None;
        /// How documents become samples.
        pub documents: DocumentArrangement = keyword(), default DocumentArrangement::Joined;
        /// The length that documents are padded to. Only with `documents = "padded"`.
        pub pad_to: PadTo = keyword(), default PadTo::Context;
        /// Padded lengths are multiples of this, or the whole context (collators: `pad_to_multiple_of`). Only with
        /// `pad_to = "batch"`.
        pub pad_to_multiple_of: usize = DIMENSION, default 1;
        /// Paths and globs of files for evaluation only; `paths` are then for training as a whole. Instead of `split`.
        pub evaluate: Vec<PathBuf> = EVALUATION_PATHS, default Vec::new();
        /// Share of the data, from the front, for training; the rest is for evaluation. 0.9 without `evaluate`.
        pub split: f64 = SHARE, default default_split(&evaluate);
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

keywords! {
    /// The tokens of a conversation that are no targets.
    pub enum Mask {
        /// All tokens are targets.
        None = "none",
        /// Targets are the answers: messages of the assistant, completions and outputs.
        Prompt = "prompt",
    }
}

impl Text {
    /// Text with bytes as tokens.
    pub fn new(paths: Vec<PathBuf>, split: f64) -> Text {
        Text {
            paths,
            tokens: Tokens::Bytes,
            jsonl: None,
            template: None,
            mask: Mask::None,
            documents: DocumentArrangement::Joined,
            pad_to: PadTo::Context,
            pad_to_multiple_of: 1,
            evaluate: Vec::new(),
            split,
        }
    }
}

impl Text {
    /// Rules between the keys of JSON files.
    fn records_have_documents(&self, tree: &Table) -> Result<(), Problem> {
        let [tokens, jsonl, template, mask, documents] =
            ["tokens", "jsonl", "template", "mask", "documents"].map(|key| format!("data.text.{key}"));
        let problem = |message: &str, keys: [&str; 2], help: &str| {
            Err(attach_span(message.to_owned(), &keys, tree, help))
        };
        if self.tokens == Tokens::Ids && self.template.is_some() {
            let message = "template makes a text, but tokens = \"ids\" reads token ids";
            return problem(message, [&template, &tokens], "use a tokenizer, or remove template");
        }
        if self.tokens == Tokens::Ids && self.jsonl.is_none() {
            let message = "tokens = \"ids\" reads the token ids of a JSON field, but jsonl names none";
            let help = "set jsonl = \"input_ids\"; for flat files of ids, use data.tokens";
            return problem(message, [&tokens, &jsonl], help);
        }
        if self.mask == Mask::Prompt && self.template.is_none() {
            let message = "mask = \"prompt\" masks the prompts of conversations, which template joins";
            return problem(message, [&mask, &template], "set template = \"chatml\", or remove mask");
        }
        if self.mask == Mask::Prompt && self.documents == DocumentArrangement::Joined {
            let message = "mask = \"prompt\" needs separate documents; documents = \"joined\" cuts the row of all anywhere";
            return problem(message, [&mask, &documents], "use documents = \"padded\" or \"packed\"");
        }
        Ok(())
    }
}

impl Text {
    /// Rules between the texts of roles.
    fn roles_have_texts(&self, tree: &Table) -> Result<(), Problem> {
        let roles = match &self.template {
            Some(Template::Roles(roles)) => roles,
            Some(Template::Text(text)) if text.contains("{system}") => {
                let message =
                    "{system}, the place of system messages, belongs in template.user only".to_owned();
                let help =
                    "use texts for each role: { system = \"...\", user = \"...\", assistant = \"...\" }";
                return Err(attach_span(message, &["data.text.template"], tree, help));
            }
            _ => return Ok(()),
        };
        let RoleTemplates { begin, system, user, assistant, tool, end } = &**roles;
        let key = |key: &str| format!("data.text.template{key}");
        let problem = |message: &str, keys: [String; 2], help: &str| {
            Err(attach_span(message.to_owned(), &keys.each_ref().map(String::as_str), tree, help))
        };
        if [system, user, assistant, tool].into_iter().all(Option::is_none) {
            let message = "template has no text for messages";
            let help = "add user = \"[INST] {content} [/INST]\" and assistant = \"{content}</s>\"";
            return problem(message, [key(""), key("")], help);
        }
        for (name, text) in [(".begin", begin), (".end", end)] {
            let has = |place: &&str| text.as_ref().is_some_and(|text| text.contains(*place));
            if ["{content}", "{role}", "{system}"].iter().any(has) {
                let message =
                    "template.begin and template.end stand once per document: they have no placeholders";
                return problem(message, [key(name), key("")], "move the placeholder to the text of a role");
            }
        }
        let includes_system =
            |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains("{system}"));
        for (name, text) in [(".system", system), (".assistant", assistant), (".tool", tool)] {
            if includes_system(text) {
                let message = "{system}, the place of system messages, belongs in template.user only";
                return problem(message, [key(name), key(".user")], "remove {system} there");
            }
        }
        if includes_system(user) && system.is_none() {
            let message =
                "template.user has {system}, the place of system messages, but template.system is not set";
            let help = "add system = \"{content}\", or remove {system}";
            return problem(message, [key(".user"), key(".system")], help);
        }
        if self.mask == Mask::Prompt && assistant.is_none() {
            let message =
                "mask = \"prompt\" leaves answers as targets, but template has no text for `assistant`";
            let help = "add assistant = \"{content}\" to template, or remove mask";
            return problem(message, ["data.text.mask".to_owned(), key("")], help);
        }
        Ok(())
    }
}

impl DocumentArrangement {
    fn resolve(self) -> Documents {
        match self {
            DocumentArrangement::Joined => Documents::Joined,
            DocumentArrangement::Padded => Documents::Padded,
            DocumentArrangement::Packed => Documents::Packed,
        }
    }
}

impl DataSource for Text {
    fn data_set(&self) -> Box<dyn DataSet> {
        let documents = self.documents.resolve();
        let Text {
            paths,
            tokens,
            jsonl,
            template,
            mask,
            documents: _,
            pad_to: _,
            pad_to_multiple_of: _,
            evaluate,
            split,
        } = self.clone();
        let encoding = match tokens {
            Tokens::Bytes => Encoding::Bytes,
            Tokens::Ids => Encoding::Ids,
            Tokens::Tokenizer(Tokenizer { file, special, end }) => {
                Encoding::Tokenizer(TokenizerFile { file, special, end })
            }
        };
        let records = match (template, jsonl) {
            (Some(template), field) => {
                let (template, masks_prompt) = (template.resolve(), mask == Mask::Prompt);
                Some(RecordFormat::Chat { field, template, masks_prompt })
            }
            (None, Some(field)) if encoding == Encoding::Ids => Some(RecordFormat::Ids(field)),
            (None, field) => field.map(RecordFormat::Text),
        };
        Box::new(TextSet { paths, encoding, records, documents, evaluate, split })
    }

    fn added_parts(&self, requested: &Sample) -> Vec<Part> {
        let context = requested.positions().unwrap_or(0);
        self.documents.resolve().parts(context)
    }

    fn batch_multiple(&self) -> Option<usize> {
        (self.pad_to == PadTo::Batch).then_some(self.pad_to_multiple_of)
    }

    fn has_evaluation_data(&self, tree: &Table) -> Result<(), Problem> {
        if self.evaluate.is_empty() { check_split(self.split, "data.text.split", tree) } else { Ok(()) }
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        one_source_of_evaluation(
            &self.evaluate,
            self.split,
            ["data.text.evaluate", "data.text.split"],
            tree,
        )?;
        self.records_have_documents(tree)?;
        self.roles_have_texts(tree)?;
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
