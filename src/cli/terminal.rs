//! The width and colours of standard output.

use std::io::IsTerminal;

use console::Style;

use compare::Tone;

/// The longest readable line.
const WIDEST: usize = 240;

/// The terminal's width in characters. `None` if standard output is not a terminal.
pub(super) fn width() -> Option<usize> {
    let out = console::Term::stdout();
    let (_, columns) = out.is_term().then(|| out.size_checked())??;
    Some(usize::from(columns).min(WIDEST)).filter(|columns| *columns > 0)
}

/// Whether standard output is a terminal with colours and `NO_COLOR` is unset.
pub(super) fn has_colours() -> bool {
    let is_off = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !is_off && console::colors_enabled()
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
