//! The arguments and files that `sweep`, `plan` and `explain` share, read and checked before anything is written or run.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::data_sets::DataSets;
use super::failure::Failure;
use super::files;
use super::framework::shown_for;
use super::messages;
use super::target;
use super::torch;
use base::units::Bytes;
use device::{DetectError, Detected, DeviceChoice, DeviceKind, Limits, Target};
use plan::{Experiment, Plan, PlannedRun, Point, Purpose};
use spec::{Described, Framework, NodeRates, RunConfig};

/// The experiments, and the command line's overrides.
#[derive(Debug, clap::Args)]
pub(super) struct InputArgs {
    /// Experiment files, or patterns such as 'experiments/*.toml'
    #[arg(required = true, value_name = "FILES")]
    files: Vec<String>,
    /// Override a key of every experiment, such as train.seed=1
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    machine: MachineArgs,
}

/// The machine and its limits.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct MachineArgs {
    /// The device: cpu, cuda, cuda:N, or auto (CUDA if available, else the CPU)
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// Limit the device's memory, such as 16GiB
    #[arg(long, value_name = "SIZE", value_parser = some_memory, allow_hyphen_values = true)]
    memory: Option<Bytes>,
    /// Limit the host memory of offloaded and placed values, such as 64GiB
    #[arg(long, value_name = "SIZE", value_parser = some_memory, allow_hyphen_values = true)]
    host_memory: Option<Bytes>,
}

fn some_memory(text: &str) -> Result<Bytes, String> {
    let memory: Bytes = text.parse()?;
    if memory > Bytes(0) { Ok(memory) } else { Err("the limit must be above 0".to_owned()) }
}

/// The checked inputs of a command.
pub(super) struct Inputs {
    pub(super) plans: Vec<Plan>,
    /// Inspected data, to be cached once the results folder exists.
    pub(super) data: Arc<DataSets>,
    /// The machine's own memory, if known.
    pub(super) memory: Option<Bytes>,
    /// The rates of the host and the link that a target file states.
    pub(super) node: NodeRates,
    /// Notes about the device, a line each.
    pub(super) notes: Vec<String>,
    /// Missing data, a line per experiment.
    pub(super) absent: Vec<String>,
}

impl Inputs {
    /// The runs of all plans.
    pub(super) fn runs(&self) -> impl Iterator<Item = &PlannedRun> {
        self.plans.iter().flat_map(|plan| &plan.runs)
    }
}

impl InputArgs {
    pub(super) fn new(files: Vec<String>, set: Vec<String>, machine: MachineArgs) -> InputArgs {
        InputArgs { files, set, machine }
    }

    /// The device to train on.
    pub(super) fn device(&self) -> DeviceChoice {
        self.machine.device
    }

    /// The machine and its limits.
    pub(super) fn machine(&self) -> MachineArgs {
        self.machine
    }

    pub(super) fn set_machine(&mut self, machine: MachineArgs) {
        self.machine = machine;
    }

    /// The command line's `--set` overrides.
    pub(super) fn settings(&self) -> &[String] {
        &self.set
    }

    /// The options of the machine's limits and overrides, for the command line of another process on a device of this kind.
    pub(super) fn options(&self, kind: DeviceKind) -> Vec<String> {
        let device = match kind {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
        };
        let mut options = vec!["--device".to_owned(), device.to_owned()];
        let limits =
            [("--memory", self.machine.memory), ("--host-memory", self.machine.host_memory)].into_iter();
        let limits = limits.filter_map(|(name, limit)| Some((name, limit?.exact().replace(' ', ""))));
        options.extend(limits.flat_map(|(name, limit)| [name.to_owned(), limit]));
        options.extend(self.set.iter().flat_map(|setting| ["--set".to_owned(), setting.clone()]));
        options
    }

    /// Adds an override.
    pub(super) fn set(&mut self, setting: String) {
        self.set.push(setting);
    }

    /// Whether there are overrides.
    pub(super) fn changes(&self) -> bool {
        !self.set.is_empty()
    }

    /// As `read_shown`, for commands that show no memory, or this program's only.
    pub(super) fn read(
        &self,
        purpose: Purpose,
        out: &Path,
        target: Option<&Path>,
        is_wanted: impl Fn(&Point) -> bool,
    ) -> Result<Inputs, Failure> {
        let framework = |_: &Target, _| Ok(Framework::Runner);
        let experiments = self.experiments(&is_wanted)?;
        single(self.machine.plan(experiments, purpose, out, target.as_slice(), &framework, is_wanted)?)
    }

    /// Reads and checks all files, with the data digests cached in the results folder `out`. A `target`, the name of a known
    /// card or a target file, replaces this machine. Strategies that are invalid at every point are mistakes if one of
    /// their points is wanted, else their runs are skipped. `framework` replaces the experiments' choice of whose memory is
    /// shown.
    pub(super) fn read_shown(
        &self,
        purpose: Purpose,
        out: &Path,
        target: Option<&Path>,
        framework: Option<Framework>,
        is_wanted: impl Fn(&Point) -> bool,
    ) -> Result<Inputs, Failure> {
        let framework = |target: &Target, of_experiment| shown_for(target, framework, of_experiment);
        let experiments = self.experiments(&is_wanted)?;
        single(self.machine.plan(experiments, purpose, out, target.as_slice(), &framework, is_wanted)?)
    }

