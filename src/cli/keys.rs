//! `keys`: the reference of the experiment file's keys.

use super::failure::{ExitStatus, Failure};
use super::reference::{self, Format};
use super::{output, terminal};
use compare::wrap;
use spec::{KeyReference, key_reference, nearest};

/// Describe the keys of experiment files
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Keys or tables, such as accumulate, train.optimizer.adamw or offload; without names, all
    names: Vec<String>,
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const INDENT: usize = 4;

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let all = key_reference();
    Failure::collect(args.names.iter().map(|name| check(name, &all)))?;
    let is_shown =
        |key: &&KeyReference| args.names.is_empty() || args.names.iter().any(|name| matches(key, name));
    let shown = all.iter().filter(is_shown);
    output::print(&match args.format {
        Format::Text => text(shown),
        Format::Markdown => markdown(shown),
    })?;
    Ok(ExitStatus::Complete)
}

/// Fails if no key has this name.
fn check(name: &str, all: &[KeyReference]) -> Result<(), Failure> {
    if all.iter().any(|key| matches(key, name)) {
        return Ok(());
    }
    let segments: Vec<&str> = all.iter().flat_map(|key| key.path.split('.')).collect();
    let help = match nearest(name, &segments) {
        Some(near) => format!("; did you mean `{near}`?"),
        None => "; `runner keys` lists all keys".to_owned(),
    };
    Err(Failure::input(format!("unknown key or table `{name}`{help}")))
}

/// Whether the key is called so, or is in a table called so: consecutive segments of its path.
fn matches(key: &KeyReference, name: &str) -> bool {
    format!(".{}.", key.path).contains(&format!(".{name}."))
}

fn text<'a>(shown: impl Iterator<Item = &'a KeyReference>) -> String {
    let width = terminal::text_width();
    let indented = |text: &str| {
        let indent = " ".repeat(INDENT);
        wrap(text, width - INDENT)
            .lines()
            .map(|line| format!("{indent}{}\n", line.trim_start()))
            .collect::<String>()
    };
    let entry = |key: &KeyReference| {
        let lines: String = key.lines().iter().map(|line| indented(line)).collect();
        format!("{}\n{lines}", key.path)
    };
    shown.map(entry).collect::<Vec<_>>().join("\n")
}

fn markdown<'a>(shown: impl Iterator<Item = &'a KeyReference>) -> String {
    let mut out = format!(
        "# Keys\n\n{}\n\nThe keys of experiment files. `runner keys [NAME]` prints them. [Experiment files](experiment-file.md) \
         describes `[defaults]`, `[strategies]` and sweeps.\n",
        reference::GENERATED.replace("COMMAND", "keys")
    );
    let mut tables: Vec<(&str, String)> = Vec::new();
    for key in shown {
        let (table, name) = key.path.rsplit_once('.').unwrap_or(("", &key.path));
        let [doc, accepts] = [&key.doc, &key.accepts].map(|text| reference::cell(text));
        let row =
            format!("| `{name}` | {accepts} | {} | {doc} |\n", key.default.as_deref().unwrap_or("required"));
        match tables.iter_mut().find(|(other, _)| *other == table) {
            Some((_, rows)) => rows.push_str(&row),
            None => tables.push((table, row)),
        }
    }
    for (table, rows) in tables {
        let heading = if table.is_empty() { "The top of the file".to_owned() } else { format!("`{table}`") };
        out.push_str(&format!(
            "\n## {heading}\n\n| key | accepts | default | effect |\n|---|---|---|---|\n{rows}"
        ));
    }
    out
}
