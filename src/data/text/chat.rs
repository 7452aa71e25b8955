//! Conversations: a template joins the messages of a record to one text, of which the answers are learnt.

use std::ops::Range;

use serde_json::Value;

use super::json::{self, Problem, kind, names};
use base::brief;

/// The places of a template that a message fills, and the place for the system messages before it.
pub(super) const CONTENT: &str = "{content}";
const ROLE: &str = "{role}";
const SYSTEM_MESSAGES: &str = "{system}";

/// The role whose messages are answers, and the role whose messages another may include.
const ANSWER: &str = "assistant";
const SYSTEM: &str = "system";

/// The text of a conversation's messages, and around them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatTemplate {
    /// The text before the first message.
    pub begin: String,
    /// By role, the text of a message, with its content once; `None`: of any role.
    pub messages: Vec<(Option<&'static str>, String)>,
    /// The text behind the last message.
    pub end: String,
}

impl ChatTemplate {
    /// The text before and behind the content of a message.
    fn of(&self, role: &str) -> Result<(&str, &str), Problem> {
        let is_for = |known: Option<&str>| known.is_none_or(|known| known == role);
        if let Some((_, text)) = self.messages.iter().find(|(known, _)| is_for(*known)) {
            return Ok(text.split_once(CONTENT).unwrap_or((text, "")));
        }
        let role = brief::line(role);
        let known: Vec<&str> = self.messages.iter().filter_map(|(role, _)| *role).collect();
        let message = format!("it has a message with the role `{role}`, for which template has no text");
        let help = format!(
            "template has texts for `{}`: add one for `{role}`, rename the role in the data, or use one text with \
             {{role}} for all",
            known.join("`, `")
        );
        Err((message, help))
    }

    fn includes_system(&self) -> bool {
        self.messages.iter().any(|(_, text)| text.contains(SYSTEM_MESSAGES))
    }
}

/// A text and, if prompts are masked, the byte ranges that are learnt.
pub(super) struct Conversation {
    pub(super) text: String,
    pub(super) answers: Vec<Range<usize>>,
}

/// A message: its role and content.
type Message<'a> = (&'a str, String);

/// Joins the messages of a record. `field` is the list of messages; without it, the record has one of the usual shapes.
pub(super) fn join(
    record: &Value,
    field: Option<&str>,
    template: &ChatTemplate,
) -> Result<Conversation, Problem> {
    let messages = messages(record, field)?;
    let mut joined = Conversation { text: String::new(), answers: Vec::new() };
    let Some((last, _)) = messages.last() else { return Ok(joined) };
    let ends_with_answer = *last == ANSWER;
    joined.text += &template.begin;
    // System messages that the next message of the user includes.
    let mut system: Option<String> = None;
    for (role, content) in messages {
        let (before, after) = template.of(role)?;
        if role == SYSTEM && template.includes_system() {
            let [before, after] = [before, after].map(|text| text.replace(ROLE, role));
            *system.get_or_insert_default() += &[before, content, after].concat();
            continue;
        }
        let has_place = before.contains(SYSTEM_MESSAGES) || after.contains(SYSTEM_MESSAGES);
        let included = if has_place { system.take() } else { None }.unwrap_or_default();
        let [before, after] =
            [before, after].map(|text| text.replace(ROLE, role).replace(SYSTEM_MESSAGES, &included));
        joined.text += &before;
        let begin = joined.text.len();
        joined.text += &content;
        joined.text += &after;
        if role == ANSWER {
            joined.answers.push(begin..joined.text.len() - trailing_space(&after));
        }
    }
    if system.is_some() {
        let message = "it has a system message without a message of the user behind it, which includes it";
        let help = "add a message of the user, or remove {system} from template.user";
        return Err((message.to_owned(), help.to_owned()));
    }
    joined.text += &template.end;
    if let Some(answer) = joined.answers.last_mut()
        && ends_with_answer
        && !template.end.trim_end().is_empty()
    {
        answer.end = joined.text.len() - trailing_space(&template.end);
    }
    Ok(joined)
}

/// Bytes of white space at the end, which is not part of an answer.
fn trailing_space(text: &str) -> usize {
    text.len() - text.trim_end().len()
}

fn messages<'a>(record: &'a Value, field: Option<&str>) -> Result<Vec<Message<'a>>, Problem> {
    if let Some(field) =
        field.or_else(|| ["messages", "conversations"].into_iter().find(|name| record.get(name).is_some()))
    {
        let Value::Array(messages) = json::field(record, field)? else {
            return Err((format!("its `{field}` is not a list of messages"), names(record)));
        };
        return messages
            .iter()
            .enumerate()
            .map(|(index, found)| message(found, &format!("{field}.{index}")))
            .collect();
    }
    let text = |name| json::text(record, name).map(str::to_owned);
    if record.get("prompt").is_some() && record.get("completion").is_some() {
        return Ok(vec![("user", text("prompt")?), (ANSWER, text("completion")?)]);
    }
    if record.get("instruction").is_some() && record.get("output").is_some() {
        let input = if record.get("input").is_some() { text("input")? } else { String::new() };
        let separator = if input.is_empty() { "" } else { "\n\n" };
        return Ok(vec![("user", text("instruction")? + separator + &input), (ANSWER, text("output")?)]);
    }
    let message = "it has no `messages`, no `conversations`, no `prompt` with `completion` and no `instruction` with `output`";
    Err((message.to_owned(), format!("set jsonl to the field with the list of messages; {}", names(record))))
}

/// A message as OpenAI's format has it (`role`, `content`), or ShareGPT's (`from`, `value`). A content may be a list of
/// parts.
fn message<'a>(found: &'a Value, path: &str) -> Result<Message<'a>, Problem> {
    let of = |names: [&'static str; 2]| {
        names.into_iter().find_map(|name| found.get(name).map(|value| (name, value)))
    };
    let field = |[first, other]: [&'static str; 2]| match of([first, other]) {
        Some((name, value)) => Ok((format!("{path}.{name}"), value)),
        None => Err((
            format!("its `{path}` has no `{first}`"),
            "a message has `role` and `content`, or `from` and `value`".to_owned(),
        )),
    };
    let (path, role) = field(["role", "from"])?;
    let role = match text(&path, role)? {
        "human" => "user",
        "gpt" | "model" | "bot" => ANSWER,
        other => other,
    };
    let (path, content) = field(["content", "value"])?;
    let content = match content {
        Value::Array(parts) => {
            let parts = parts.iter().enumerate();
            parts.map(|(index, found)| part(&format!("{path}.{index}"), found)).collect::<Result<_, _>>()?
        }
        content => text(&path, content)?.to_owned(),
    };
    Ok((role, content))
}

/// The text of a part of a content: `{ "type": "text", "text": .. }`.
fn part<'a>(path: &str, found: &'a Value) -> Result<&'a str, Problem> {
    match found.get("text") {
        Some(found) => text(&format!("{path}.text"), found),
        None => {
            let kind = found.get("type").and_then(Value::as_str).unwrap_or("of no type");
            let message = format!("its `{path}` has no `text`: it is {}", brief::line(kind));
            Err((message, "each part of a content must be text".to_owned()))
        }
    }
}

fn text<'a>(path: &str, found: &'a Value) -> Result<&'a str, Problem> {
    found.as_str().ok_or_else(|| {
        (format!("its `{path}` is {}, not text", kind(found)), "each message must have text".to_owned())
    })
}
