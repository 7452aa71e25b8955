//! What the generated reference pages of `docs/` share.

/// How `columns` and `keys` print.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(super) enum Format {
    /// For a terminal
    #[default]
    Text,
    /// The page in docs/
    Markdown,
}

/// The first line of a generated page.
pub(super) const GENERATED: &str = "<!-- Generated: `runner COMMAND --format markdown`. A test compares. -->";

/// Text as a cell of a markdown table.
pub(super) fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}
