//! `advise`: searches combinations of strategy keys for the fastest run that fits.

mod text;
mod verify;

use std::path::PathBuf;

use super::failure::{ExitStatus, Failure};
use super::framework::FrameworkArgs;
use super::inputs::{InputArgs, Inputs};
use super::progress::Waiting;
use super::run_selector::{NumberedRun, choose, is_named};
use super::{estimates, export, framework, messages, output, terminal, torch};
use ::plan::{
    Base, ChangedKey, DeviceRates, Found, Plan, Purpose, Search, Tolerance, Trial, changed_keys,
    combinations, expand_generated, tables, with_micro_batches,
};
use base::rates::BytesPerSecond;
use base::units::Bytes;
use device::{DeviceKind, Limits, Target};
use pytorch::Machine;
use spec::{ExperimentInput, Framework, NodeRates, RunConfig, Update};

/// Search the combinations of strategy keys for the fastest run that fits the memory
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    inputs: InputArgs,
    /// The run to change: a strategy's name, a number of `sweep --dry-run`, or the beginning of an id. Default: the baseline
    #[arg(long, value_name = "NAME|N|ID")]
    run: Option<String>,
    #[command(flatten)]
    framework: FrameworkArgs,
    /// Advise for another machine: a card that `devices --targets` lists, or a target file
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "device")]
    target: Option<PathBuf>,
    /// How far the training result may differ
    #[arg(long, value_enum, value_name = "RESULT", default_value = "storage")]
    same: Same,
    /// Also try these batch sizes, such as 8,16,32; the results are ordered by the time of a token
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    batch_sizes: Vec<u32>,
    /// Also try these context lengths, such as 1024,2048
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', conflicts_with = "verify", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    contexts: Vec<u32>,
    /// Number of results
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u8).range(1..))]
    top: u8,
    /// Train the best N, compare the predicted with the measured order, and choose the measured best
    #[arg(long, value_name = "N", conflicts_with = "target", value_parser = clap::value_parser!(u8).range(1..))]
    verify: Option<u8>,
    /// Write the best run as an experiment to this file
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Rate of the link between the card and its host, per direction, such as 25GB/s
    #[arg(long, value_name = "RATE")]
    link: Option<BytesPerSecond>,
    /// Results folder: supplies a device's measured rates for time estimates
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
}

/// How far the training result may differ from that of the run.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Same {
    /// Equal bits
    Bitwise,
    /// Equal up to rounding
    Rounding,
    /// Also 16-bit matmuls: losses within 1%
    Precision,
    /// Also 16-bit parameters and 8-bit optimizer states: losses within 3%
    Storage,
    /// Also adapters (LoRA) in place of the model
    Any,
}

/// More memory that is tried: this, or a quarter of a small memory.
const MORE: u64 = 2 << 30;

pub(super) fn run(mut args: Args) -> Result<ExitStatus, Failure> {
    args.framework.choose_program(&mut args.inputs);
    let (which, target) = (args.run.as_deref(), args.target.as_deref());
    let inputs = args.inputs.read(Purpose::Predict, &args.out, target, |point| is_named(which, point))?;
    let [plan] = inputs.plans.as_slice() else {
        return Err(Failure::input("`advise` takes one experiment\n = help: name one file"));
    };
    let selected = choose(&inputs.plans, Some(which.unwrap_or(&plan.baseline)))?;
    let advisor = Advisor::of(&args, &inputs, selected)?;
    messages::devices(&inputs, false);
    let search = advisor.search(&advisor.plan.target)?;
    let (trials, left_out) = advisor.trials()?;
    if !left_out.is_empty() {
        let left_out: Vec<String> = left_out.iter().map(ChangedKey::setting).collect();
        output::note(&format!("warning: too many combinations; not changed: {}", left_out.join(", ")));
    }
    let waiting = Waiting::begin(format!("searching {} combinations", trials.len()));
    let timed = search.estimate(trials.clone()).map_err(Failure::machine)?;
    let results = search.run(&timed).map_err(Failure::machine)?;
    drop(waiting);
    let width = terminal::text_width();
    output::print(&text::results(&advisor, &results, timed.len(), width)?)?;
    let Some(best) = results.found.first() else {
        output::print(&text::nothing(&advisor, &trials, width)?)?;
        return Ok(ExitStatus::Complete);
    };
    output::print(&text::keys(&advisor, best, width)?)?;
    output::print(&text::alternatives(&advisor, best, &timed, width)?)?;
    let mut best = best;
    if let Some(number) = args.verify {
        let found = &results.found[..results.found.len().min(usize::from(number))];
        best = match verify::best(&advisor, found, &args.out)? {
            Ok(best) => best,
            Err(status) => return Ok(status),
        };
    }
    if let Some(file) = &args.write {
        let name = format!("{}-advised", plan.experiment);
        export::write(file, best.config.to_toml(&name, "advised") + &planned_tables(plan))?;
        output::mention(&format!("wrote {}", file.display()));
    }
    Ok(ExitStatus::Complete)
}

