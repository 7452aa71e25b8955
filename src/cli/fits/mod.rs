//! `fits`: the memory remedies with which a model trains on a card.

mod candidates;
mod subject;
mod text;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::advise::planned_tables;
use super::failure::{ExitStatus, Failure};
use super::framework::FrameworkArgs;
use super::inputs::{Inputs, MachineArgs};
use super::{estimates, export, framework, output, target, terminal};
use ::plan::{Choice, Combination, DeviceRates, Experiment, Point, Purpose, catalogue, torch_machine};
use base::rates::BytesPerSecond;
use candidates::{Candidates, Decider};
use device::DeviceKind;
use spec::{Framework, NodeRates, TorchProgram};
use subject::Subject;
pub(super) use subject::{context_of, model_key};

/// Show which memory remedies let a model train on a card: alone and combined, in PyTorch and here
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A model that `models` lists, a model's folder or config.json, or an experiment, of which everything but the
    /// strategies is used
    #[arg(value_name = "MODEL|FILE")]
    model: String,
    /// Tokens of each sample of a model; default: its context, at most 2048
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    /// Samples of each micro-batch of a model
    #[arg(long, value_name = "SAMPLES")]
    batch: Option<usize>,
    /// The card: one that `devices --targets` lists, or a target file; several times: one after the other. Default: this
    /// machine
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "device")]
    target: Vec<PathBuf>,
    /// Cards that train together, each on its own micro-batch: adds remedies that divide the model among them
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    cards: u16,
    #[command(flatten)]
    framework: FrameworkArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// Override a key, such as train.optimizer.adamw.lr=1e-5
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Rate of the link between the card and its host, per direction, such as 25GB/s
    #[arg(long, value_name = "RATE")]
    link: Option<BytesPerSecond>,
    /// Write the listed strategies as an experiment to this file
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Results folder: supplies a device's measured rates for time estimates
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
}

/// How combinations are planned, whatever they are planned for.
#[derive(Clone, Copy)]
pub(super) struct Planning<'a> {
    pub(super) framework: &'a FrameworkArgs,
    pub(super) machine: MachineArgs,
    /// The results folder.
    pub(super) out: &'a Path,
    /// Cards that train together.
    pub(super) cards: usize,
}

/// A combination to compare.
#[derive(Clone, Debug)]
pub(super) struct Proposal {
    pub(super) combination: Combination,
    /// The largest micro-batch that fits, if it is known.
    pub(super) largest: Option<usize>,
}

/// The combinations to compare in a generated experiment: the plain training, and the best combination of each training
/// for a target.
pub(super) fn proposed(
    name: &str,
    text: String,
    planning: Planning<'_>,
    target: Option<&Path>,
) -> Result<Vec<Proposal>, Failure> {
    let subject = Subject::generated(name, text);
    let planned = Planned::of(planning, &subject, target)?;
    let rates = planned.rates(planning.out, None);
    let candidates = planned.candidates(planning.framework, &rates)?;
    let mut proposed: Vec<Proposal> = Vec::new();
    for candidate in candidates.all.first().into_iter().chain(candidates.best_of_each_training()) {
        let largest = candidate.need(candidates.decider).and_then(|need| need.largest);
        if proposed.iter().all(|other| other.combination != *candidate.combination) {
            proposed.push(Proposal { combination: candidate.combination.clone(), largest });
        }
    }
    Ok(proposed)
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    let subject = Subject::find(&args)?;
    let targets: Vec<Option<&Path>> = match args.target.is_empty() {
        true => vec![None],
        false => args.target.iter().map(|target| Some(target.as_path())).collect(),
    };
    let width = terminal::text_width();
    let planning = Planning {
        framework: &args.framework,
        machine: args.machine,
        out: &args.out,
        cards: usize::from(args.cards),
    };
    let (mut listed, mut legend): (Vec<Combination>, Option<text::Legend>) = (Vec::new(), None);
    let mut tables = String::new();
    for target in targets {
        let planned = Planned::of(planning, &subject, target)?;
        let rates = planned.rates(&args.out, args.link);
        let candidates = planned.candidates(&args.framework, &rates)?;
        if legend.is_none() {
            output::print(&text::heading(&candidates, subject.name(), width))?;
        }
        output::print(&text::section(&candidates, width))?;
        legend.get_or_insert_default().add(&candidates, &planned.catalogue, &rates);
        tables = planned_tables(candidates.plan);
        for combination in candidates.shown() {
            if !listed.contains(combination) {
                listed.push(combination.clone());
            }
        }
    }
    output::print(&legend.unwrap_or_default().text(width))?;
    if let Some(file) = &args.write {
        if has_two_of_a_name(&listed) {
            return Err(Failure::input(
                "`--write` with cards that have bf16 and cards that have fp16 alone\n = help: write an experiment for each",
            ));
        }
        export::write(file, subject.written(&listed)? + &tables)?;
        output::mention(&format!("wrote {}", file.display()));
    }
    Ok(ExitStatus::Complete)
}

/// Whether combinations of one name have different keys.
fn has_two_of_a_name(combinations: &[Combination]) -> bool {
    let names: BTreeSet<String> = combinations.iter().map(Combination::name).collect();
    names.len() < combinations.len()
}

/// The combinations of the remedies, planned for one target.
struct Planned {
    catalogue: Vec<Choice>,
    combinations: Vec<Combination>,
    inputs: Inputs,
}

