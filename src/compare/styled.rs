//! Lines with tones, which a terminal shows as colours.

use std::fmt;

/// The kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    /// The title of a table or group.
    Title,
    /// Explains marks and columns.
    Legend,
    /// A row on the Pareto front.
    Good,
    /// A noisy or disturbed row, or one with a key without effect.
    Doubtful,
    /// A row without a result.
    Bad,
}

/// Lines without their line ends.
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