/// `[plan]` and the memory limit of a plan, for a written experiment.
pub(super) fn planned_tables(plan: &Plan) -> String {
    let Target { limited, memory, host_memory, .. } = &plan.target;
    let memory = limited.then(|| format!("memory = \"{}\"\n", memory.exact()));
    let host = host_memory.map(|memory| format!("host_memory = \"{}\"\n", memory.exact()));
    let limits: String = memory.into_iter().chain(host).collect();
    let target = if limits.is_empty() { String::new() } else { format!("\n[target]\n{limits}") };
    plan.keys.to_toml() + &target
}

/// The run to change, and what decides.
struct Advisor<'a> {
    args: &'a Args,
    inputs: &'a Inputs,
    plan: &'a Plan,
    /// The run's index in its experiment.
    index: usize,
    strategy: &'a str,
    config: &'a RunConfig,
    rates: DeviceRates,
    /// Whether PyTorch's memory decides.
    decides_pytorch: bool,
}

impl<'a> Advisor<'a> {
    fn of(args: &'a Args, inputs: &'a Inputs, selected: NumberedRun<'a>) -> Result<Advisor<'a>, Failure> {
        let NumberedRun { plan, run, index, .. } = selected;
        let config =
            run.config.as_ref().map_err(|reason| Failure::input(format!("the run is skipped: {reason}")))?;
        if !config.trains() {
            return Err(Failure::input("`advise` is for runs that train\n = help: use `runner plan`"));
        }
        if config.ranks() > 1 {
            return Err(Failure::input("`advise` is for runs on one device\n = help: use parallel.data = 1"));
        }
        let decides_pytorch = match args.framework.framework() {
            Some(framework) => framework == Framework::Pytorch,
            None => plan.keys.framework == Framework::Pytorch || plan.target.is_too_old(),
        };
        framework::shown_for(&plan.target, args.framework.framework(), plan.keys.framework)?;
        if !args.batch_sizes.is_empty() && is_set(args, "train.batch_size") {
            return Err(Failure::input(
                "`--set train.batch_size` fixes what `--batch-sizes` tries\n = help: remove one",
            ));
        }
        if decides_pytorch {
            let machine = torch::machine(&plan.target, plan.keys)?;
            machine.run(config).map_err(|reason| {
                Failure::input(format!("{} is not predicted for PyTorch: {reason}", run.strategy))
            })?;
        }
        let stated = NodeRates { link: args.link, ..NodeRates::default() };
        let rates = estimates::rates(&inputs.plans, &args.out, stated, inputs.node);
        let rates = rates.into_iter().next().unwrap_or_default();
        let rates = match plan.target.kind {
            DeviceKind::Cpu => rates.or_assumed(),
            DeviceKind::Cuda => rates,
        };
        Ok(Advisor { args, inputs, plan, index, strategy: &run.strategy, config, rates, decides_pytorch })
    }

    fn tolerance(&self) -> Tolerance {
        match self.args.same {
            Same::Bitwise => Tolerance::Bitwise,
            Same::Rounding => Tolerance::Rounding,
            Same::Precision => Tolerance::Precision,
            Same::Storage => Tolerance::Storage,
            Same::Any => Tolerance::Any,
        }
    }

    /// PyTorch's card with a target's memory, if it decides.
    fn machine(&self, target: &Target) -> Result<Option<Machine>, Failure> {
        match self.decides_pytorch {
            true => torch::machine(target, self.plan.keys).map(Some),
            false => Ok(None),
        }
    }

    /// The target with more memory, and how much more.
    fn larger_target(&self) -> (Target, Bytes) {
        let target = &self.plan.target;
        let more = MORE.min(target.memory.0 / 4);
        let memory = Some(Bytes(target.memory.0.saturating_add(more)));
        (target.clone().limited_to(Limits { memory, host_memory: target.host_memory }), Bytes(more))
    }

    /// The runs with these keys changed, without those that are invalid. If the batch may be split, they have one
    /// micro-batch: some keys are invalid with several.
    fn expanded(&self, combinations: Vec<Vec<ChangedKey>>) -> Result<Vec<Trial>, Failure> {
        let environment = |name: &str| std::env::var(name).ok();
        let input = ExperimentInput::File(&self.plan.file);
        let accumulate = self.may_split().then_some(1);
        let (settings, tables) = (self.args.inputs.settings(), tables(&combinations, accumulate));
        let mut experiment = expand_generated(input, settings, &environment, Base::Run(self.index), &tables)
            .map_err(Failure::input)?;
        experiment.set_data_properties(|config| self.inputs.data.describe(config));
        let runs = combinations.into_iter().zip(experiment.points);
        Ok(runs.filter_map(|(keys, point)| Some(Trial { keys, config: point.config.ok()? })).collect())
    }

    /// Whether other numbers of micro-batches are tried: not if lengths depend on the micro-batch, which are known of the
    /// run's own.
    fn may_split(&self) -> bool {
        let depends = self.config.lengths.is_some() || self.config.all_packed.is_some();
        self.tolerance() >= Tolerance::Rounding && !depends
    }

    /// All combinations of the keys that have an effect, the unchanged run first; and the keys that are left out because
    /// there are too many.
    fn trials(&self) -> Result<(Vec<Trial>, Vec<ChangedKey>), Failure> {
        let mut groups: Vec<Vec<ChangedKey>> = Vec::new();
        let sizes = self.args.batch_sizes.iter().map(|size| *size as usize);
        let sizes = sizes.filter(|size| *size != self.config.train.batch_size);
        groups.push(sizes.map(ChangedKey::batch_size).collect());
        let contexts = self.args.contexts.iter().flat_map(|context| ChangedKey::contexts(*context as usize));
        groups.push(contexts.collect());
        let (mut undo, own) = (Vec::new(), self.expanded(vec![Vec::new()])?);
        let own = own.first().map_or(self.config, |trial| &trial.config).memory_key();
        for group in changed_keys(self.config, self.tolerance(), !self.plan.target.is_too_old()) {
            let mut kept = Vec::new();
            for key in group {
                // A CPU's device and host pools are one memory.
                if self.plan.target.kind == DeviceKind::Cpu && key.is_offload() {
                    continue;
                }
                // A key that is invalid by itself may be valid beside others.
                let alone = self.expanded(vec![vec![key.clone()]])?;
                if alone.first().is_none_or(|trial| trial.config.memory_key() != own) {
                    if key.is_undo() { &mut undo } else { &mut kept }.push(key);
                }
            }
            groups.push(kept);
        }
        groups.retain(|group| !group.is_empty());
        let (all, left_out) = combinations(&undo, &groups);
        let left_out = left_out.iter().flatten().cloned().collect();
        let machine = self.machine(&self.plan.target)?;
        let mut trials = self.expanded(all)?;
        trials.retain(|trial| machine.as_ref().is_none_or(|machine| machine.may_cover(&trial.config)));
        Ok((trials, left_out))
    }

    /// The estimated milliseconds of the unchanged run, if it fits.
    fn own_time(&self) -> Result<Option<f64>, Failure> {
        let search = self.search(&self.plan.target)?;
        match search.fits(self.config).map_err(Failure::machine)? {
            true => {
                let found = search.found(Vec::new(), self.config.clone()).map_err(Failure::machine)?;
                Ok(found.map(|found| found.step_ms))
            }
            false => Ok(None),
        }
    }

    fn search<'s>(&'s self, target: &'s Target) -> Result<Search<'s>, Failure> {
        Ok(Search {
            target,
            rates: &self.rates,
            machine: self.machine(target)?,
            own: self.config,
            may_split: self.may_split(),
            top: usize::from(self.args.top.max(self.args.verify.unwrap_or(1))),
        })
    }

    /// The best run without one of its keys, with as many micro-batches.
    fn without(&self, best: &Found, key: usize) -> Result<Option<Found>, Failure> {
        let keys = [&best.keys[..key], &best.keys[key + 1..]].concat();
        let trial = self.expanded(vec![keys])?.into_iter().next();
        let number = best.config.strategy.accumulate;
        trial.map_or(Ok(None), |trial| self.with_number(trial, number))
    }

    /// A run with another number of micro-batches, if it is valid.
    fn with_number(&self, Trial { keys, config }: Trial, number: usize) -> Result<Option<Found>, Failure> {
        if number > 1 && config.strategy.update == Update::InBackward {
            return Ok(None);
        }
        let search = self.search(&self.plan.target)?;
        search.found(keys, with_micro_batches(&config, number)).map_err(Failure::machine)
    }
}

/// Whether `--set` has a key.
fn is_set(args: &Args, key: &str) -> bool {
    args.inputs
        .settings()
        .iter()
        .any(|setting| setting.split('=').next().is_some_and(|name| name.trim() == key))
}
