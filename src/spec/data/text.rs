//! `[data.text]`

use std::path::PathBuf;

use super::{DataSource, Vocabulary};
use crate::data::{DataSet, TextSet};
use crate::spec::declare::{Declared, section, words};
use crate::spec::error::Problem;
use crate::spec::kinds::{SHARE, word};
use crate::spec::paths::{self, escape_variables};
use crate::spec::reader::{Keys, Reader};
use crate::spec::rules::blame;
use crate::spec::tree::{Entry, Node, Table, Value, quoted};
use crate::spec::write::{Form, Lines};

section! {
    /// Files of text, in the order of their sorted paths.
    pub struct Text {
        /// Absolute paths and globs.
        pub paths: Vec<PathBuf> = Paths;
        pub tokens: Tokens = word(), default Tokens::Bytes;
        /// The share, from the front, that is trained on; the rest is evaluated on.
        pub split: f64 = SHARE, default 0.9;
    }
}

words! {
    pub enum Tokens {
        /// Each byte is a token.
        Bytes = "bytes",
    }
}

impl Tokens {
    pub fn vocabulary(self) -> usize {
        match self {
            Tokens::Bytes => 256,
        }
    }
}

impl DataSource for Text {
    fn data_set(&self) -> Box<dyn DataSet> {
        match self.tokens {
            Tokens::Bytes => Box::new(TextSet::new(&self.paths, self.split)),
        }
    }

    fn vocabulary(&self) -> Vocabulary {
        Vocabulary { tokens: self.tokens.vocabulary(), of: "data.text", key: "data.text.tokens" }
    }

    fn leaves_some_to_evaluate(&self, tree: &Table) -> Result<(), Problem> {
        if self.split < 1.0 {
            return Ok(());
        }
        Err(blame(
            "data.text.split = 1 leaves nothing to evaluate on".to_string(),
            &["data.text.split", "evaluation"],
            tree,
            "0.9 does, or evaluation = \"off\"",
        ))
    }
}

/// Paths and globs, at least one.
struct Paths;

impl Declared for Paths {
    type Output = Vec<PathBuf>;

    fn read<'a>(&self, keys: &Keys<'a>, entry: &'a Entry) -> Option<Vec<PathBuf>> {
        let expected = "a list of paths, such as [\"../src/**/*.rs\"]";
        let mismatch = |node: &Node| {
            Problem::new(format!("`data.text.paths` must be {expected}, not {}", node.value)).at(node.span)
        };
        let reader = keys.reader();
        match &entry.node.value {
            Value::List(nodes) if !nodes.is_empty() => {
                let mut paths = Vec::new();
                for node in nodes {
                    match &node.value {
                        Value::Text(text) if !text.is_empty() => {
                            paths.push(path(reader, node, text).map_err(|p| reader.problem(p)).ok())
                        }
                        _ => {
                            reader.problem(mismatch(node));
                            paths.push(None);
                        }
                    }
                }
                paths.into_iter().collect()
            }
            _ => {
                reader.problem(mismatch(&entry.node));
                None
            }
        }
    }

    fn write(&self, key: &str, value: &Vec<PathBuf>, lines: &mut Lines) {
        // Where the text lies does not matter, what it is does.
        if lines.form() == Form::Whole {
            let path = |path: &PathBuf| quoted(&escape_variables(&path.to_string_lossy()));
            let paths: Vec<String> = value.iter().map(path).collect();
            lines.line(key, &format!("[{}]", paths.join(", ")));
        }
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = [\"../src/**/*.rs\"]")
    }
}

/// A path or glob, its variables replaced, relative to the file that wrote it.
fn path(reader: &Reader<'_>, node: &Node, text: &str) -> Result<PathBuf, Problem> {
    let expanded = paths::expand_variables(text, reader.environment)
        .map_err(|(message, help)| Problem::new(message).at(node.span).help(help))?;
    let path = paths::absolute(reader.sources.directory(node.span), &expanded);
    if path.to_str().is_none() {
        return Err(Problem::new("the path of the experiment is not UTF-8 text").at(node.span));
    }
    glob::Pattern::new(&path.to_string_lossy()).map_err(|error| {
        Problem::new(format!("`{text}` is not a path with wildcards: {}", error.msg))
            .at(node.span)
            .help("`*` stands for part of a name, `**` for any folders, `[ab]` for one of some characters")
    })?;
    Ok(path)
}