    /// As `read_shown`, for each of several targets. If this program does not run on one of them, PyTorch's memory is shown
    /// for all.
    pub(super) fn read_each(
        &self,
        out: &Path,
        targets: &[&Path],
        framework: Option<Framework>,
        is_wanted: impl Fn(&Point) -> bool,
    ) -> Result<Vec<Inputs>, Failure> {
        let described = targets.iter().map(|target| target::find(target)).collect::<Result<Vec<_>, _>>()?;
        let old = described.iter().map(|described| &described.target).find(|target| target.is_too_old());
        let shown =
            |target: &Target, of_experiment| shown_for(old.unwrap_or(target), framework, of_experiment);
        let experiments = self.experiments(&is_wanted)?;
        self.machine.plan(experiments, Purpose::Predict, out, targets, &shown, is_wanted)
    }

    fn experiments(&self, is_wanted: impl Fn(&Point) -> bool) -> Result<Vec<Experiment>, Failure> {
        files::expand_all(&self.files, &self.set, is_wanted)
    }
}

impl MachineArgs {
    /// Skips the runs for whose ranks this machine lacks cards.
    fn skip_without_cards(&self, experiment: &mut Experiment) {
        // By number of ranks: each check asks the driver.
        let mut reasons: HashMap<usize, Option<String>> = HashMap::new();
        for point in &mut experiment.points {
            let ranks = point.config.as_ref().map_or(1, RunConfig::ranks);
            if ranks == 1 {
                continue;
            }
            let check = || device::check_ranks(self.device.ordinal(), ranks).err();
            let reason = reasons.entry(ranks).or_insert_with(|| check().map(|reason| reason.to_string()));
            if let Some(reason) = reason {
                point.config = Err(reason.clone());
            }
        }
    }

    pub(super) fn limits(&self) -> Limits {
        Limits { memory: self.memory, host_memory: self.host_memory }
    }

    /// Checks the data of experiments, and plans them for each target; for this machine, if there is none.
    pub(super) fn plan(
        &self,
        experiments: Vec<Experiment>,
        purpose: Purpose,
        out: &Path,
        targets: &[&Path],
        framework: &dyn Fn(&Target, Framework) -> Result<Framework, Failure>,
        is_wanted: impl Fn(&Point) -> bool,
    ) -> Result<Vec<Inputs>, Failure> {
        let described = targets.iter().map(|target| target::find(target)).collect::<Result<Vec<_>, _>>()?;
        let unread = experiments.iter().map(|experiment| match purpose {
            Purpose::Train => experiment.check_unread(&is_wanted).map_err(Failure::input),
            Purpose::Predict => Ok(()),
        });
        Failure::collect(unread)?;
        experiments.iter().for_each(|experiment| messages::unread(experiment, &is_wanted));
        let mut data = DataSets::new(out);
        let absent = Failure::collect(experiments.iter().map(|experiment| match purpose {
            Purpose::Train => data.check(experiment).map(|()| None),
            Purpose::Predict => data.check_what_is_here(experiment),
        }))?;
        let absent: Vec<String> = absent.into_iter().flatten().collect();
        messages::data_warnings(&data.notes(&experiments));
        // Once for all experiments: measuring a card's context takes another process.
        let machines = match described.is_empty() {
            true => vec![Machine::Found(device::find(self.device).map_err(Failure::input)?)],
            false => described.into_iter().map(Machine::Described).collect(),
        };
        let data = Arc::new(data);
        let inputs = |machine: Machine| {
            let plan = |mut experiment: Experiment| {
                experiment.set_data_properties(|config| data.describe(config));
                let limits = self.limits().or(experiment.limits);
                let target = machine.target(limits).map_err(Failure::input)?;
                experiment.plan.framework = framework(&target, experiment.plan.framework)?;
                if experiment.plan.framework == Framework::Pytorch {
                    torch::machine(&target, experiment.plan)?;
                }
                if purpose == Purpose::Train && target.kind == DeviceKind::Cuda {
                    self.skip_without_cards(&mut experiment);
                }
                Ok(plan::plan(experiment, &target, purpose, &|config| data.digest(config))?)
            };
            let plans = experiments.iter().cloned().map(plan).collect::<Result<Vec<Plan>, Failure>>()?;
            Ok(Inputs {
                plans,
                data: Arc::clone(&data),
                memory: machine.memory(),
                node: machine.node(),
                notes: machine.notes(),
                absent: absent.clone(),
            })
        };
        machines.into_iter().map(inputs).collect()
    }
}

/// The inputs for one target.
fn single(inputs: Vec<Inputs>) -> Result<Inputs, Failure> {
    inputs.into_iter().next().ok_or_else(|| Failure::machine("there is no target"))
}

/// The machine to plan for.
enum Machine {
    /// From a target file or a known card.
    Described(Described),
    /// This machine.
    Found(Detected),
}

impl Machine {
    /// With the memory limit of the command line, else of the experiment, else the machine's own memory.
    fn target(&self, limits: Limits) -> Result<Target, DetectError> {
        match self {
            Machine::Found(detected) => detected.target(limits),
            Machine::Described(described) => Ok(described.target.clone().limited_to(limits)),
        }
    }

    /// The machine's own memory, without limits.
    fn memory(&self) -> Option<Bytes> {
        self.target(Limits::default()).ok().filter(|target| !target.limited).map(|target| target.memory)
    }

    fn node(&self) -> NodeRates {
        match self {
            Machine::Described(described) => described.node,
            Machine::Found(_) => NodeRates::default(),
        }
    }

    fn notes(self) -> Vec<String> {
        match self {
            Machine::Found(detected) => detected.notes,
            Machine::Described(described) => target::notes(&described),
        }
    }
}
