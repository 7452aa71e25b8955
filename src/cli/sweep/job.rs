//! Executes one repeat of one run: private folder, child process, row.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::signals::Interrupt;
use super::{Args, Sweep, report};
use crate::data_sets::DIGESTS_FILE;
use crate::failure::Failure;
use crate::progress::{self, Progress};
use device::SharedMemory;
use execute::{DATA_FILE, Ending, LOG_FILE, Measured, PRODUCTS_FILE};
use plan::{Plan, PlannedRun};
use results::{Committed, PrivateFolder, Row, Status, Store};
use spec::RunConfig;

/// The message of a run that a scheduler's signal ended.
pub(crate) const TIME_LIMIT: &str = "ended by the signal of the scheduler's time limit";

/// One repeat of one run.
pub(crate) struct Job {
    /// Its index among the sweeps.
    pub(crate) sweep: usize,
    /// Its index among the plan's runs.
    pub(crate) run: usize,
    /// From 1.
    pub(crate) repeat: usize,
}

/// Executes a job and stores its row, also if it failed.
///
/// # Errors
///
/// The result cannot be stored.
pub(super) fn execute(
    sweep: &mut Sweep,
    job: &Job,
    args: &Args,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<Status, Failure> {
    let Sweep { plan, store, name, .. } = sweep;
    let run = &plan.runs[job.run];
    let label = report::repeat_label(plan, run, job.repeat);
    let events = args.events();
    progress.begin(&label);
    events.run(plan, run, job.repeat, progress.position())?;
    if let Some(row) = store.finished(&run.id, job.repeat).map_err(Failure::machine)? {
        // Another sweep has committed it since this one began.
        progress.end(&label, &progress::outcome(&row));
        events.result(&row)?;
        return Ok(row.status);
    }
    let folder = store.begin(&run.id, job.repeat).map_err(Failure::machine)?;
    describe(&folder, plan, run, job.repeat, store)?;
    // Measuring rates takes as long as a short run: the other repeats use the first one's.
    let before = store.finished_repeats(&run.id).map_err(Failure::machine)?;
    let measures_rates = before.iter().all(|row| row.product_flops_per_s.is_none());
    let ranks = run.config.as_ref().map_or(1, RunConfig::ranks);
    let options = |rank: usize| (!measures_rates || rank > 0).then_some("--without-rates");
    let Children { commands, memory: _memory } = children(&folder, args, run, args.stall, options)?;
    let ending = execute::run_children(commands, folder.log(), args.timeout, interrupt.flag(), |message| {
        events.message(&message);
        progress.message(&message);
    });
    let log = store.repeat_folder(&run.id, job.repeat).join(LOG_FILE);
    let planned = Row { sweep: name.clone(), ..results::planned_row(plan, run, job.repeat) };
    let mut row = row(planned, ending, args.timeout, &log);
    if row.status == Status::Interrupted && interrupt.is_time_limit() {
        row.message = TIME_LIMIT.to_owned();
    }
    row.ranks = (ranks > 1).then_some(ranks);
    if store.commit(folder, &row).map_err(Failure::machine)? == Committed::Theirs {
        // Another sweep committed the same repeat first.
        row = store.finished(&run.id, job.repeat).map_err(Failure::machine)?.unwrap_or(row);
    }
    progress.end(&label, &progress::outcome(&row));
    events.result(&row)?;
    Ok(row.status)
}

/// Writes the child's inputs, with the matmul algorithms to repeat if the run has a result.
pub(super) fn describe(
    folder: &PrivateFolder,
    plan: &Plan,
    run: &PlannedRun,
    repeat: usize,
    store: &mut Store,
) -> Result<(), Failure> {
    let Ok(config) = &run.config else { return Ok(()) };
    let config = config.of_repeat(repeat);
    let target = toml::to_string(&plan.target).map_err(Failure::machine)?;
    let files = [
        ("run.toml", config.to_toml(&plan.experiment, &run.strategy)),
        ("target.toml", target),
        (DATA_FILE, format!("{}\n", run.data)),
    ];
    for (name, contents) in files {
        folder.write(name, contents.as_bytes()).map_err(Failure::machine)?;
    }
    if let Some(products) = store.file_of_first(&run.id, PRODUCTS_FILE).map_err(Failure::machine)? {
        folder.write(PRODUCTS_FILE, &products).map_err(Failure::machine)?;
    }
    Ok(())
}

/// The commands of a run's children, one for each rank.
pub(super) struct Children {
    pub(super) commands: Vec<Command>,
    /// What several ranks share. It ends with the last process that has it.
    pub(super) memory: Option<SharedMemory>,
}

/// The commands of the children: this program, on the chosen card, ranks on it and the next ones, each with its options.
/// Ranks wait at most `stall` for each other.
pub(super) fn children(
    folder: &PrivateFolder,
    args: &Args,
    run: &PlannedRun,
    stall: Duration,
    options: impl Fn(usize) -> Option<&'static str>,
) -> Result<Children, Failure> {
    let ranks = run.config.as_ref().map_or(1, RunConfig::ranks);
    let memory = (ranks > 1).then(|| SharedMemory::new(ranks)).transpose().map_err(Failure::machine)?;
    let command = |rank: usize| {
        let mut command = device::this_program()?;
        command.args(["execute-run", "--folder"]).arg(folder.path());
        command.arg("--digests").arg(args.out.join(DIGESTS_FILE));
        command.args(["--ordinal", &(args.inputs.device().ordinal() + rank).to_string()]);
        command.args(options(rank));
        if let Some(memory) = &memory {
            command.args(["--rank", &rank.to_string(), "--group"]).arg(memory.file());
            command.args(["--stall", &stall.as_millis().to_string()]);
            command.envs(device::rank_environment());
        }
        Ok(command)
    };
    let commands = (0..ranks).map(command).collect::<std::io::Result<_>>().map_err(Failure::machine)?;
    Ok(Children { commands, memory })
}

fn row(planned: Row, ending: Ending, timeout: Option<Duration>, log: &Path) -> Row {
    // The prediction is not a result of a run that did not reach its end.
    let unmeasured = Row { measured: Measured::default(), ..planned };
    match ending {
        Ending::Finished(outcome) => results::measured_row(unmeasured, *outcome),
        Ending::Failed(crash) => {
            Row { status: Status::Failed, message: format!("{crash}; see {}", log.display()), ..unmeasured }
        }
        Ending::TimedOut => Row {
            status: Status::Timeout,
            message: format!("not finished after {:?}, the --timeout", timeout.unwrap_or_default()),
            ..unmeasured
        },
        Ending::Interrupted => Row { status: Status::Interrupted, ..unmeasured },
    }
}
