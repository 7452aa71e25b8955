//! `completions`: shell completion scripts.

use super::failure::{ExitStatus, Failure};
use super::{manual, output};

/// Print a shell's completion script
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut manual::visible_commands(), "runner", &mut script);
    // Its own, with whatever signs the shell takes.
    output::print_raw(&String::from_utf8_lossy(&script))?;
    Ok(ExitStatus::Complete)
}
