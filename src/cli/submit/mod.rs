//! `submit`: submits a sweep to Slurm. It groups the missing runs by what they need, submits an array for each group, and a
//! job after them that completes the sweep.

mod groups;
mod history;
mod needs;
mod script;
mod slurm;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::check::counted;
use super::estimates;
use super::failure::{ExitStatus, Failure};
use super::filter::Filter;
use super::inputs::{InputArgs, Inputs};
use super::messages;
use super::output::{note, print_raw, say};
use super::sweep::{distinct, duration};
use base::units::Bytes;
use device::DeviceKind;
use groups::{Group, Requested, Resources};
use history::{Shortage, Shortages, Submission};
use needs::Need;
use plan::{Plan, Purpose};
use results::{Row, Store};
use script::{Script, Signal};
use spec::{NodeRates, Repeats};

/// The folder of logs and submissions, in the results folder.
pub(super) const FOLDER: &str = ".slurm";
/// A signal may come this much earlier than requested.
const EARLY: u64 = 60;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    inputs: InputArgs,
    /// Predict for the nodes' machine instead of this one: a card that `devices --targets` lists, or a target file
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "device")]
    target: Option<PathBuf>,
    /// Results folder, on a file system that the nodes share
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
    #[command(flatten)]
    filter: Filter,
    /// Repeats per run [default: the experiment's `measure.repeats`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeats: Option<u32>,
    /// Partition of the jobs [default: the cluster's]
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,
    /// Tasks of each array [default: one for each repeat of a sweep point, at most 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tasks: Option<u32>,
    /// Processors of a task [default: the target's threads; with a card, 2 for each, and loader workers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// Host memory of a task [default: predicted]
    #[arg(long, value_name = "SIZE")]
    mem: Option<Bytes>,
    /// Time limit of a task, such as 30m or 2h [default: estimated; the partition's if no rates are known]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    time: Option<Duration>,
    /// Signal before the time limit and its lead in seconds: the task ends, and keeps its finished runs
    #[arg(long, value_name = "SIGNAL[@SECONDS]", default_value = "USR2@90")]
    signal: Signal,
    /// Print the script instead of running it
    #[arg(long)]
    dry_run: bool,
    /// More options of `sbatch` for all jobs, after `--`, such as `-- --account=me --exclusive`
    #[arg(last = true, value_name = "OPTIONS")]
    sbatch: Vec<String>,
}

