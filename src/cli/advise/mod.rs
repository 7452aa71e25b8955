//! `advise`: searches combinations of strategy keys for the fastest run that fits.

mod text;
mod verify;

use std::path::PathBuf;
use std::time::Instant;

use super::failure::{ExitStatus, Failure};
use super::framework::FrameworkArgs;
use super::inputs::{InputArgs, Inputs};
use super::run_selector::{NumberedRun, choose, is_named};
use super::{estimates, export, output, report, terminal, torch};
use ::plan::{
    Base, ChangedKey, DeviceRates, Found, Plan, Purpose, RatesOrigin, Search, Tolerance, Trial, changed_keys,
    combinations, expand_generated, tables, with_micro_batches,
};
use base::rates::BytesPerSecond;
use base::units::Bytes;
use device::{DeviceKind, Limits, Target};
use pytorch::Machine;
use spec::{ExperimentInput, Framework, HostRates, RunConfig};

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
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    batch_sizes: Vec<usize>,
    /// Also try these context lengths, such as 1024,2048
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', conflicts_with = "verify")]
    contexts: Vec<usize>,
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
    report::devices(&inputs, false);
    let began = Instant::now();
    let searcher = advisor.search(&advisor.plan.target)?;
    let trials = advisor.trials()?;
    let timed = searcher.search().estimate(trials.clone()).map_err(Failure::machine)?;
    let results = searcher.search().run(&timed).map_err(Failure::machine)?;
    let width = terminal::text_width();
    output::print(&text::results(&advisor, &results, timed.len(), began.elapsed(), width))?;
    let Some(best) = results.found.first() else {
        output::print(&text::nothing(&advisor, &trials, width)?)?;
        return Ok(ExitStatus::Complete);
    };
    output::print(&text::keys(&advisor, best, width)?)?;
    output::print(&text::alternatives(&advisor, best, &timed, width)?)?;
    let mut best = best;
    if let Some(number) = args.verify {
        let found = &results.found[..results.found.len().min(usize::from(number))];
        best = verify::best(&advisor, found, &args.out)?;
    }
    if let Some(file) = &args.write {
        let name = format!("{}-advised", plan.experiment);
        export::write(file, best.config.to_toml(&name, "advised"))?;
        output::mention(&format!("wrote {}", file.display()));
    }
    Ok(ExitStatus::Complete)
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
        let decides_pytorch = match args.framework.framework() {
            Some(framework) => framework == Framework::Pytorch,
            None => plan.keys.framework == Framework::Pytorch || plan.target.is_too_old(),
        };
        if decides_pytorch {
            let machine = torch::machine(&plan.target, plan.keys)?;
            machine.run(config).map_err(|reason| {
                Failure::input(format!("{} is not predicted for PyTorch: {reason}", run.strategy))
            })?;
        }
        let stated = HostRates { link: args.link, ..HostRates::default() };
        let rates = estimates::rates(&inputs.plans, &args.out, stated, inputs.host);
        let rates = rates.into_iter().next().unwrap_or_default();
        let rates = match rates.origin {
            RatesOrigin::Unknown => DeviceRates::assumed(),
            RatesOrigin::Runs(_) | RatesOrigin::DataSheet => rates,
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

    /// The runs with these keys changed, without those that are invalid.
    fn expanded(&self, combinations: Vec<Vec<ChangedKey>>) -> Result<Vec<Trial>, Failure> {
        let environment = |name: &str| std::env::var(name).ok();
        let input = ExperimentInput::File(&self.plan.file);
        let (settings, tables) = (self.args.inputs.settings(), tables(&combinations));
        let mut experiment = expand_generated(input, settings, &environment, Base::Run(self.index), &tables)
            .map_err(Failure::input)?;
        experiment.set_data_properties(|config| self.inputs.data.describe(config));
        let runs = combinations.into_iter().zip(experiment.points);
        Ok(runs.filter_map(|(keys, point)| Some(Trial { keys, config: point.config.ok()? })).collect())
    }

    /// All combinations of the keys that have an effect, the unchanged run first.
    fn trials(&self) -> Result<Vec<Trial>, Failure> {
        let mut groups = changed_keys(self.config, self.tolerance());
        let machine = self.machine(&self.plan.target)?;
        let has_effect = |key: &ChangedKey| -> Result<bool, Failure> {
            let alone = self.expanded(vec![vec![key.clone()]])?;
            // A key that is invalid by itself may be valid beside others; and some are predicted for PyTorch beside others
            // only: 16-bit optimizer states, checkpointed blocks.
            let needs_others = key.is("params") || key.is("offload.activations");
            Ok(alone.first().is_none_or(|trial| {
                let is_predicted = |machine: &Machine| needs_others || machine.run(&trial.config).is_ok();
                trial.config.memory_key() != self.config.memory_key()
                    && machine.as_ref().is_none_or(is_predicted)
            }))
        };
        if self.plan.target.kind == DeviceKind::Cpu {
            // A CPU's device and host pools are one memory.
            groups.retain(|group| !group.iter().any(ChangedKey::is_offload));
        }
        for group in &mut groups {
            let mut kept = Vec::new();
            for key in group.drain(..) {
                if has_effect(&key)? {
                    kept.push(key);
                }
            }
            *group = kept;
        }
        let sizes = self.args.batch_sizes.iter().filter(|size| **size != self.config.train.batch_size);
        groups.push(sizes.map(|size| ChangedKey::batch_size(*size)).collect());
        groups.push(self.args.contexts.iter().flat_map(|context| ChangedKey::contexts(*context)).collect());
        groups.retain(|group| !group.is_empty());
        self.expanded(combinations(&groups))
    }

    fn search<'s>(&'s self, target: &'s Target) -> Result<Searcher<'s>, Failure> {
        Ok(Searcher { advisor: self, target, machine: self.machine(target)? })
    }
}

/// A search on one target.
struct Searcher<'s> {
    advisor: &'s Advisor<'s>,
    target: &'s Target,
    machine: Option<Machine>,
}

impl Searcher<'_> {
    fn search(&self) -> Search<'_> {
        Search {
            target: self.target,
            rates: &self.advisor.rates,
            machine: self.machine.as_ref(),
            may_split: self.advisor.tolerance() >= Tolerance::Rounding,
            top: usize::from(self.advisor.args.top.max(self.advisor.args.verify.unwrap_or(1))),
        }
    }

    /// A run without one of its keys, with as many micro-batches.
    fn without(&self, best: &Found, key: usize) -> Result<Option<Found>, Failure> {
        let keys = [&best.keys[..key], &best.keys[key + 1..]].concat();
        let Some(trial) = self.advisor.expanded(vec![keys])?.into_iter().next() else { return Ok(None) };
        let config = with_micro_batches(&trial.config, best.config.strategy.accumulate);
        self.search().found(trial.keys, config).map_err(Failure::machine)
    }
}
