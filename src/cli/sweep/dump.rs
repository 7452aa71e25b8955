//! `--dump` and `--save`: trains runs that have a result once more, and writes what another program needs to repeat them, or
//! their final parameters. Each in a child process of its own, so that it does not disturb measurements.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::job::{self, Children};
use super::{Args, Sweep, queue, report};
use crate::failure::{ExitStatus, Failure};
use crate::output::{is_quiet, note};
use crate::progress::Progress;
use execute::{DumpContents, Ended, Ending};
use results::{Dumps, Status};

/// Dumps or saves every selected run once, whatever the number of its labels and repeats.
///
/// # Errors
///
/// A file cannot be written.
pub(super) fn dump_all(
    args: &Args,
    sweeps: &mut [Sweep],
    dumps: &Dumps,
    interrupted: &AtomicBool,
) -> Result<ExitStatus, Failure> {
    let mut jobs = Vec::new();
    for (index, sweep) in sweeps.iter().enumerate() {
        jobs.extend(queue::distinct(&sweep.plan.runs, &args.filter).map(|run| (index, run)));
    }
    let (verb, participle) = match dumps.contents() {
        DumpContents::Tensors => ("dump", "dumped"),
        DumpContents::Checkpoint => ("save", "saved"),
    };
    let mut progress = Progress::new(0, jobs.len());
    let mut status = ExitStatus::Complete;
    for &(sweep, run) in &jobs {
        let sweep = &mut sweeps[sweep];
        let label = format!("{verb} {}", report::label(&sweep.plan, &sweep.plan.runs[run]));
        progress.begin(&label);
        let dumped = dump(args, sweep, run, dumps, interrupted, &mut progress)?;
        let place = dumps.place(&sweep.plan.runs[run].id).display().to_string();
        let is_missing = matches!(dumped, Dumped::Nothing(_) | Dumped::Failed(_));
        let (outcome, next) = match dumped {
            Dumped::New => (place, ExitStatus::Complete),
            Dumped::Before => (format!("{place} exists already"), ExitStatus::Complete),
            Dumped::Nothing(reason) => (format!("nothing to {verb}: {reason}"), ExitStatus::Complete),
            Dumped::Failed(reason) => (format!("not {participle}: {reason}"), ExitStatus::Failed),
            Dumped::Interrupted => {
                status = ExitStatus::Interrupted;
                break;
            }
        };
        progress.end(&label, &outcome);
        // Quiet sweeps show no progress, but what is missing.
        if is_missing && is_quiet() {
            note(&format!("{label}: {outcome}"));
        }
        status = status.and(next);
    }
    progress.finish();
    if status == ExitStatus::Interrupted {
        note(&format!("interrupted: the same command {verb}s what is missing"));
    }
    Ok(status)
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The outcome of a run.
enum Dumped {
    New,
    Before,
    Nothing(&'static str),
    Failed(String),
    Interrupted,
}

fn dump(
    args: &Args,
    sweep: &mut Sweep,
    run: usize,
    dumps: &Dumps,
    interrupted: &AtomicBool,
    progress: &mut Progress,
) -> Result<Dumped, Failure> {
    if interrupted.load(Ordering::Relaxed) {
        return Ok(Dumped::Interrupted);
    }
    let Sweep { plan, store, .. } = sweep;
    let run = &plan.runs[run];
    let Some(result) = store.finished(&run.id, 1).map_err(Failure::machine)? else {
        return Ok(Dumped::Nothing("the run has no result"));
    };
    if result.status == Status::Oom {
        return Ok(Dumped::Nothing("the run ran out of memory"));
    }
    if result.status == Status::Diverged && dumps.contents() == DumpContents::Checkpoint {
        return Ok(Dumped::Nothing("the run diverged"));
    }
    let Ok(config) = &run.config else { return Ok(Dumped::Nothing("the run is skipped")) };
    if let Some(reason) = dumps.contents().missing(config) {
        return Ok(Dumped::Nothing(reason));
    }
    let files = dumps.contents().files(config);
    match dumps.has(&run.id, &result.digest, &files) {
        Ok(false) => {}
        Ok(true) => return Ok(Dumped::Before),
        // Other runs may still be dumped.
        Err(error) => return Ok(Dumped::Failed(error.to_string())),
    }
    let folder = dumps.begin(&run.id).map_err(Failure::machine)?;
    job::describe(&folder, plan, run, result.repeat, store)?;
    let option = dumps.contents().option();
    let stall = match dumps.contents() {
        // The first rank writes files while the others wait.
        DumpContents::Tensors => DAY,
        DumpContents::Checkpoint => args.stall,
    };
    let Children { commands, memory: _memory } = job::children(&folder, args, run, stall, |_| Some(option))?;
    let ending = execute::run_children(commands, folder.log(), args.timeout, interrupted, |message| {
        progress.message(&message)
    });
    let outcome = match ending {
        Ending::Finished(outcome) => outcome,
        // Named, because its log is not kept, and on a full disk empty.
        Ending::Failed(crash) => {
            return Ok(Dumped::Failed(format!("{}: {crash}", dumps.place(&run.id).display())));
        }
        Ending::TimedOut => return Ok(Dumped::Failed("it took longer than the --timeout".to_owned())),
        Ending::Interrupted => return Ok(Dumped::Interrupted),
    };
    if outcome.ended == Ended::OutOfMemory {
        return Ok(Dumped::Failed("it ran out of memory when trained again".to_owned()));
    }
    // Training is deterministic: it ends with the measured result's bits, or it is of a different run.
    if outcome.measured.digest != result.digest {
        let (before, now) = (&result.instruction_set, &outcome.measured.instruction_set);
        if !before.is_empty() && before != now {
            return Ok(Dumped::Failed(format!(
                "it was measured with {before} and trained again with {now}, another instruction set, so that its final \
                 parameters differ in the last bits; measure again with --fresh"
            )));
        }
        let same_version = result.version == env!("CARGO_PKG_VERSION");
        let by = if same_version { String::new() } else { format!(" of runner {}", result.version) };
        let reason = format!(
            "trained again, its final parameters differ from the result's{by}; measure again with --fresh"
        );
        return Ok(Dumped::Failed(reason));
    }
    dumps.commit(folder, &run.id, &result.digest, &files).map_err(Failure::machine)?;
    Ok(Dumped::New)
}
