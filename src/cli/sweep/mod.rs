//! `sweep`: plans, trains every combination, stores and compares the results.

mod cost;
mod dry_run;
mod dump;
mod events;
mod free_memory;
mod job;
mod others;
mod part;
mod queue;
mod report;
mod signals;

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::failure::{ExitStatus, Failure};
use super::filter::Filter;
use super::framework;
use super::inputs::{InputArgs, MachineArgs};
use super::output::note;
use super::progress::Progress;
use super::table::TableArgs;
use super::target;
use super::timeout;
pub(super) use cost::training_seconds;
use events::Events;
use execute::DumpContents;
pub(super) use job::{Job, TIME_LIMIT};
pub(super) use part::Part;
use plan::{Plan, Purpose};
pub(super) use queue::{all as all_jobs, distinct, part_numbers};
use results::{Dumps, Row, Status, Store};
use signals::Interrupt;
pub(super) use signals::Signals;
use spec::Repeats;
pub(super) use timeout::parse as duration;

/// Train every combination, each in a process of its own, and compare them
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    inputs: InputArgs,
    /// Results folder
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    table: TableArgs,
    /// Execute only one of several parts of equal estimated time: 2/6 is the second of six; `auto`, or `auto/6`, is the part of
    /// this task in a scheduler's array
    #[arg(long, value_name = "I/N", conflicts_with_all = ["fresh", "dump", "save"])]
    only: Option<Part>,
    /// Repeats per run [default: the experiment's `measure.repeats`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeats: Option<u32>,
    /// Ignore earlier results and measure again
    #[arg(long)]
    fresh: bool,
    /// Print the runs without executing them
    #[arg(long)]
    dry_run: bool,
    /// Print events for programs instead of tables: one JSON object per line
    #[arg(long, conflicts_with_all = ["dry_run", "dump", "save", "format", "ladder", "by", "sort", "columns"])]
    json: bool,
    /// Time limit of a run, such as 90s or 10m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    /// How long a rank waits for the others before the run fails
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "120s")]
    stall: Duration,
    /// Train every run once more and write its initial and final parameters, batches and gradients to DIR, for
    /// tests/reference/pytorch.py to repeat
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    /// Train every run once more and write its final parameters to DIR as a Hugging Face checkpoint; with LoRA, its
    /// factors as a PEFT adapter
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Only to explain why there is none
    #[arg(long, hide = true)]
    target: Option<PathBuf>,
}

impl Args {
    fn events(&self) -> Events {
        Events { requested: self.json }
    }

    /// Whether standard output is for programs.
    fn is_for_programs(&self) -> bool {
        self.json || self.table.is_for_programs()
    }
}

/// An experiment being swept: its plan and the store of its results.
struct Sweep {
    plan: Plan,
    store: Store,
    /// The random id that its rows share.
    name: String,
    /// Whether `--set` changes the experiment.
    changed: bool,
    /// Rows of earlier tables whose results are gone.
    without_result: Vec<Row>,
    /// When its tables were last written.
    rebuilt: Option<Rebuilt>,
}

/// When tables were written, and how long that took.
#[derive(Clone, Copy)]
struct Rebuilt {
    at: Instant,
    took: Duration,
}

impl Rebuilt {
    /// Whether to write them again: at once, unless it would take more than a small share of the time.
    fn is_old(self) -> bool {
        const QUICK: Duration = Duration::from_secs(1);
        const SHARE: u32 = 20;
        self.took < QUICK || self.at.elapsed() > self.took * SHARE
    }
}

/// The error of `--target`: a sweep trains on this machine.
fn no_target(written: &Path) -> Failure {
    let name = written.display();
    let old = target::find(written).ok().filter(|described| described.target.is_too_old());
    let old = old.map(|described| format!(", and {}", framework::too_old(&described.target)));
    Failure::input(format!(
        "a sweep trains on this machine, not on `{name}`{}\n = help: `runner plan FILES... --target {name}` predicts its \
         memory",
        old.unwrap_or_default()
    ))
}

/// Trains the runs of one experiment, and prints their table.
pub(super) fn train(
    file: &Path,
    out: &Path,
    machine: MachineArgs,
    repeats: u32,
) -> Result<ExitStatus, Failure> {
    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }
    let words = ["sweep".as_ref(), file.as_os_str(), "--out".as_ref(), out.as_os_str()];
    let Command { mut args } = clap::Parser::try_parse_from(words).map_err(Failure::machine)?;
    args.inputs.set_machine(machine);
    args.repeats = Some(repeats);
    run(args, None)
}

