//! `encode-text`, a hidden command: the child process that encodes text with a tokenizer.

use super::failure::{ExitStatus, Failure};

/// Encode the text that standard input brings
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_: Args) -> Result<ExitStatus, Failure> {
    data::encode_documents().map_err(Failure::machine)?;
    Ok(ExitStatus::Complete)
}
