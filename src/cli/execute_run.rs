//! `execute-run`, a hidden command: the child process of a sweep that executes one run.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::failure::{ExitStatus, Failure};
use data::DigestCache;
use execute::{DumpContents, Message, RankPlace, Reporter};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The private folder that holds `run.toml`, `target.toml` and `data.digest`
    #[arg(long, value_name = "DIR")]
    folder: PathBuf,
    /// Dump the run's tensors instead of measuring it
    #[arg(long)]
    dump: bool,
    /// Save the run's final parameters instead of measuring it
    #[arg(long)]
    save: bool,
    /// Cache of the digests of large files
    #[arg(long, value_name = "FILE")]
    digests: Option<PathBuf>,
    /// Do not measure the device's rates: another repeat did
    #[arg(long)]
    without_rates: bool,
    /// Index of this process among the ranks of the run
    #[arg(long, value_name = "N", requires = "group")]
    rank: Option<usize>,
    /// File of the memory that the ranks share
    #[arg(long, value_name = "FILE", requires = "rank")]
    group: Option<PathBuf>,
    /// Milliseconds that a rank waits for the others
    #[arg(long, value_name = "MS", default_value_t = 0)]
    stall: u64,
    /// Index of the card
    #[arg(long, value_name = "N", default_value_t = 0)]
    ordinal: usize,
}

impl Args {
    /// The place among the ranks, if there are several.
    fn place(&self) -> Option<RankPlace<'_>> {
        let patience = Duration::from_millis(self.stall);
        Some(RankPlace { index: self.rank?, memory: self.group.as_deref()?, patience })
    }
}

pub(super) fn run(args: Args, began: Instant) -> Result<ExitStatus, Failure> {
    execute::end_with_parent().map_err(Failure::machine)?;
    let mut reporter = Reporter::to_parent();
    let digests = &mut args.digests.as_deref().map(DigestCache::read).unwrap_or_default();
    let contents = match (args.dump, args.save) {
        (true, _) => Some(DumpContents::Tensors),
        (false, true) => Some(DumpContents::Checkpoint),
        (false, false) => None,
    };
    let outcome = match contents {
        Some(contents) => {
            execute::dump(&args.folder, digests, &mut reporter, args.ordinal, args.place(), contents)
        }
        None => {
            let rates = !args.without_rates;
            execute::run(&args.folder, digests, &mut reporter, began, args.ordinal, rates, args.place())
        }
    };
    let outcome = outcome.map_err(Failure::machine)?;
    reporter.send(&Message::Finished(Box::new(outcome)));
    Ok(ExitStatus::Complete)
}
