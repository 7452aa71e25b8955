//! `template` of `[data.text]`: the text of each message of a conversation.

use crate::reader::declare::{InlineTable, KeyCodec, Optional, Writable, inline_table, key_table};
use crate::reader::forms::{Form, NOT_EMPTY};
use crate::reader::keys::{Keys, ValueParser};
use crate::reader::parsers::NonEmptyText;
use crate::reader::reference::Accepts;
use crate::reader::tree::{Node, Value, quoted};
use crate::reader::write::TableWriter;
use data::ChatTemplate;

/// Known templates.
const TEMPLATES: [(&str, &str); 3] = [
    ("chatml", "<|im_start|>{role}\n{content}<|im_end|>\n"),
    ("llama3", "<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>"),
    ("plain", "{content}"),
];

const TWICE: &str = r"\{content\}[\s\S]*\{content\}";

/// A text with `{content}` once, and without what another regular expression matches.
fn content_once(refused: &str) -> Form {
    Form::Text { pattern: r"\{content\}".to_owned(), refused: Some(refused.to_owned()) }
}

/// A known template, or a text.
struct TemplateText;

impl ValueParser for TemplateText {
    type Output = String;

    fn parse(&self, value: &Value) -> Option<String> {
        let Value::Text(text) = value else { return None };
        // A known template has one run id, whether its name or its text is written.
        match TEMPLATES.iter().find(|(name, known)| name == text || known == text) {
            Some((name, _)) => Some((*name).to_owned()),
            None => (text.matches("{content}").count() == 1).then(|| text.clone()),
        }
    }

    fn expected(&self) -> String {
        "\"chatml\", \"llama3\", \"plain\", a text with \"{content}\" once, or { user = \"...\", assistant = \"...\" }".to_owned()
    }

    fn forms(&self) -> Vec<Form> {
        vec![Form::words(&self.keywords()), content_once(&format!(r"{TWICE}|\{{system\}}"))]
    }

    fn keywords(&self) -> Vec<&'static str> {
        TEMPLATES.map(|(name, _)| name).to_vec()
    }
}

/// The texts of messages.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub enum Template {
    /// A known template, or the text of every message.
    Text(String),
    Roles(Box<RoleTemplates>),
}

key_table! {
    /// The texts of a conversation by role, each with `{content}` once.
    pub struct RoleTemplates {
        /// The text at the beginning of each conversation.
        pub begin: Option<String> = Optional(FixedText), default None;
        /// A message of the system. With `{system}` in `user`, it is a part of the next message of the user.
        pub system: Option<String> = Optional(MessageText), default None;
        /// A message of the user; `{system}` stands for the system messages before it, if there are any.
        pub user: Option<String> = Optional(MessageText), default None;
        /// A message of the assistant: an answer.
        pub assistant: Option<String> = Optional(MessageText), default None;
        /// A result of a tool.
        pub tool: Option<String> = Optional(MessageText), default None;
        /// The text at the end of each conversation.
        pub end: Option<String> = Optional(FixedText), default None;
    }
}

/// A text without placeholders, which `roles_have_texts` reports.
struct FixedText;

impl ValueParser for FixedText {
    type Output = String;

    fn parse(&self, value: &Value) -> Option<String> {
        NonEmptyText.parse(value)
    }

    fn expected(&self) -> String {
        NonEmptyText.expected()
    }

    fn forms(&self) -> Vec<Form> {
        let refused = Some(r"\{(content|role|system)\}".to_owned());
        vec![Form::Text { pattern: NOT_EMPTY.to_owned(), refused }]
    }
}

impl Writable for FixedText {
    fn text(&self, value: &String) -> String {
        quoted(value)
    }
}

/// A text with the place of a message's content.
struct MessageText;

impl ValueParser for MessageText {
    type Output = String;

    fn parse(&self, value: &Value) -> Option<String> {
        let Value::Text(text) = value else { return None };
        (text.matches("{content}").count() == 1).then(|| text.clone())
    }

    fn expected(&self) -> String {
        "a text with \"{content}\" once".to_owned()
    }

    fn forms(&self) -> Vec<Form> {
        vec![content_once(TWICE)]
    }
}

impl Writable for MessageText {
    fn text(&self, value: &String) -> String {
        quoted(value)
    }
}

/// A text or a table.
pub(super) struct TemplateCodec;

const ROLES: InlineTable<RoleTemplates> = inline_table(
    "data.text.template",
    "`template`",
    "user = \"[INST] {content} [/INST]\", assistant = \"{content}</s>\"",
);

impl KeyCodec for TemplateCodec {
    type Output = Template;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<Template> {
        match node.table() {
            Some(_) => ROLES.read(keys, key, node).map(Box::new).map(Template::Roles),
            None => keys.parse(key, node, &TemplateText).map(Template::Text),
        }
    }

    fn write(&self, key: &str, value: &Template, lines: &mut TableWriter) {
        match value {
            Template::Text(text) => lines.line(key, &quoted(text)),
            Template::Roles(roles) => ROLES.write(key, roles, lines),
        }
    }

    fn example(&self, key: &str) -> String {
        ROLES.example(key)
    }

    fn accepts(&self) -> Accepts {
        Accepts::table::<RoleTemplates>().or(&TemplateText.expected(), TemplateText.forms())
    }
}

impl Template {
    /// The data set's template.
    pub(super) fn resolve(self) -> ChatTemplate {
        match self {
            Template::Text(text) => {
                let known = TEMPLATES.iter().find(|(name, _)| *name == text);
                let text = known.map_or(text.clone(), |(_, known)| (*known).to_owned());
                ChatTemplate { messages: vec![(None, text)], ..ChatTemplate::default() }
            }
            Template::Roles(roles) => {
                let RoleTemplates { begin, system, user, assistant, tool, end } = *roles;
                let roles = [("system", system), ("user", user), ("assistant", assistant), ("tool", tool)];
                let messages = roles.into_iter().filter_map(|(role, text)| Some((Some(role), text?)));
                let [begin, end] = [begin, end].map(Option::unwrap_or_default);
                ChatTemplate { begin, messages: messages.collect(), end }
            }
        }
    }
}
