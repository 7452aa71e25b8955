//! The text of an experiment: tables whose keys have a line of documentation each.

use std::collections::BTreeSet;

use compare::wrap;
use spec::{KeyReference, key_reference};

/// A key and its value.
#[derive(Clone, Debug)]
pub(super) struct Line {
    key: String,
    value: Written,
    /// What it was translated from.
    origin: String,
}

#[derive(Clone, Debug)]
enum Written {
    /// TOML.
    Value(String),
    Path(String),
    Paths(Vec<String>),
}

impl Line {
    /// `value` is TOML.
    pub(super) fn new(key: &str, value: String) -> Line {
        Line { key: key.to_owned(), value: Written::Value(value), origin: String::new() }
    }

    pub(super) fn number(key: &str, number: f64) -> Line {
        Line::new(key, format!("{number:?}"))
    }

    pub(super) fn text(key: &str, text: &str) -> Line {
        Line::new(key, quoted(text))
    }

    /// A path of this folder.
    pub(super) fn path(key: &str, path: &str) -> Line {
        Line { value: Written::Path(path.to_owned()), ..Line::new(key, String::new()) }
    }

    pub(super) fn paths(key: &str, paths: &[String]) -> Line {
        Line { value: Written::Paths(paths.to_vec()), ..Line::new(key, String::new()) }
    }

    pub(super) fn from(self, origin: &str) -> Line {
        Line { origin: origin.to_owned(), ..self }
    }
}

/// A table of keys.
#[derive(Clone, Debug)]
pub(super) struct Table {
    name: String,
    lines: Vec<Line>,
}

impl Table {
    pub(super) fn new(name: &str, lines: Vec<Line>) -> Table {
        Table { name: name.to_owned(), lines }
    }

    /// The table of a strategy.
    pub(super) fn strategy(name: &str, lines: Vec<Line>) -> Table {
        Table::new(&format!("strategies.{}", key_text(name)), lines)
    }
}

/// Writes tables. Each key is explained where it first appears.
pub(super) struct Document<'a> {
    /// How a path of this folder is written.
    path: &'a dyn Fn(&str) -> String,
    keys: Vec<KeyReference>,
    explained: BTreeSet<String>,
    text: String,
}

impl Document<'_> {
    pub(super) fn new(path: &dyn Fn(&str) -> String) -> Document<'_> {
        Document { path, keys: key_reference(), explained: BTreeSet::new(), text: String::new() }
    }

    pub(super) fn comment(&mut self, text: &str) {
        for line in text.lines() {
            self.text.push_str(format!("# {line}").trim_end());
            self.text.push('\n');
        }
    }

    /// A line for editors.
    pub(super) fn directive(&mut self, text: &str) {
        self.text.push_str(&format!("#{text}\n"));
    }

    pub(super) fn blank(&mut self) {
        self.text.push('\n');
    }

    /// Keys at the top of the file.
    pub(super) fn top(&mut self, lines: &[Line]) {
        lines.iter().for_each(|line| self.line("", line));
    }

    pub(super) fn table(&mut self, table: &Table) {
        self.blank();
        self.explain(&table.name);
        self.text.push_str(&format!("[{}]\n", table.name));
        let is_strategy = table.name.starts_with("strategies.");
        let path = if is_strategy { "strategies.NAME." } else { &format!("{}.", table.name) };
        table.lines.iter().for_each(|line| self.line(path, line));
    }

    fn line(&mut self, table: &str, Line { key, value, origin }: &Line) {
        self.explain(&format!("{table}{key}"));
        let value = match value {
            Written::Value(value) => value.clone(),
            Written::Path(path) => self.quoted_path(path),
            Written::Paths(paths) => {
                let paths: Vec<String> = paths.iter().map(|path| self.quoted_path(path)).collect();
                format!("[{}]", paths.join(", "))
            }
        };
        let origin = if origin.is_empty() { String::new() } else { format!("  # {origin}") };
        self.text.push_str(&format!("{key} = {value}{origin}\n"));
    }

    /// A path, whose dollar signs begin no variable.
    fn quoted_path(&self, path: &str) -> String {
        quoted(&(self.path)(path).replace('$', "$$"))
    }

    /// The documentation of a key or table, where it first appears.
    fn explain(&mut self, path: &str) {
        let known = self.keys.iter().find(|known| known.path == path);
        let doc = known.map(|known| brief(&known.doc)).filter(|_| self.explained.insert(path.to_owned()));
        doc.iter().for_each(|doc| self.comment(doc));
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// The longest line of comments.
const WIDTH: usize = 100;

/// A key's documentation, short: its first sentence, of a long one the first part.
fn brief(doc: &str) -> String {
    let sentence = doc.find(". ").map_or(doc, |end| &doc[..=end]);
    let short = match sentence.find([':', ';']).filter(|_| sentence.len() > WIDTH) {
        Some(end) => format!("{}.", &sentence[..end]),
        None => sentence.to_owned(),
    };
    wrap(&short, WIDTH).lines().map(str::trim_start).collect::<Vec<_>>().join("\n")
}

/// A TOML key, quoted if necessary.
fn key_text(name: &str) -> String {
    let is_bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if is_bare { name.to_owned() } else { quoted(name) }
}

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_explained_once() {
        let path = |path: &str| format!("../{path}");
        let mut document = Document::new(&path);
        document.top(&[Line::text("name", "a\"b")]);
        document.table(&Table::new("data.text", vec![Line::paths("paths", &["*.txt".to_owned()])]));
        for name in ["a", "b c"] {
            let line = Line::new("accumulate", "2".to_owned()).from("origin");
            document.table(&Table::strategy(name, vec![line]));
        }
        assert_eq!(
            document.finish(),
            "# Name of the experiment and of its result files.\nname = 'a\"b'\n\n\
             # Text files, in the order of their sorted paths.\n[data.text]\n\
             # Paths and globs, relative to the experiment file; `${VARIABLE}` is expanded.\n\
             paths = [\"../*.txt\"]\n\n[strategies.a]\n\
             # Micro-batches per optimizer step (gradient accumulation).\naccumulate = 2  # origin\n\n\
             [strategies.\"b c\"]\naccumulate = 2  # origin\n"
        );
    }
}
