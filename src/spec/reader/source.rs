//! The texts of an experiment, which error messages quote.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{Error, Problem, sorted};

/// A range of bytes in one of the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub(crate) source: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Span {
    /// The span from the start of this to the end of `end`, if both are in one text.
    pub(crate) fn to(self, end: Span) -> Span {
        if self.source == end.source && self.start < end.end { Span { end: end.end, ..self } } else { self }
    }
}

/// One text: a file, or an argument of `--set`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SourceText {
    /// The path as the user wrote it, possibly relative.
    pub(crate) name: String,
    /// The absolute directory that relative paths in it start from.
    pub(crate) directory: PathBuf,
    pub(crate) text: String,
    /// Whether lines have numbers: files do, the command line does not.
    pub(crate) numbered: bool,
}

/// A line of a text with a marked part.
pub(crate) struct Excerpt<'a> {
    pub(crate) name: &'a str,
    pub(crate) line: &'a str,
    /// From 1; `None` on the command line.
    pub(crate) number: Option<usize>,
    /// In characters, from 0.
    pub(crate) column: usize,
    /// In characters, at least 1.
    pub(crate) width: usize,
}

/// All texts of an experiment, and the span of each key. Later stages use it to report problems of keys, such as a data
/// set that is too short.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sources {
    texts: Vec<Arc<SourceText>>,
    keys: BTreeMap<String, Span>,
}

impl Sources {
    pub(crate) fn add(&mut self, source: SourceText) -> usize {
        self.texts.push(Arc::new(source));
        self.texts.len() - 1
    }

    pub(crate) fn text(&self, source: usize) -> &str {
        &self.texts[source].text
    }

    /// The text of a span, if it is short enough to quote.
    pub(crate) fn short(&self, span: Span) -> Option<&str> {
        let text = self.texts[span.source].text.get(span.start..span.end)?;
        (!text.is_empty() && text.len() <= 60 && !text.contains('\n')).then_some(text)
    }

    pub(crate) fn directory(&self, span: Span) -> &Path {
        &self.texts[span.source].directory
    }

    /// Records the span of a key, unless an earlier call did.
    pub(crate) fn locate(&mut self, key: String, span: Span) {
        self.keys.entry(key).or_insert(span);
    }

    /// Whether the span of a key was recorded.
    pub(crate) fn is_located(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// An error about a key, which marks the key, or else the table that would contain it.
    pub(crate) fn error_near(&self, key: &str, message: impl Into<String>, help: Option<String>) -> Error {
        let mut problem = Problem::new(message);
        if let Some(help) = help {
            problem = problem.help(help);
        }
        let mut prefix = key;
        loop {
            if let Some(span) = self.keys.get(prefix) {
                problem.places.push(*span);
                break;
            }
            match prefix.rfind(['.', '[']) {
                Some(end) => prefix = &prefix[..end],
                None => break,
            }
        }
        self.error(&[problem])
    }

    pub fn error(&self, problems: &[Problem]) -> Error {
        let excerpts = |problem: &Problem| problem.places.iter().map(|span| self.excerpt(*span)).collect();
        let problems = sorted(problems).into_iter().map(|problem| (problem, excerpts(problem)));
        // A missing key has no line, but a file.
        let file = self.texts.first().map(|source| source.name.as_str());
        Error::new(problems, file)
    }

    /// Each problem as a text, without duplicates.
    pub fn texts(&self, problems: &[Problem]) -> Vec<String> {
        sorted(problems)
            .into_iter()
            .map(|problem| self.error(std::slice::from_ref(problem)).to_string())
            .collect()
    }

    fn excerpt(&self, span: Span) -> Excerpt<'_> {
        let source = &self.texts[span.source];
        let text = source.text.as_str();
        let start = floor_char_boundary(text, span.start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |length| start + length);
        let end = floor_char_boundary(text, span.end).clamp(start, line_end);
        Excerpt {
            name: &source.name,
            line: text[line_start..line_end].trim_end_matches('\r'),
            number: source.numbered.then(|| text[..line_start].matches('\n').count() + 1),
            column: text[line_start..start].chars().count(),
            width: text[start..end].chars().count().max(1),
        }
    }
}

fn floor_char_boundary(text: &str, index: usize) -> usize {
    let mut index = index.min(text.len());
    while !text.is_char_boundary(index) {
        index -= 1;
    }
    index
}
