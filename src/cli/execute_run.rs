//! `execute-run`: the child of a sweep, which executes one run. Not for people.

use std::path::PathBuf;
use std::time::Instant;

use super::failure::{ExitStatus, Failure};
use data::DigestCache;
use execute::{Message, Reporter};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The private folder with `run.toml`, `target.toml` and `data.digest`
    #[arg(long, value_name = "DIR")]
    folder: PathBuf,
    /// Write down what repeating the run takes, instead of measuring it
    #[arg(long)]
    dump: bool,
    /// What is known of files that are too large to be read again
    #[arg(long, value_name = "FILE")]
    digests: Option<PathBuf>,
    /// Leave out how fast the device is at its best, which another repeat has measured
    #[arg(long)]
    without_rates: bool,
    /// Which of several cards
    #[arg(long, value_name = "N", default_value_t = 0)]
    ordinal: usize,
}

pub(super) fn run(args: Args, began: Instant) -> Result<ExitStatus, Failure> {
    execute::end_with_parent().map_err(Failure::machine)?;
    let mut reporter = Reporter::to_parent();
    let digests = &mut args.digests.as_deref().map(DigestCache::read).unwrap_or_default();
    let outcome = if args.dump {
        execute::dump(&args.folder, digests, &mut reporter, args.ordinal)
    } else {
        execute::run(&args.folder, digests, &mut reporter, began, args.ordinal, !args.without_rates)
    };
    let outcome = outcome.map_err(Failure::machine)?;
    reporter.send(&Message::Finished(Box::new(outcome)));
    Ok(ExitStatus::Complete)
}
