//! Conversations: a template joins the messages of a record to one text, of which the answers are learnt.

use std::ops::Range;

use serde_json::Value;

use super::json::{self, Problem, kind, names};
use base::brief;

/// The places of a template that a message fills.
pub(super) const CONTENT: &str = "{content}";
const ROLE: &str = "{role}";

/// The role whose messages are answers.
const ANSWER: &str = "assistant";

/// A text and, if prompts are masked, the byte ranges that are learnt.
pub(super) struct Conversation {
    pub(super) text: String,
    pub(super) answers: Vec<Range<usize>>,
}

/// A message: its role and content.
type Message<'a> = (&'a str, String);

/// Joins the messages of a record. `field` is the list of messages; without it, the record has one of the usual shapes.
pub(super) fn join(record: &Value, field: Option<&str>, template: &str) -> Result<Conversation, Problem> {
    let mut joined = Conversation { text: String::new(), answers: Vec::new() };
    // A template has its content exactly once.
    let (before, after) = template.split_once(CONTENT).unwrap_or((template, ""));
    for (role, content) in messages(record, field)? {
        joined.text += &before.replace(ROLE, role);
        let begin = joined.text.len();
        joined.text += &content;
        let after = after.replace(ROLE, role);
        joined.text += &after;
        if role == ANSWER {
            // White space between messages is not part of an answer.
            let space = after.len() - after.trim_end().len();
            joined.answers.push(begin..joined.text.len() - space);
        }
    }
    Ok(joined)
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
