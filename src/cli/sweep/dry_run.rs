//! `--dry-run`: prints the grid and which runs have a result.

use std::collections::HashMap;

use super::free_memory::free_memory;
use super::queue::{self, is_wanted};
use super::{Args, others, report};
use crate::aligned;
use crate::failure::{ExitStatus, Failure};
use crate::output;
use base::units::Bytes;
use device::DeviceKind;
use plan::{Label, Plan, PlannedRun};
use results::Store;
use spec::RunConfig;

/// Prints every run. Reads results, writes nothing.
pub(super) fn show(args: &Args, plans: Vec<Plan>) -> Result<ExitStatus, Failure> {
    let free = free_memory();
    let mut number = 0;
    for plan in &plans {
        let mut store = Store::at(&args.out, &plan.experiment);
        // Reads all results in parallel.
        let earlier = earlier(args, plan, &mut store)?;
        let mut lines = vec![["#", "run", "strategy", "axes", "peak", "state"].map(str::to_string)];
        let mut left = 0;
        let mut first_label = HashMap::new();
        let own = own_repeats(args, plan);
        for (at, run) in plan.runs.iter().enumerate() {
            let own = own.get(&at).map(Vec::as_slice).unwrap_or_default();
            let state = state(args, plan, run, own, &mut store, &mut first_label, free)?;
            left += state.left;
            number += 1;
            lines.push([
                number.to_string(),
                run.id.clone(),
                run.strategy.clone(),
                axes(run),
                predicted_peak(plan, run),
                state.text,
            ]);
        }
        let lines = aligned::columns(&lines, 1).join("\n");
        let (experiment, file) = (&plan.experiment, plan.file.display());
        let part = args.only.map(|part| format!(", part {part}")).unwrap_or_default();
        output::show(&format!("\n{experiment} ({file}{part})\n{lines}\n{left} to run\n{earlier}"))?;
    }
    Ok(ExitStatus::Complete)
}

/// The repeats of each run that this task executes: all, or with `--only` its part.
fn own_repeats(args: &Args, plan: &Plan) -> HashMap<usize, Vec<usize>> {
    let runs: Vec<usize> = queue::distinct(&plan.runs, &args.filter).collect();
    let mut own: HashMap<usize, Vec<usize>> = HashMap::new();
    for job in queue::all(0, plan, &runs, 1..=plan.repeats.most(), args.only) {
        own.entry(job.run).or_default().push(job.repeat);
    }
    own
}

/// Results that the sweep's table would not hold.
fn earlier(args: &Args, plan: &Plan, store: &mut Store) -> Result<String, Failure> {
    let rows = store.rows(plan).map_err(Failure::input)?;
    let rows = report::whole(store, plan, &rows, args.inputs.changes()).map_err(Failure::input)?;
    let without_result = others::without_result(store, plan).map_err(Failure::input)?;
    let others = others::find(store, plan, &rows, &without_result).map_err(Failure::input)?;
    if others.is_empty() {
        return Ok(String::new());
    }
    let (counted, changes) = (others::counted(plan, &others), others::changes(plan, &others));
    let text = format!("{counted}: the sweep keeps them in {}.{changes}", store.other_csv().display());
    Ok(text + "\n")
}

/// The sweep's action for a run.
struct State {
    text: String,
    /// Repeats that would be executed.
    left: usize,
}

fn state<'a>(
    args: &Args,
    plan: &Plan,
    run: &'a PlannedRun,
    own: &[usize],
    store: &mut Store,
    first_label: &mut HashMap<&'a str, &'a str>,
    free: Option<u64>,
) -> Result<State, Failure> {
    let idle = |text: String| Ok(State { text, left: 0 });
    if let Err(reason) = &run.config {
        return idle(format!("skipped: {reason}"));
    }
    if !is_wanted(run, &args.filter) {
        return idle("not in --filter".into());
    }
    if let Some(first) = first_label.get(run.id.as_str()) {
        return idle(format!("same as {first}"));
    }
    first_label.insert(&run.id, &run.strategy);
    if own.is_empty() {
        return idle("in another part".into());
    }
    let mut done = 0;
    for repeat in own {
        // An unreadable result is measured again.
        if !args.fresh && store.finished(&run.id, *repeat).map_err(Failure::input)?.is_some() {
            done += 1;
        }
    }
    let left = own.len() - done;
    let mut notes = Vec::new();
    if left > 0 && done > 0 {
        notes.push(format!("{done} of {} cached", own.len()));
    }
    if own.len() < plan.repeats.most() {
        notes.push(format!("{} of {} repeats in this part", own.len(), plan.repeats.most()));
    }
    let state = if left == 0 { "cached" } else { "to do" };
    let mut text =
        if notes.is_empty() { state.to_owned() } else { format!("{state} ({})", notes.join("; ")) };
    if let Some(free) = free.filter(|free| left > 0 && host_bytes(plan, run) > *free) {
        text.push_str(&format!(", but only {} are free", Bytes(free)));
    }
    Ok(State { text, left })
}

/// Bytes of this machine's memory that the run will request. The free memory of a card is unknown: reading it takes
/// memory there.
fn host_bytes(plan: &Plan, run: &PlannedRun) -> u64 {
    let Some(prediction) = run.prediction.as_ref().filter(|found| found.out_of_memory.is_none()) else {
        return 0;
    };
    let device = match plan.target.kind {
        DeviceKind::Cpu => prediction.device.reserved_peak,
        DeviceKind::Cuda => 0,
    };
    let ranks = run.config.as_ref().map_or(1, RunConfig::ranks) as u64;
    device.saturating_add(prediction.host.reserved_peak).saturating_mul(ranks)
}

fn axes(run: &PlannedRun) -> String {
    let shared = Label::of(&run.strategy, &run.axes).shared;
    let pairs: Vec<String> = shared.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(" ")
}

fn predicted_peak(plan: &Plan, run: &PlannedRun) -> String {
    if run.prediction.as_ref().is_some_and(|prediction| prediction.out_of_memory.is_some()) {
        return "OOM".into();
    }
    let peak = results::planned_row(plan, run, 1).predicted_peak_bytes;
    peak.map(|bytes| Bytes(bytes).to_string()).unwrap_or_default()
}
