//! `groups`: parameter groups with their own learning rate or weight decay.

use glob::Pattern;

use crate::reader::declare::{InlineTable, KeyCodec, KeyTable, Writable, inline_table};
use crate::reader::forms::Form;
use crate::reader::keys::{Keys, ValueParser};
use crate::reader::list::List;
use crate::reader::parsers::{NOT_NEGATIVE, NonEmptyText, POSITIVE};
use crate::reader::reference::DeclaredKey;
use crate::reader::tree::Value;
use crate::reader::write::TableWriter;

/// A parameter group (PyTorch: `param_groups`): a pattern of names, and the options that differ.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub struct Group {
    /// `match`: the name of a parameter such as `blocks.0.mlp.up.bias`, the name of a layer, or a pattern of names.
    /// Checked once the model is built.
    pub parameters: String,
    pub lr: Option<f64>,
    /// Weight decay of all parameters of the group; `decay` does not apply.
    pub weight_decay: Option<f64>,
}

impl Group {
    /// Whether the group contains a parameter: the pattern matches its name or the name of an enclosing layer. `*`
    /// matches any characters, dots included.
    pub fn matches(&self, parameter: &str) -> bool {
        let ends = parameter.match_indices('.').map(|(end, _)| end).chain([parameter.len()]);
        let mut names = ends.map(|end| &parameter[..end]);
        Pattern::new(&self.parameters).is_ok_and(|pattern| names.any(|name| pattern.matches(name)))
    }
}

/// The name of a parameter or layer, or a pattern of names.
struct ParameterPattern;

impl ValueParser for ParameterPattern {
    type Output = String;

    fn parse(&self, value: &Value) -> Option<String> {
        NonEmptyText.parse(value).filter(|text| Pattern::new(text).is_ok())
    }

    fn expected(&self) -> String {
        "the name of a parameter or layer, or a pattern of names, such as \"*.bias\"".to_string()
    }

    fn forms(&self) -> Vec<Form> {
        vec![Form::glob()]
    }
}

impl KeyTable for Group {
    const KEYS: &'static [&'static str] = &["match", "lr", "weight_decay"];
    const DOC: &'static str = "A group of parameters (PyTorch: parameter groups).";

    fn read(keys: &mut Keys<'_>) -> Option<Group> {
        let parameters = keys.key("match", None, ParameterPattern);
        let (lr, weight_decay) = (keys.optional("lr", POSITIVE), keys.optional("weight_decay", NOT_NEGATIVE));
        Some(Group { parameters: parameters?, lr: lr?, weight_decay: weight_decay? })
    }

    fn write(&self, lines: &mut TableWriter) {
        let Group { parameters, lr, weight_decay } = self;
        lines.line("match", &ParameterPattern.text(parameters));
        lr.iter().for_each(|lr| lines.line("lr", &POSITIVE.text(lr)));
        weight_decay.iter().for_each(|decay| lines.line("weight_decay", &NOT_NEGATIVE.text(decay)));
    }

    fn reference() -> Vec<DeclaredKey> {
        let key = |key, doc, accepts, default| DeclaredKey::new(key, doc, accepts, default);
        vec![
            key(
                "match",
                "The group's parameters. A parameter belongs to the first group that matches it.",
                ParameterPattern.accepts(),
                None,
            ),
            key("lr", "Learning rate of the group.", POSITIVE.accepts(), Some("the optimizer's")),
            key(
                "weight_decay",
                "Weight decay of the group.",
                NOT_NEGATIVE.accepts(),
                Some("the optimizer's"),
            ),
        ]
    }
}

impl Writable for ParameterPattern {
    fn text(&self, value: &String) -> String {
        NonEmptyText.text(value)
    }
}

/// A list of tables, one per group.
pub(super) const GROUPS: List<InlineTable<Group>> = List {
    of: "tables",
    example: "[{ match = \"*.bias\", weight_decay = 0.0 }]",
    may_be_empty: true,
    may_repeat: false,
    element: inline_table("groups", "a group", "match = \"*.bias\", weight_decay = 0.0"),
};
