//! Keys whose value is a list.

use super::declare::KeyCodec;
use super::error::Problem;
use super::keys::Keys;
use super::reference::Accepts;
use super::tree::{Node, Value};
use super::write::TableWriter;

/// A list of values of one kind. An error about an element names and marks this element.
pub(crate) struct List<C> {
    /// The elements in error messages: "layers".
    pub(crate) of: &'static str,
    /// An example in TOML.
    pub(crate) example: &'static str,
    pub(crate) may_be_empty: bool,
    /// Whether elements may be equal.
    pub(crate) may_repeat: bool,
    pub(crate) element: C,
}

impl<C: KeyCodec> List<C> {
    fn expected(&self) -> String {
        format!("a list of {}, such as {}", self.of, self.example)
    }
}

impl<C: KeyCodec> KeyCodec for List<C> {
    type Output = Vec<C::Output>;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<Vec<C::Output>> {
        let name = keys.name(key);
        let nodes = match &node.value {
            Value::List(nodes) if self.may_be_empty || !nodes.is_empty() => nodes,
            found => {
                let message = format!("`{name}` must be {}, not {found}", self.expected());
                let mut problem = Problem::new(message).at(node.span);
                if let Some(advice) = keys.value_hint(key, found) {
                    problem = problem.help(advice);
                } else if matches!(found, Value::Text(_) | Value::Table(_)) {
                    problem = problem.help(format!("write [{found}]"));
                }
                keys.reader().problem(problem);
                return None;
            }
        };
        let read =
            |(index, node): (usize, &'a Node)| self.element.read(keys, &format!("{key}[{index}]"), node);
        let elements: Vec<Option<C::Output>> = nodes.iter().enumerate().map(read).collect();
        for (index, element) in elements.iter().enumerate().filter(|(_, element)| element.is_some()) {
            // A repeated element would have no effect.
            let first = elements[..index].iter().position(|other| other == element);
            if let Some(first) = first.filter(|_| !self.may_repeat) {
                let problem = Problem::new(format!("`{name}[{index}]` repeats `{name}[{first}]`"));
                let problem = problem.at(nodes[index].span).at(nodes[first].span);
                keys.reader().problem(problem.help("remove one of the two"));
                return None;
            }
        }
        elements.into_iter().collect()
    }

    fn write(&self, key: &str, value: &Vec<C::Output>, lines: &mut TableWriter) {
        let text = |element: &C::Output| {
            let mut text = TableWriter::empty(lines.form());
            self.element.write(key, element, &mut text);
            text.default_text(key)
        };
        let texts: Vec<String> = value.iter().map(text).collect();
        // The identity of a run contains no paths.
        if texts.iter().all(|text| !text.is_empty()) {
            lines.line(key, &format!("[{}]", texts.join(", ")));
        }
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = {}", self.example)
    }

    fn accepts(&self) -> Accepts {
        self.element.accepts().listed(self.expected(), self.may_be_empty, self.may_repeat)
    }
}