impl Planned {
    fn of(args: Planning<'_>, subject: &Subject, target: Option<&Path>) -> Result<Planned, Failure> {
        let described = target.map(target::find).transpose()?;
        let is_too_old = match &described {
            Some(described) => {
                // Fails for this program's memory of a card on which it does not run.
                framework::shown_for(&described.target, args.framework.framework(), Framework::Runner)?;
                described.target.is_too_old()
            }
            None => false,
        };
        let catalogue = catalogue(!is_too_old, args.cards);
        let alone = Combination::alone(&catalogue);
        let program = args.framework.program();
        let mut inputs = plan(args, subject, &alone, target, program)?;
        let has_reason = inputs.runs().any(|run| matches!(run.torch, Some(Err(_))));
        let program = match program {
            // Not every model has a class in the library.
            None if has_reason && !is_covered(&inputs) => Some(TorchProgram::Modules),
            _ => program,
        };
        if program != args.framework.program() {
            inputs = plan(args, subject, &alone, target, program)?;
        }
        // A CPU's device and host pools are one memory.
        let is_cpu = inputs.plans.iter().any(|plan| plan.target.kind == DeviceKind::Cpu);
        if is_cpu && args.cards > 1 {
            return Err(Failure::input(
                "`--cards` on a CPU\n = help: name a card with `--target`; `runner plan` compares ranks on a CPU",
            ));
        }
        let catalogue: Vec<Choice> =
            catalogue.into_iter().filter(|choice| !(is_cpu && choice.subject.is_offload())).collect();
        let mut combinations = Combination::alone(&catalogue);
        let all = Combination::all(&catalogue).into_iter().filter(|combination| !combination.is_alone());
        let all: Vec<Combination> = all.collect();
        // Combinations that cannot decide have no row.
        let decides = args.framework.framework() != Some(Framework::Runner) && is_covered(&inputs);
        let planned = inputs.plans.first().filter(|_| decides);
        let machine = planned.and_then(|plan| torch_machine(&plan.target, plan.keys));
        let experiment = subject.expand(&all.iter().map(Combination::table).collect::<String>())?;
        let is_usable = |point: &Point| {
            point
                .config
                .as_ref()
                .is_ok_and(|config| machine.as_ref().is_none_or(|machine| machine.may_cover(config)))
        };
        let usable = all.into_iter().zip(&experiment.points).filter(|(_, point)| is_usable(point));
        combinations.extend(usable.map(|(combination, _)| combination));
        let inputs = plan(args, subject, &combinations, target, program)?;
        Ok(Planned { catalogue, combinations, inputs })
    }

    /// The rates of the target, with the link's if it is stated.
    fn rates(&self, out: &Path, link: Option<BytesPerSecond>) -> DeviceRates {
        let stated = NodeRates { link, ..NodeRates::default() };
        let rates = estimates::rates(&self.inputs.plans, out, stated, self.inputs.node);
        rates.into_iter().next().unwrap_or_default()
    }

    fn candidates(&self, framework: &FrameworkArgs, rates: &DeviceRates) -> Result<Candidates<'_>, Failure> {
        let plan = self.inputs.plans.first().ok_or_else(|| Failure::machine("there is no plan"))?;
        if plan.target.is_too_old() && !is_covered(&self.inputs) {
            let reason = self.inputs.runs().find_map(|run| run.torch.as_ref()?.as_ref().err());
            let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            return Err(Failure::input(format!("nothing is predicted for {}{reason}", plan.target.name)));
        }
        let decider = match framework.framework() {
            Some(Framework::Pytorch) | None if is_covered(&self.inputs) => Decider::Pytorch,
            _ => Decider::Runner,
        };
        Ok(Candidates::of(plan, &self.combinations, rates, decider))
    }
}

/// Whether PyTorch's memory is predicted for any run.
fn is_covered(inputs: &Inputs) -> bool {
    inputs.runs().any(|run| matches!(run.torch, Some(Ok(_))))
}

/// Plans combinations, with another program of PyTorch than the experiment's if one is given.
fn plan(
    args: Planning<'_>,
    subject: &Subject,
    combinations: &[Combination],
    target: Option<&Path>,
    program: Option<TorchProgram>,
) -> Result<Inputs, Failure> {
    let tables: String = combinations.iter().map(Combination::table).collect();
    let mut experiment = subject.expand(&tables)?;
    if let Some(program) = program {
        experiment.plan.torch_options.program = program;
    }
    // Both programs' figures are shown. With PyTorch's alone, a plan would also search for sufficient limits.
    let framework = |_: &_, _| Ok(Framework::Runner);
    let (purpose, targets) = (Purpose::Predict, target.as_slice());
    check(&experiment)?;
    let inputs = args.machine.plan(vec![experiment], purpose, args.out, targets, &framework, |_| false)?;
    inputs.into_iter().next().ok_or_else(|| Failure::machine("there is no target"))
}

/// Fails if every run is invalid, or if the runs do not train.
fn check(experiment: &Experiment) -> Result<(), Failure> {
    let mut configs = experiment.points.iter().map(|point| point.config.as_ref());
    if let Some(Err(reason)) =
        configs.clone().find(Result::is_err).filter(|_| configs.clone().all(|one| one.is_err()))
    {
        return Err(Failure::input(format!("every run is invalid: {reason}")));
    }
    match configs.any(|config| config.is_ok_and(|config| !config.trains())) {
        true => Err(Failure::input("`fits` is for runs that train\n = help: use `runner plan`")),
        false => Ok(()),
    }
}
