//! Lines for a terminal, with what each is, so that it may show them in colours.

use std::fmt;

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    /// Of a table or of a group.
    Title,
    /// Explains others.
    Legend,
    /// A row worth considering.
    Good,
    /// A row that is not to be trusted, or does nothing.
    Doubtful,
    /// A row without a result.
    Bad,
}

/// Lines, each ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Styled {
    pub lines: Vec<(Tone, String)>,
}

impl Styled {
    pub(super) fn push(&mut self, tone: Tone, text: &str) {
        let text = text.strip_suffix('\n').unwrap_or(text);
        self.lines.extend(text.split('\n').map(|line| (tone, line.to_owned())));
    }

    pub(super) fn blank(&mut self) {
        self.lines.push((Tone::Plain, String::new()));
    }
}

impl From<String> for Styled {
    fn from(text: String) -> Styled {
        let mut styled = Styled::default();
        styled.push(Tone::Plain, &text);
        styled
    }
}

impl fmt::Display for Styled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|(_, line)| writeln!(f, "{line}"))
    }
}