pub(super) fn run(mut args: Args, signals: Option<io::Result<Signals>>) -> Result<ExitStatus, Failure> {
    let signals = signals.unwrap_or_else(Signals::watch).map_err(Failure::machine)?;
    if let Some(target) = &args.target {
        return Err(no_target(target));
    }
    let mut inputs = args.inputs.read(Purpose::Train, &args.out, None, |point| args.filter.names(point))?;
    args.filter.resolve(&inputs.plans)?;
    report::check(&args, &inputs.plans)?;
    if let Some(repeats) = args.repeats {
        inputs.plans.iter_mut().for_each(|plan| plan.repeats = Repeats::Times(repeats as usize));
    }
    if args.only.is_some() && inputs.plans.iter().any(|plan| matches!(plan.repeats, Repeats::Until(_))) {
        return Err(Failure::input(
            "--only needs a fixed number of repeats, not `measure.repeats = { until = ... }`: add --repeats N",
        ));
    }
    super::messages::devices(&inputs, args.is_for_programs());
    if args.dry_run {
        return dry_run::show(&args, inputs.plans);
    }
    let mut sweeps = open_stores(&args, inputs.plans, &random_name())?;
    let wanted = [(&args.dump, DumpContents::Tensors), (&args.save, DumpContents::Checkpoint)];
    let wanted = wanted.into_iter().filter_map(|(folder, contents)| Some((folder.as_deref()?, contents)));
    let open = |(folder, contents): (&Path, DumpContents)| Dumps::open(folder, contents);
    let dumps: Vec<Dumps> = wanted.map(open).collect::<Result<_, _>>().map_err(Failure::input)?;
    check_dumps(&args, &sweeps, &dumps)?;
    let told = tell_doubts(&sweeps, &dumps, BTreeSet::new());
    inputs.data.keep()?;
    if args.fresh {
        forget(&args, &mut sweeps)?;
    }
    let mut tables = Vec::new();
    for sweep in &mut sweeps {
        if !sweep.changed {
            sweep.store.expect(&sweep.plan).map_err(Failure::input)?;
        }
        // Find unreadable results and an unwritable table before anything is trained.
        tables.push(report::rebuild(sweep).map_err(Failure::input)?);
    }
    args.events().sweep(&sweeps)?;
    let interrupt = signals.finish_gracefully();
    let (mut ended, mut before, mut all) = (Vec::new(), 0, 0);
    for stage in 0.. {
        let Some(queue) = queue::fill(&mut sweeps, &args.filter, args.only, stage)? else { break };
        before += queue.done;
        all += queue.done + queue.jobs.len();
        ended.extend(work(&args, &mut sweeps, &queue.jobs, before + ended.len(), interrupt)?);
        if interrupt.is_set() {
            break;
        }
    }
    for (sweep, table) in sweeps.iter_mut().zip(tables) {
        sweep.store.clean();
        let table =
            if ended.is_empty() { table } else { report::rebuild(sweep).map_err(Failure::machine)? };
        report::comparison(sweep, &args, table)?;
    }
    // Of its own, now.
    let mut told = tell_doubts(&sweeps, &[], told);
    let (done, mut status) = report::outcome(&ended, before, all);
    args.events().end(done, all, status.code())?;
    for mut dumps in dumps {
        if status == ExitStatus::Interrupted {
            break;
        }
        status = status.and(dump::dump_all(&args, &mut sweeps, &dumps, interrupt.flag())?);
        dumps.clean();
        told = tell_doubts(&[], &[dumps], told);
    }
    Ok(status)
}

/// Fails if both options name one folder, or if no run has anything to save.
fn check_dumps(args: &Args, sweeps: &[Sweep], dumps: &[Dumps]) -> Result<(), Failure> {
    let canonical = |dumps: &Dumps| fs::canonicalize(dumps.place("")).ok();
    if let [one, other] = dumps
        && canonical(one) == canonical(other)
    {
        return Err(Failure::input("--dump and --save name the same folder: give each its own"));
    }
    for dumps in dumps {
        let configs = sweeps.iter().flat_map(|Sweep { plan, .. }| {
            queue::distinct(&plan.runs, &args.filter).filter_map(|run| plan.runs[run].config.as_ref().ok())
        });
        let reasons: Vec<Option<&str>> = configs.map(|config| dumps.contents().missing(config)).collect();
        if let Some(Some(reason)) = reasons.first()
            && reasons.iter().all(Option::is_some)
        {
            let option = dumps.contents().option();
            return Err(Failure::input(format!("{option} has nothing to write: {reason}")));
        }
    }
    Ok(())
}

/// Executes the jobs one after the other. Each result is on the disk before the next job starts. The table is written after each
/// job, or less often if that takes long.
fn work(
    args: &Args,
    sweeps: &mut [Sweep],
    jobs: &[Job],
    done: usize,
    interrupt: &Interrupt,
) -> Result<Vec<Status>, Failure> {
    let mut progress = Progress::new(done, jobs.len());
    let mut ended = Vec::new();
    for job in jobs {
        if interrupt.is_set() {
            break;
        }
        let sweep = &mut sweeps[job.sweep];
        let status = job::execute(sweep, job, args, interrupt, &mut progress)?;
        if sweep.rebuilt.is_none_or(Rebuilt::is_old) {
            let table = report::rebuild(sweep).map_err(Failure::machine)?;
            progress.table(|width| table.so_far(sweep, args, width));
        }
        ended.push(status);
    }
    progress.finish();
    Ok(ended)
}

/// A random id, different for each process on every machine.
fn random_name() -> String {
    // `RandomState` has random keys.
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// Checks that all results can be written before anything is trained.
fn open_stores(args: &Args, plans: Vec<Plan>, name: &str) -> Result<Vec<Sweep>, Failure> {
    let open = |plan: Plan| {
        let store = Store::open(&args.out, &plan.experiment).map_err(Failure::input)?;
        let without_result = others::without_result(&store, &plan).map_err(Failure::input)?;
        Ok(Sweep {
            plan,
            store,
            name: name.to_owned(),
            changed: args.inputs.changes(),
            without_result,
            rebuilt: None,
        })
    };
    plans.into_iter().map(open).collect()
}

/// Reports possible leftovers of other sweeps that were not removed, each once. Returns the reported ones.
fn tell_doubts(sweeps: &[Sweep], dumps: &[Dumps], mut told: BTreeSet<String>) -> BTreeSet<String> {
    let of_stores = sweeps.iter().flat_map(|sweep| sweep.store.in_doubt());
    let of_dumps = dumps.iter().flat_map(Dumps::in_doubt);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_take_long_are_written_seldom() {
        let is_old = |age: u64, took: u64| {
            let at = Instant::now() - Duration::from_secs(age);
            Rebuilt { at, took: Duration::from_millis(took) }.is_old()
        };
        assert!(is_old(0, 10), "small tables are written after every run");
        assert!(!is_old(30, 2000) && is_old(50, 2000), "at most a twentieth of the time");
    }
}
