//! `columns`: describes the columns of a results table.

use super::failure::{ExitStatus, Failure};
use super::reference::{self, Format};
use super::{output, table, terminal};
use compare::wrap;
use spec::nearest;

/// Describe the columns of results/*.csv and result.json, in their order
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Columns to print; without names, all
    names: Vec<String>,
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Between a column's name and its text.
const GAP: usize = 2;

const AFTER: &str = "One column per swept key follows, named after the key, or `sweep.KEY` where another column \
    has that name. An empty cell means that the figure is unknown or was not reached.";

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let all: Vec<(&str, String)> = results::documented().collect();
    let known: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let check = |name: &String| match known.contains(&name.as_str()) {
        true => Ok(()),
        false => {
            let near = table::in_files(name).map(|names| names.join("` or `"));
            let near = near.or_else(|| nearest(name, &known).map(str::to_owned));
            let near = near.map(|near| format!("; did you mean `{near}`?"));
            let help = near.unwrap_or_else(|| "; `runner columns` lists all columns".to_owned());
            Err(Failure::input(format!("unknown column `{name}`{help}")))
        }
    };
    Failure::collect(args.names.iter().map(check))?;
    let asked = |name: &str| args.names.is_empty() || args.names.iter().any(|asked| asked == name);
    let shown = all.into_iter().filter(|(name, _)| asked(name));
    let text = match args.format {
        Format::Text => text(&shown.collect::<Vec<_>>(), args.names.is_empty()),
        Format::Markdown => markdown(shown),
    };
    match args.format {
        Format::Text => output::show(&text)?,
        Format::Markdown => output::print(&text)?,
    }
    Ok(ExitStatus::Complete)
}

fn text(shown: &[(&str, String)], is_all: bool) -> String {
    let width = terminal::text_width();
    let margin = GAP + shown.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, what) in shown {
        for (number, line) in wrap(what, width - margin).lines().enumerate() {
            let name = if number == 0 { *name } else { "" };
            text.push_str(&format!("{name:margin$}{}\n", line.trim_start()));
        }
    }
    if is_all {
        text.push_str(&format!("\n{AFTER}\n"));
    }
    text
}

fn markdown<'a>(shown: impl Iterator<Item = (&'a str, String)>) -> String {
    let rows: String =
        shown.map(|(name, what)| format!("| `{name}` | {} |\n", reference::cell(&what))).collect();
    format!(
        "# Columns\n\n{}\n\nThe columns of `results/<experiment>.csv` and of `result.json`, in their order.\n\
         `runner columns` prints them.\n\n| column | meaning |\n|---|---|\n{rows}\n{AFTER}\n",
        reference::GENERATED.replace("COMMAND", "columns")
    )
}
