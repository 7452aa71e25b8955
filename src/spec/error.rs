//! What is wrong with an experiment, shown at the line that its reader wrote.

use std::fmt::Write as _;

use super::source::{Excerpt, Span};

/// Something wrong, with its places not yet looked up: a sweep may find thousands that no one will read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    pub(crate) message: String,
    /// The first is to blame; the others took part.
    pub(crate) places: Vec<Span>,
    pub(crate) help: Option<String>,
}

impl Problem {
    pub(crate) fn new(message: impl Into<String>) -> Problem {
        Problem { message: message.into(), places: Vec::new(), help: None }
    }

    pub(crate) fn at(mut self, place: Span) -> Problem {
        self.places.push(place);
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = Some(help.into());
        self
    }

    /// The whole of it in one line, for a row of a table.
    pub(crate) fn reason(&self) -> String {
        match &self.help {
            Some(help) => format!("{}; {help}", self.message),
            None => self.message.clone(),
        }
    }
}

/// An experiment that cannot be run as written. Displays as the compilers do: message, place, the line with its
/// culprit marked, and what would work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rendered}")]
pub struct Error {
    rendered: String,
}

impl Error {
    pub(crate) fn new(problem: &Problem, file: Option<&str>, excerpts: &[Excerpt<'_>]) -> Error {
        let mut rendered = problem.message.clone();
        let numbers = excerpts.iter().filter_map(|excerpt| excerpt.number);
        let margin = numbers.max().map_or(1, |number| number.to_string().len());
        for (index, excerpt) in excerpts.iter().enumerate() {
            let (arrow, mark) = if index == 0 { ("-->", "^") } else { (":::", "-") };
            // Writing to a string cannot fail.
            let _ = render(&mut rendered, excerpt, arrow, mark, margin);
        }
        if let (Some(file), true) = (file, excerpts.is_empty()) {
            let _ = write!(rendered, "\n --> {file}");
        }
        if let Some(help) = &problem.help {
            let _ = write!(rendered, "\n{:margin$} = help: {help}", "");
        }
        Error { rendered }
    }
}

fn render(
    out: &mut String,
    excerpt: &Excerpt<'_>,
    arrow: &str,
    mark: &str,
    margin: usize,
) -> std::fmt::Result {
    let number = excerpt.number.map(|number| number.to_string()).unwrap_or_default();
    let padding: String =
        excerpt.line.chars().take(excerpt.column).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    write!(out, "\n{:margin$}{arrow} {}", "", excerpt.name)?;
    if let Some(number) = excerpt.number {
        write!(out, ":{number}:{}", excerpt.column + 1)?;
    }
    write!(out, "\n{:margin$} |", "")?;
    write!(out, "\n{number:>margin$} | {}", excerpt.line)?;
    write!(out, "\n{:margin$} | {padding}{}", "", mark.repeat(excerpt.width))
}
