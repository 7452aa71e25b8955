//! The width and colours of standard output.

use std::io::IsTerminal;

use console::{Style, Term};

use compare::{LEAST_WIDTH, Tone, WIDTH};

/// The longest readable line.
const WIDEST: usize = 240;

/// The terminal's width in characters. `None` if standard output is not a terminal.
pub(super) fn width() -> Option<usize> {
    width_of(&Term::stdout())
}

/// The width of text on standard output: the terminal's, or 100 columns in files.
pub(super) fn text_width() -> usize {
    width().map_or(WIDTH, |width| width.max(LEAST_WIDTH))
}

/// The width of text on standard error. `None` if that is not a terminal.
pub(super) fn error_width() -> Option<usize> {
    width_of(&Term::stderr()).map(|width| width.max(LEAST_WIDTH))
}

/// The lines of the terminal of standard error; 0 if it is none.
pub(super) fn error_height() -> usize {
    Term::stderr().size_checked().map_or(0, |(lines, _)| usize::from(lines))
}

fn width_of(term: &Term) -> Option<usize> {
    let (_, columns) = term.is_term().then(|| term.size_checked())??;
    Some(usize::from(columns).min(WIDEST)).filter(|columns| *columns > 0)
}

/// Whether standard error is a terminal with colours and `NO_COLOR` is unset.
pub(super) fn errors_have_colours() -> bool {
    std::io::stderr().is_terminal() && !is_off() && console::colors_enabled_stderr()
}

fn is_off() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Whether standard output is a terminal with colours and `NO_COLOR` is unset.
pub(super) fn has_colours() -> bool {
    std::io::stdout().is_terminal() && !is_off() && console::colors_enabled()
}

pub(super) fn coloured(tone: Tone, line: &str) -> String {
    let style = Style::new().force_styling(true);
    let style = match tone {
        Tone::Plain => return line.to_owned(),
        Tone::Title => style.bold(),
        Tone::Legend => style.dim(),
        Tone::Good => style.green(),
        Tone::Doubtful => style.yellow(),
        Tone::Bad => style.red(),
    };
    style.apply_to(line).to_string()
}