pub(super) fn run(mut args: Args) -> Result<ExitStatus, Failure> {
    let purpose = if args.target.is_some() { Purpose::Predict } else { Purpose::Train };
    let mut inputs =
        args.inputs.read(purpose, &args.out, args.target.as_deref(), |point| args.filter.names(point))?;
    if !inputs.absent.is_empty() {
        return Err(Failure::input(inputs.absent.join("\n")));
    }
    args.filter.resolve(&inputs.plans)?;
    if let Some(repeats) = args.repeats {
        inputs.plans.iter_mut().for_each(|plan| plan.repeats = Repeats::Times(repeats as usize));
    }
    if inputs.plans.iter().any(|plan| matches!(plan.repeats, Repeats::Until(_))) {
        return Err(Failure::input(
            "a submission needs a fixed number of repeats, not `measure.repeats = { until = ... }`: add --repeats N",
        ));
    }
    messages::devices(&inputs, true);
    let logs = args.out.join(FOLDER);
    let submissions = history::read(&logs)?;
    let (mut needs, rows) = missing(&args, &inputs)?;
    let can_run =
        |plan: &Plan| plan.unsuited.is_none() && distinct(&plan.runs, &args.filter).next().is_some();
    if !inputs.plans.iter().any(can_run) {
        let unsuited = inputs.plans.iter().find_map(|plan| plan.unsuited.as_ref());
        let reason = unsuited.or_else(|| inputs.runs().find_map(|run| run.config.as_ref().err()));
        let reason = reason.map_or("the files have none", String::as_str);
        return Err(Failure::input(format!(
            "there is no run to submit: {reason}\n = help: `--target` plans for nodes with another device"
        )));
    }
    if needs.is_empty() {
        say("every run has a result: there is nothing to submit");
        return Ok(ExitStatus::Complete);
    }
    let shortages = history::shortages(&submissions, &rows);
    raise(&inputs.plans, &mut needs, &shortages);
    let repeats: usize = needs.iter().map(|need| need.missing.len()).sum();
    tell_unknown(&args, &inputs.plans, &needs);
    let groups = groups::of(&inputs.plans, needs, args.requested());
    tell_shortages(&shortages, &groups);
    args.warn(&groups);
    let script = args.script(&inputs, &groups, repeats)?;
    if args.dry_run {
        print_raw(&script)?;
        return Ok(ExitStatus::Complete);
    }
    history::check_ended(&submissions)?;
    let (arrays, last) = slurm::submit(&script)?;
    let refused = match &last {
        Some(last) => {
            let tasks: usize = groups.iter().map(|group| group.tasks.len()).sum();
            let (repeats, tasks) = (counted(repeats, "repeat"), counted(tasks, "task"));
            let (arrays, logs) = (arrays.join(", "), logs.display());
            say(&format!(
                "submitted {repeats} as {tasks} of {arrays}, then job {last}, which prints the tables; logs: {logs}"
            ));
            Ok(())
        }
        None => Err(Failure::machine(format!(
            "Slurm refused a job after it had accepted others: see the message above\n = help: end those with `scancel {}`, or \
             wait for them; then submit again",
            arrays.join(" ")
        ))),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let written = Submission::new(now, arrays, last, groups).write(&logs);
    Failure::collect([refused, written])?;
    Ok(ExitStatus::Complete)
}

/// The needs of all runs with missing repeats, and all rows.
fn missing(args: &Args, inputs: &Inputs) -> Result<(Vec<Need>, Vec<Row>), Failure> {
    let rates = estimates::rates(&inputs.plans, &args.out, NodeRates::default(), inputs.node);
    // A sweep reads and plans the same files.
    let own = execute::high_water_mark().unwrap_or(0);
    let (mut needs, mut all_rows, mut first) = (Vec::new(), Vec::new(), 1);
    for ((index, plan), rates) in inputs.plans.iter().enumerate().zip(&rates) {
        if let Some(reason) = &plan.unsuited {
            note(&format!("{} is skipped: {reason}; `--target` plans for other nodes", plan.experiment));
        } else {
            let rows = Store::at(&args.out, &plan.experiment).rows(plan).map_err(Failure::input)?;
            let runs = distinct(&plan.runs, &args.filter);
            needs.extend(needs::of_plan((index, plan), runs, first, &rows, rates, own));
            all_rows.extend(rows);
        }
        first += plan.runs.len();
    }
    Ok((needs, all_rows))
}

/// Requests twice the memory or time of earlier tasks that had too little.
fn raise(plans: &[Plan], needs: &mut [Need], shortages: &Shortages) {
    for need in needs {
        let configuration = &plans[need.plan].runs[need.run].configuration;
        for repeat in &need.missing {
            let Some(shortage) = shortages.get(&(configuration.clone(), *repeat)) else { continue };
            let memory = shortage.mib.map(|mib| (2 * mib) << 20);
            need.memory = need.memory.max(memory.filter(|bytes| *bytes > 0));
            need.least_minutes = need.least_minutes.max(2 * shortage.minutes.unwrap_or(0));
        }
    }
}

/// Notes on tasks that had too little memory or time, with the least that any of their runs gets now.
fn tell_shortages(shortages: &Shortages, groups: &[Group]) {
    let mut told: BTreeMap<(&str, &str), (u64, Option<u64>)> = BTreeMap::new();
    for group in groups {
        let Resources { mib, minutes, .. } = group.resources;
        for run in group.tasks.values().flatten() {
            let Some(Shortage { task, mib: had_mib, minutes: had_minutes }) = shortages.get(run) else {
                continue;
            };
            for (what, had, now) in [("memory", had_mib, mib), ("time", had_minutes, minutes)] {
                if let Some(had) = *had {
                    let (_, least) = told.entry((task, what)).or_insert((had, now));
                    // Unknown stays unknown.
                    *least = least.zip(now).map(|(one, other)| one.min(other));
                }
            }
        }
    }
    for ((task, what), (had, now)) in told {
        let text = |now: u64| match what {
            "memory" => Bytes(now << 20).exact(),
            _ => format!("{now} min"),
        };
        let option = if what == "memory" { "--mem" } else { "--time" };
        let change = match now {
            None => format!("set more with {option}"),
            Some(now) if now > had => format!("now its runs get at least {}", text(now)),
            Some(now) => format!("its runs get {}, not more than before: set more with {option}", text(now)),
        };
        note(&format!("task {task} had too little {what}: {change}"));
    }
}

/// Notes on needs that are not predicted.
fn tell_unknown(args: &Args, plans: &[Plan], needs: &[Need]) {
    let without = |is_unknown: &dyn Fn(&Need) -> bool| needs.iter().filter(|need| is_unknown(need)).count();
    let tell = |number: usize, what: &str, option: &str| {
        if number > 0 {
            note(&format!(
                "the {what} of {} is unknown: their tasks get the partition's default; set it with {option}",
                counted(number, "run")
            ));
        }
    };
    if args.time.is_none() {
        tell(without(&|need| need.seconds.is_none() && need.least_minutes == 0), "time", "--time");
    }
    if args.mem.is_none() {
        tell(without(&|need| need.memory.is_none()), "memory", "--mem");
    }
    if plans.iter().any(|plan| plan.target.kind == DeviceKind::Cpu && !plan.target.limited) {
        note(
            "nodes whose memory differs measure different runs: set `memory` in [target], or --memory, to make them the same",
        );
    }
}

impl Args {
    fn requested(&self) -> Requested {
        Requested {
            tasks: self.tasks.map(|tasks| tasks as usize),
            cpus: self.cpus.map(|cpus| cpus as usize),
            mib: self.mem.map(|Bytes(bytes)| bytes.div_ceil(1 << 20).max(1)),
            minutes: self.time.map(|time| time.as_secs().div_ceil(60).max(1)),
        }
    }

    /// Warns if the signal takes a large part of the time.
    fn warn(&self, groups: &[Group]) {
        let shortest = groups.iter().filter_map(|group| group.resources.minutes).min();
        let lead = self.signal.lead + EARLY;
        if let Some(minutes) = shortest.filter(|minutes| 2 * lead > 60 * minutes) {
            note(&format!(
                "warning: the signal may come {lead} s before the limit of {minutes} min, more than half of it: set a longer \
                 --time, or a shorter lead with --signal"
            ));
        }
    }

    fn script(&self, inputs: &Inputs, groups: &[Group], repeats: usize) -> Result<String, Failure> {
        let program = std::env::current_exe().map_err(Failure::machine)?;
        let folder = std::env::current_dir().map_err(Failure::machine)?;
        let files = inputs.plans.iter().map(|plan| plan.file.display().to_string());
        let kind = inputs.plans.first().map_or(DeviceKind::Cpu, |plan| plan.target.kind);
        let mut command = vec![program.display().to_string(), "sweep".to_owned()];
        command.extend(files);
        command.extend(self.inputs.options(kind));
        command.extend(["--out".to_owned(), self.out.display().to_string()]);
        command.extend(self.repeats.iter().flat_map(|repeats| ["--repeats".to_owned(), repeats.to_string()]));
        let names: Vec<&str> = inputs.plans.iter().map(|plan| plan.experiment.as_str()).collect();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let script = Script {
            title: format!(
                "{} of {}, predicted for {}",
                counted(repeats, "missing repeat"),
                names.join(", "),
                { inputs.plans.first().map_or("no target", |plan| &plan.target.name) }
            ),
            name: names[0].chars().map(|c| if is_plain(c) { c } else { '-' }).collect(),
            folder: &folder,
            logs: &self.out.join(FOLDER),
            command,
            signal: &self.signal,
            partition: self.partition.as_deref(),
            options: &self.sbatch,
        };
        script.text(groups, &self.filter.options())
    }
}
