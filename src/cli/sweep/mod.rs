//! `sweep`: plan, train every combination, write and compare the results.

mod dry_run;
mod dump;
mod job;
mod queue;
mod report;
mod share;
mod timeout;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::failure::{ExitStatus, Failure};
use super::filter::Filter;
use super::inputs::InputArgs;
use super::output::note;
use super::progress::Progress;
use super::table::TableArgs;
use plan::{Plan, Purpose};
use queue::Job;
use results::{Dumps, Status, Store};
use share::Share;
use spec::Repeats;

/// Trains every combination, each in a process of its own, and compares them
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    inputs: InputArgs,
    /// The folder for results
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    table: TableArgs,
    /// Run only this part of the work, evenly shared by so many tasks: 2/6, or `slurm` for that of a task in an array
    #[arg(long, value_name = "I/N", conflicts_with_all = ["fresh", "dump"])]
    only: Option<Share>,
    /// Measure every run this often
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeats: Option<u32>,
    /// Forget earlier results and measure again
    #[arg(long)]
    fresh: bool,
    /// Show what would be run
    #[arg(long)]
    dry_run: bool,
    /// End a run that takes longer, such as 90s or 10m
    #[arg(long, value_name = "DURATION", value_parser = timeout::parse)]
    timeout: Option<Duration>,
    /// Train every run once more and write what it starts from, its batches, gradients and results to DIR, for
    /// tests/reference/pytorch.py to repeat
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
}

/// An experiment on its way: what is to be run, and where the results go.
struct Sweep {
    plan: Plan,
    store: Store,
    /// What tells the rows that it measures from those of other sweeps.
    name: String,
    /// Whether the command line changes the experiment.
    changed: bool,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let mut inputs = args.inputs.read(Purpose::Train, &args.out, None)?;
    args.filter.check(&inputs.plans)?;
    report::check(&args.table, &inputs.plans)?;
    if let Some(repeats) = args.repeats {
        inputs.plans.iter_mut().for_each(|plan| plan.repeats = Repeats::Times(repeats as usize));
    }
    if args.only.is_some() && inputs.plans.iter().any(|plan| matches!(plan.repeats, Repeats::Until(_))) {
        return Err(Failure::input(
            "--only shares a number of repeats that is known, not `measure.repeats = { until = ... }`: add --repeats N",
        ));
    }
    super::report::devices(&inputs, args.table.is_for_programs());
    if args.dry_run {
        return dry_run::show(&args, inputs.plans);
    }
    let mut sweeps = open_stores(&args, inputs.plans, &random_name())?;
    let dumps = args.dump.as_deref().map(Dumps::open).transpose().map_err(Failure::input)?;
    let told = tell_doubts(&sweeps, dumps.as_ref(), BTreeSet::new());
    inputs.data.keep()?;
    if args.fresh {
        forget(&args, &mut sweeps)?;
    }
    for sweep in &mut sweeps {
        // Results that cannot be read and a table that cannot be written are found before anything is trained.
        report::rebuild(sweep).map_err(Failure::input)?;
    }
    let interrupted = watch_signals().map_err(Failure::machine)?;
    let (mut ended, mut before, mut all) = (Vec::new(), 0, 0);
    for stage in 0.. {
        let Some(queue) = queue::fill(&mut sweeps, &args.filter, args.only, stage)? else { break };
        before += queue.done;
        all += queue.done + queue.jobs.len();
        ended.extend(work(&args, &mut sweeps, &queue.jobs, before + ended.len(), &interrupted)?);
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
    }
    for sweep in &mut sweeps {
        sweep.store.clean();
        report::comparison(sweep, &args.filter, &args.table)?;
    }
    // Of its own, now.
    tell_doubts(&sweeps, None, told);
    let mut status = report::outcome(&ended, before, all);
    if let Some(dumps) = dumps.filter(|_| status != ExitStatus::Interrupted) {
        status = status.and(dump::dump_all(&args, &mut sweeps, &dumps, &interrupted)?);
    }
    Ok(status)
}

/// Runs the jobs one after the other. What has finished is on the disk, and in the table, before the next begins.
fn work(
    args: &Args,
    sweeps: &mut [Sweep],
    jobs: &[Job],
    done: usize,
    interrupted: &AtomicBool,
) -> Result<Vec<Status>, Failure> {
    let mut progress = Progress::new(done, jobs.len());
    let mut ended = Vec::new();
    for job in jobs {
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
        let sweep = &mut sweeps[job.sweep];
        let status = job::execute(sweep, job, args, interrupted, &mut progress)?;
        report::rebuild(sweep).map_err(Failure::machine)?;
        ended.push(status);
    }
    progress.finish();
    Ok(ended)
}

/// Different for each process, on whichever machine.
fn random_name() -> String {
    // Its keys are random.
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// Proves that all results can be written, before anything is trained for them.
fn open_stores(args: &Args, plans: Vec<Plan>, name: &str) -> Result<Vec<Sweep>, Failure> {
    let open = |plan: Plan| {
        let store = Store::open(&args.out, &plan.experiment).map_err(Failure::input)?;
        Ok(Sweep { plan, store, name: name.to_owned(), changed: args.inputs.changes() })
    };
    plans.into_iter().map(open).collect()
}

/// Says what may be left behind by sweeps and was not removed, each once. Returns what was told.
fn tell_doubts(sweeps: &[Sweep], dumps: Option<&Dumps>, mut told: BTreeSet<String>) -> BTreeSet<String> {
    let of_stores = sweeps.iter().flat_map(|sweep| sweep.store.in_doubt());
    let of_dumps = dumps.into_iter().flat_map(Dumps::in_doubt);
    let doubts: BTreeSet<String> = of_stores.chain(of_dumps).map(ToString::to_string).collect();
    doubts.difference(&told).for_each(|doubt| note(doubt));
    told.extend(doubts);
    told
}

fn forget(args: &Args, sweeps: &mut [Sweep]) -> Result<(), Failure> {
    for Sweep { plan, store, .. } in sweeps {
        for run in plan.runs.iter().filter(|run| queue::is_wanted(run, &args.filter)) {
            store.forget(&run.id).map_err(Failure::machine)?;
        }
    }
    Ok(())
}

/// The first Ctrl-C or SIGTERM raises the flag; the next, which finds it raised, ends the program at once.
fn watch_signals() -> std::io::Result<Arc<AtomicBool>> {
    const INTERRUPTED: i32 = 130;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Actions run in the order they are registered.
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&interrupted))?;
        flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}
