//! `columns`: what stands in a table of results.

use super::failure::{ExitStatus, Failure};
use super::{output, terminal};
use compare::wrap;
use spec::nearest;

/// Prints what the columns of results/*.csv and of result.json mean, in their order
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// These columns alone
    names: Vec<String>,
}

/// Between a column's name and its text.
const GAP: usize = 2;

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let all: Vec<(&str, String)> = results::documented().collect();
    let known: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let check = |name: &String| match known.contains(&name.as_str()) {
        true => Ok(()),
        false => {
            let near = nearest(name, &known).map(|near| format!("; did you mean `{near}`?"));
            Err(Failure::input(format!("no column is called `{name}`{}", near.unwrap_or_default())))
        }
    };
    Failure::collect(args.names.iter().map(check))?;
    let asked = |name: &str| args.names.is_empty() || args.names.iter().any(|asked| asked == name);
    let width = terminal::width().unwrap_or(compare::WIDTH).max(80);
    let shown: Vec<_> = all.into_iter().filter(|(name, _)| asked(name)).collect();
    let margin = GAP + shown.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, what) in shown {
        for (number, line) in wrap(&what, width - margin).lines().enumerate() {
            let name = if number == 0 { name } else { "" };
            text.push_str(&format!("{name:margin$}{}\n", line.trim_start()));
        }
    }
    if args.names.is_empty() {
        text.push_str(
            "\nEach swept key follows in a column of its own, called `sweep.KEY` where another has its name.\n\
             An empty cell is not known, or was not reached.\n",
        );
    }
    output::print(&text)?;
    Ok(ExitStatus::Complete)
}
