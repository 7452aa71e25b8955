//! Problems of an experiment, and their rendering with the lines that cause them.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::source::{Excerpt, Span};
use base::brief;

/// A problem with unresolved spans: a sweep may produce thousands that are never shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub(crate) message: String,
    /// The first is the main span; the others are involved.
    pub places: Vec<Span>,
    pub(crate) help: Option<String>,
    /// Lines to write, below the help.
    pub(crate) lines: Vec<String>,
}

impl Problem {
    pub fn new(message: impl Into<String>) -> Problem {
        Problem {
            message: brief::line(&message.into()).into_owned(),
            places: Vec::new(),
            help: None,
            lines: Vec::new(),
        }
    }

    pub fn at(mut self, place: Span) -> Problem {
        self.places.push(place);
        self
    }

    pub fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = Some(brief::line(&help.into()).into_owned());
        self
    }

    pub(crate) fn lines(mut self, lines: Vec<String>) -> Problem {
        self.lines.extend(lines.iter().map(|line| brief::line(line).into_owned()));
        self
    }

    /// Sort key: the order of the texts, problems without a span last.
    fn order(&self) -> (bool, usize, usize) {
        self.places.first().map_or((true, 0, 0), |place| (false, place.source, place.start))
    }

    /// Message and hint in one line, for a row of a table.
    pub fn reason(&self) -> String {
        match &self.help {
            Some(help) => format!("{}; {help}", self.message),
            None => self.message.clone(),
        }
    }
}

/// A problem of some runs only.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Remark {
    /// A part of an input was not read: a warning in predictions, an error of runs that train.
    Unread(Problem),
    /// A setting without effect: a warning.
    Unneeded(Problem),
    /// Stored weights are quantized: an error of runs without a quantized base.
    Quantized(Problem),
}

/// All values, or all problems, so that they can be fixed at once.
pub(crate) fn all<T>(
    results: impl IntoIterator<Item = Result<T, Vec<Problem>>>,
) -> Result<Vec<T>, Vec<Problem>> {
    let (mut values, mut problems) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(more) => problems.extend(more),
        }
    }
    if problems.is_empty() { Ok(values) } else { Err(problems) }
}

impl From<Problem> for Vec<Problem> {
    fn from(problem: Problem) -> Vec<Problem> {
        vec![problem]
    }
}

/// Problems in the order of the file, without duplicates: a problem of the model is found once per strategy.
pub(super) fn sorted(problems: &[Problem]) -> Vec<&Problem> {
    let mut sorted: Vec<&Problem> = problems.iter().collect();
    sorted.sort_by_key(|problem| problem.order());
    let mut seen: Vec<&Problem> = Vec::new();
    sorted.retain(|problem| {
        let same_place = seen.iter().rev().take_while(|earlier| earlier.order() == problem.order());
        let is_new = !same_place.copied().any(|earlier| earlier == *problem);
        if is_new {
            seen.push(problem);
        }
        is_new
    });
    sorted
}

/// All problems of an experiment, displayed as compilers do: message, position, the marked line, and a hint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rendered}")]
pub struct Error {
    rendered: String,
}

/// Largest number of problems shown at once.
pub(super) const MOST_SHOWN: usize = 20;

impl Error {
    /// Renders problems, each with its excerpts.
    pub(super) fn new<'a>(
        problems: impl ExactSizeIterator<Item = (&'a Problem, Vec<Excerpt<'a>>)>,
        file: Option<&str>,
    ) -> Error {
        let more = problems.len().saturating_sub(MOST_SHOWN);
        let shown = problems.take(MOST_SHOWN);
        let texts: Vec<String> =
            shown.map(|(problem, excerpts)| Error::rendered(problem, file, &excerpts)).collect();
        let mut rendered = texts.join("\n\nerror: ");
        if more > 0 {
            // Writing to a string cannot fail.
            let _ = write!(rendered, "\n\nand {more} more");
        }
        Error { rendered }
    }

    fn rendered(problem: &Problem, file: Option<&str>, excerpts: &[Excerpt<'_>]) -> String {
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
        for line in &problem.lines {
            let _ = write!(rendered, "\n{:margin$}         {line}", "");
        }
        rendered
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
    let ClippedLine { line, column, width } = clip(excerpt);
    let padding: String = line.chars().take(column).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    write!(out, "\n{:margin$}{arrow} {}", "", excerpt.name)?;
    if let Some(number) = excerpt.number {
        write!(out, ":{number}:{}", excerpt.column + 1)?;
    }
    write!(out, "\n{:margin$} |", "")?;
    write!(out, "\n{number:>margin$} | {line}")?;
    write!(out, "\n{:margin$} | {padding}{}", "", mark.repeat(width))
}

/// The shown part of a line, and the position of the marked text in it, in characters.
struct ClippedLine<'a> {
    line: Cow<'a, str>,
    column: usize,
    width: usize,
}

/// Lines longer than this, in characters, are cut to the surroundings of the marked text.
const LONGEST_LINE: usize = 200;
const AROUND: usize = 60;

fn clip<'a>(excerpt: &Excerpt<'a>) -> ClippedLine<'a> {
    let Excerpt { line, column, width, .. } = *excerpt;
    if line.chars().nth(LONGEST_LINE).is_none() {
        return ClippedLine { line: Cow::Borrowed(line), column, width };
    }
    let width = width.min(LONGEST_LINE - 2 * AROUND);
    let begin = column.saturating_sub(AROUND);
    let kept: String = line.chars().skip(begin).take(column - begin + width + AROUND).collect();
    let [before, after] = [begin > 0, line.chars().nth(column + width + AROUND).is_some()]
        .map(|cut| if cut { "..." } else { "" });
    ClippedLine {
        line: Cow::Owned(format!("{before}{kept}{after}")),
        column: column - begin + before.len(),
        width,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str, column: usize, width: usize) -> String {
        let excerpts = [Excerpt { name: "a.toml", line, number: Some(7), column, width }];
        Error::rendered(&Problem::new("no"), None, &excerpts)
    }

    #[test]
    fn long_lines_are_cut_around_the_marked_text() {
        let short = of("key = 3", 6, 1);
        assert!(short.ends_with("7 | key = 3\n  |       ^"), "{short}");
        let (before, after) = ("b".repeat(1000), "a".repeat(1000));
        let long = of(&format!("{before}XYZ{after}"), 1000, 3);
        let (b, a) = ("b".repeat(AROUND), "a".repeat(AROUND));
        assert!(
            long.contains(&format!(
                "a.toml:7:1001\n  |\n7 | ...{b}XYZ{a}...\n  |    {}^^^",
                " ".repeat(AROUND)
            ))
        );
        let endless = of(&"x".repeat(20 << 20), 0, 20 << 20);
        assert!(endless.len() < 1000 && endless.contains("...\n  | ^^^"), "{}", endless.len());
    }
}
