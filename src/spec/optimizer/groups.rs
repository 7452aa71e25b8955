//! `groups`: parameters that an optimizer updates in another way than the rest.

use glob::Pattern;

use crate::declare::{Declared, Section, Writable};
use crate::error::Problem;
use crate::kinds::{NOT_NEGATIVE, POSITIVE, Text};
use crate::reader::{Keys, Kind};
use crate::tree::{Entry, Value};
use crate::write::Lines;

/// Parameters by their names, and what of the optimizer's keys is another for them.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Group {
    /// `match`: of parameters, as `blocks.0.mlp.up.bias`, of layers, or a pattern of names. Which there are is known once the
    /// model is.
    pub parameters: String,
    pub lr: Option<f64>,
    /// Of all of them, whatever `decay` says.
    pub weight_decay: Option<f64>,
}

impl Group {
    /// Whether a parameter of this name is one of its own: by its name, by that of a layer around it, or by a pattern of either,
    /// whose `*` stands for any letters, points among them.
    pub fn matches(&self, parameter: &str) -> bool {
        let ends = parameter.match_indices('.').map(|(end, _)| end).chain([parameter.len()]);
        let mut names = ends.map(|end| &parameter[..end]);
        Pattern::new(&self.parameters).is_ok_and(|pattern| names.any(|name| pattern.matches(name)))
    }
}

/// The name of a parameter or of a layer, or a pattern of names.
struct Names;

impl Kind for Names {
    type Output = String;

    fn parse(&self, value: &Value) -> Option<String> {
        Text.parse(value).filter(|text| Pattern::new(text).is_ok())
    }

    fn expected(&self) -> String {
        "the name of a parameter or of a layer, or a pattern of names, such as \"*.bias\"".to_string()
    }
}

impl Section for Group {
    const KEYS: &'static [&'static str] = &["match", "lr", "weight_decay"];

    fn read(keys: &mut Keys<'_>) -> Option<Group> {
        let parameters = keys.key("match", None, Names);
        let (lr, weight_decay) = (keys.optional("lr", POSITIVE), keys.optional("weight_decay", NOT_NEGATIVE));
        Some(Group { parameters: parameters?, lr: lr?, weight_decay: weight_decay? })
    }

    fn write(&self, lines: &mut Lines) {
        let Group { parameters, lr, weight_decay } = self;
        lines.line("match", &Names.text(parameters));
        lr.iter().for_each(|lr| lines.line("lr", &POSITIVE.text(lr)));
        weight_decay.iter().for_each(|decay| lines.line("weight_decay", &NOT_NEGATIVE.text(decay)));
    }
}

impl Writable for Names {
    fn text(&self, value: &String) -> String {
        Text.text(value)
    }
}

/// A list of them, each a table.
pub(super) struct Groups;

const EXAMPLE: &str = "[{ match = \"*.bias\", weight_decay = 0.0 }]";

impl Declared for Groups {
    type Output = Vec<Group>;

    fn read<'a>(&self, keys: &Keys<'a>, entry: &'a Entry) -> Option<Vec<Group>> {
        let Value::List(nodes) = &entry.node.value else {
            let found = &entry.node.value;
            let message = format!("`{}` must be a list of tables, not {found}", keys.name(&entry.key));
            keys.reader()
                .problem(Problem::new(message).at(entry.node.span).help(format!("groups = {EXAMPLE}")));
            return None;
        };
        let mut groups = Some(Vec::with_capacity(nodes.len()));
        for node in nodes {
            let group = node.table().and_then(|table| {
                let mut keys = keys.reader().keys(table, "groups", "a group").at(node.span);
                let group = Group::read(&mut keys);
                keys.finish();
                group
            });
            if node.table().is_none() {
                let message =
                    format!("each of `{}` must be a table, not {}", keys.name(&entry.key), node.value);
                keys.reader()
                    .problem(Problem::new(message).at(node.span).help(format!("groups = {EXAMPLE}")));
            }
            groups = groups.zip(group).map(|(mut groups, group)| {
                groups.push(group);
                groups
            });
        }
        groups
    }

    fn write(&self, key: &str, value: &Vec<Group>, lines: &mut Lines) {
        let groups: Vec<String> = value.iter().map(|group| Lines::of(group, lines.form()).inline()).collect();
        lines.line(key, &format!("[{}]", groups.join(", ")));
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = {EXAMPLE}")
    }
}
