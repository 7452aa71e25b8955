//! `manual`: pages for `man`.

use std::path::PathBuf;

use clap::{Command, CommandFactory};

use super::Cli;
use super::failure::{ExitStatus, Failure};
use super::output::say;

/// Write a man page for each command
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Output folder, such as ~/.local/share/man/man1
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let cannot =
        |error: std::io::Error| Failure::input(format!("cannot write to {}: {error}", args.folder.display()));
    std::fs::create_dir_all(&args.folder).map_err(cannot)?;
    clap_mangen::generate_to(visible_commands(), &args.folder).map_err(cannot)?;
    say(&format!("wrote the pages of runner to {}", args.folder.display()));
    Ok(ExitStatus::Complete)
}

/// The program's commands without the hidden ones.
pub(super) fn visible_commands() -> Command {
    let all = Cli::command();
    let visible: Vec<Command> =
        all.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    let options: Vec<clap::Arg> = all.get_arguments().cloned().collect();
    let about = all.get_about().cloned().unwrap_or_default();
    Command::new("runner").version(env!("CARGO_PKG_VERSION")).about(about).args(options).subcommands(visible)
}
