//! `runner status`: which runs of sweeps are done, running, failed or missing.

mod survey;
mod text;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::estimates;
use super::failure::{ExitStatus, Failure};
use super::inputs::{InputArgs, MachineArgs};
use super::output;
use super::submit;
use super::terminal;
use super::timeout;
use plan::{Plan, Purpose};
use results::{Expected, Store};
use spec::NodeRates;
use survey::{StepTimes, Survey};

/// Show which runs of sweeps are done, running (by whom, since when), failed or missing
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Results folders, with the runs that their sweeps have to measure on any machine; or experiment files, with their
    /// runs on this machine
    #[arg(required = true, value_name = "FOLDERS or FILES")]
    paths: Vec<String>,
    /// Override a key of every experiment file, such as train.seed=1
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    machine: MachineArgs,
    /// Results folder of experiment files
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
    /// List every run instead of the first few of each state
    #[arg(long)]
    all: bool,
    /// Repeat until every run has a result, every 10 s or at the given interval
    #[arg(
        long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "10s",
        value_parser = timeout::parse
    )]
    watch: Option<Duration>,
}

/// An experiment and its results.
struct Subject {
    name: String,
    folder: PathBuf,
    store: Store,
    /// Of files: the runs on this machine. Of folders, the lists in them are read each time.
    planned: Option<Expected>,
    /// Estimates of plans.
    estimates: StepTimes,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let (folders, files): (Vec<&String>, Vec<&String>) =
        args.paths.iter().partition(|path| Path::new(path).is_dir());
    let mut planned = match files.is_empty() {
        true => Vec::new(),
        false => of_files(&args, files.into_iter().cloned().collect())?,
    };
    let mut subjects = Vec::new();
    loop {
        let (mut blocks, mut is_complete) = (Vec::new(), true);
        for folder in folders.iter().map(Path::new) {
            if !add_new(folder, &mut subjects)? {
                blocks.push(not_begun(folder)?);
                is_complete = false;
            }
        }
        for subject in subjects.iter_mut().chain(&mut planned) {
            let survey = subject.survey().map_err(Failure::input)?;
            is_complete &= survey.is_complete();
            blocks.push(text::block(&subject.name, &subject.folder, &survey, args.all));
        }
        if args.watch.is_some() && terminal::width().is_some() {
            // Clear the terminal.
            output::print_raw("\x1b[H\x1b[2J")?;
        }
        output::show(&blocks.join("\n"))?;
        match args.watch {
            Some(pause) if !is_complete => thread::sleep(pause),
            _ => return Ok(ExitStatus::Complete),
        }
    }
}

/// Adds the new experiments in a results folder. Returns whether the folder has any experiment.
fn add_new(folder: &Path, subjects: &mut Vec<Subject>) -> Result<bool, Failure> {
    let names = results::experiments(folder).map_err(Failure::input)?;
    let has_any = !names.is_empty();
    for name in names {
        if !subjects.iter().any(|known| known.folder == folder && known.name == name) {
            let (store, folder) = (Store::at(folder, &name), folder.to_owned());
            subjects.push(Subject { name, folder, store, planned: None, estimates: StepTimes::default() });
        }
    }
    Ok(has_any)
}

/// The text about a folder without results, of whose submission no task has begun.
fn not_begun(folder: &Path) -> Result<String, Failure> {
    let logs = folder.join(submit::FOLDER);
    if logs.is_dir() {
        return Ok(format!(
            "{}: no task of `runner submit` has begun; logs: {}\n",
            folder.display(),
            logs.display()
        ));
    }
    Err(Failure::input(format!(
        "{} holds no results\n = help: write a folder that `runner sweep` wrote with --out, or an experiment file",
        folder.display()
    )))
}

fn of_files(args: &Args, files: Vec<String>) -> Result<Vec<Subject>, Failure> {
    let inputs = InputArgs::new(files, args.set.clone(), args.machine);
    let inputs = inputs.read(Purpose::Train, &args.out, None, |_| true)?;
    let rates = estimates::rates(&inputs.plans, &args.out, NodeRates::default(), inputs.node);
    let subject = |(plan, rates): (&Plan, &plan::DeviceRates)| Subject {
        name: plan.experiment.clone(),
        folder: args.out.clone(),
        store: Store::at(&args.out, &plan.experiment),
        planned: Some(Expected::of(plan)),
        estimates: StepTimes::of_plan(plan, rates),
    };
    Ok(inputs.plans.iter().zip(&rates).map(subject).collect())
}

impl Subject {
    fn survey(&mut self) -> Result<Survey, results::StoreError> {
        let rows = self.store.all()?;
        let claims = self.store.claims()?;
        let listed = if self.planned.is_none() { self.store.expected()? } else { Vec::new() };
        let expected: Vec<&Expected> = self.planned.iter().chain(&listed).collect();
        Ok(Survey::of(&rows, claims, &expected, &self.estimates))
    }
}
