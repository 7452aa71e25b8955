//! What standard output can show.

use std::io::IsTerminal;

use console::Style;

use compare::Tone;

/// Lines that are longer are hard to read on any screen.
const WIDEST: usize = 240;

/// The columns of the terminal. `None` where standard output is none.
pub(super) fn width() -> Option<usize> {
    let out = console::Term::stdout();
    let (_, columns) = out.is_term().then(|| out.size_checked())??;
    Some(usize::from(columns).min(WIDEST)).filter(|columns| *columns > 0)
}

/// Whether it is a terminal with colours, which nobody has switched off by `NO_COLOR`.
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
