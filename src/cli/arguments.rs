//! Parsing of the command line: help, version and errors.

use std::ffi::OsString;

use clap::Parser;

use super::Cli;
use super::failure::{ExitStatus, Failure};
use super::output::{note, note_raw, show_raw, visible};
use super::terminal;
use base::brief;

/// Parses the command line.
///
/// # Errors
/// The exit status, after help or an error was printed.
pub(super) fn read() -> Result<Cli, ExitStatus> {
    let mut arguments = std::env::args_os().skip(1);
    if let Some(failure) = arguments.find_map(|argument| unexpanded(&argument.to_string_lossy())) {
        return Err(failure.report());
    }
    Cli::try_parse().map_err(|error| tell(&error).unwrap_or_else(Failure::report))
}

/// Prints the error or the requested help. Messages quote arguments as given, so the arguments are parsed again with control
/// characters made visible, which gives the same message with its colours.
fn tell(error: &clap::Error) -> Result<ExitStatus, Failure> {
    match Cli::try_parse_from(std::env::args_os().map(shown)) {
        Err(shown) if shown.kind() == error.kind() => {
            let text = shown.render();
            match shown.use_stderr() {
                true if terminal::errors_have_colours() => note_raw(&text.ansi().to_string()),
                true => note_raw(&text.to_string()),
                false if terminal::has_colours() => show_raw(&text.ansi().to_string())?,
                false => show_raw(&text.to_string())?,
            }
        }
        _ => note(brief::lines(error.render().to_string().trim_end()).as_ref()),
    }
    Ok(if error.use_stderr() { ExitStatus::WrongInput } else { ExitStatus::Complete })
}

/// The error of a path that the shell would have expanded without quotes or `=`: a folder named `~` is never meant.
fn unexpanded(argument: &str) -> Option<Failure> {
    let value = match argument.strip_prefix("--") {
        Some(option) => option.split_once('=')?.1,
        None => argument,
    };
    let is_home = value == "~" || value.starts_with("~/");
    let variable = value.strip_prefix('$').map(|rest| rest.trim_start_matches('{'));
    let variable = variable.and_then(|rest| rest.split(|c: char| !c.is_ascii_uppercase() && c != '_').next());
    let help = match variable {
        _ if is_home => "write it without quotes and after a space, as in --out ~/results",
        Some(name) if !name.is_empty() => "write it without quotes, or in double ones",
        _ => return None,
    };
    Some(Failure::input(format!("the shell did not expand `{value}`\n = help: {help}")))
}

/// What a message can bear of an argument.
fn shown(argument: OsString) -> OsString {
    let argument = argument.to_string_lossy();
    OsString::from(visible(&brief::line(&argument)).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_the_shell_left_alone_are_refused() {
        for argument in ["~", "~/a.toml", "--out=~/r", "$HOME/a.toml", "--target=${DIR}/a.toml", "$SCRATCH"] {
            assert!(unexpanded(argument).is_some(), "{argument}");
        }
        for argument in ["a~", "./~/a", "--out=r", "model.hf.config=~/x", "--", "$a", "~x", "$1", "--set"] {
            assert!(unexpanded(argument).is_none(), "{argument}");
        }
    }
}
