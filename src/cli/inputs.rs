//! Everything that the user wrote, read and checked before anything is written or run: what `sweep`, `plan` and
//! `explain` have in common.

use std::path::Path;

use super::data_sets::DataSets;
use super::failure::Failure;
use super::files;
use super::target;
use base::units::Bytes;
use device::{DetectError, Detected, DeviceChoice, Limits, Target};
use plan::{Experiment, Plan, PlanError, Purpose};
use spec::Described;

/// Which experiments, and what of them the command line changes.
#[derive(Debug, clap::Args)]
pub(super) struct InputArgs {
    /// Experiment files, or patterns such as 'experiments/*.toml'
    #[arg(required = true, value_name = "FILES")]
    files: Vec<String>,
    /// Change a key of every experiment, such as train.seed=1
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where to train; `auto` takes a CUDA device if there is one
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// Behave like a device with this much memory, such as 16GiB
    #[arg(long, value_name = "SIZE", value_parser = some_memory)]
    memory: Option<Bytes>,
    /// Behave as if the host had this much memory for what is kept there, such as 64GiB
    #[arg(long, value_name = "SIZE", value_parser = some_memory)]
    host_memory: Option<Bytes>,
}

fn some_memory(text: &str) -> Result<Bytes, String> {
    let memory: Bytes = text.parse()?;
    if memory > Bytes(0) {
        Ok(memory)
    } else {
        Err("there is nothing to plan for without any memory".to_owned())
    }
}

/// What the arguments and files amount to.
pub(super) struct Inputs {
    pub(super) plans: Vec<Plan>,
    /// What was learnt of the data, to be kept once the results' folder is there.
    pub(super) data: DataSets,
    /// What the machine itself has, where that is known.
    pub(super) memory: Option<Bytes>,
    /// What there is to know of the device, a line each.
    pub(super) notes: Vec<String>,
    /// Which data is not here, a line for each experiment.
    pub(super) absent: Vec<String>,
}

impl InputArgs {
    /// Where to train.
    pub(super) fn device(&self) -> DeviceChoice {
        self.device
    }

    fn limits(&self) -> Limits {
        Limits { memory: self.memory, host_memory: self.host_memory }
    }

    /// What the command line sets.
    pub(super) fn settings(&self) -> &[String] {
        &self.set
    }

    /// Whether they change the experiments.
    pub(super) fn changes(&self) -> bool {
        !self.set.is_empty()
    }

    /// Reads and checks all files. What is known of data already lies in the results' folder `out`. With a
    /// `target`, the name of a card or a file, plans for that machine.
    pub(super) fn read(
        &self,
        purpose: Purpose,
        out: &Path,
        target: Option<&Path>,
    ) -> Result<Inputs, Failure> {
        let described = target.map(target::find).transpose()?;
        let experiments = files::expand_all(&self.files, &self.set)?;
        let mut data = DataSets::new(out);
        let absent = Failure::collect(experiments.iter().map(|experiment| match purpose {
            Purpose::Train => data.check(experiment).map(|()| None),
            Purpose::Predict => data.check_what_is_here(experiment),
        }))?;
        // Once for all: what a card's context takes is found out by another process.
        let machine = match described {
            Some(described) => Machine::Described(described),
            None => Machine::Found(device::find(self.device).map_err(Failure::input)?),
        };
        let plan = |mut experiment: Experiment| {
            experiment.know_tokens(|config| data.tokens(config));
            let limits = self.limits().or(experiment.limits);
            let target = machine.target(limits).map_err(Failure::input)?;
            plan::plan(experiment, &target, purpose, &|config| data.digest(config)).map_err(|error| {
                match error {
                    PlanError::Violation { .. } => Failure::machine(error),
                    PlanError::InfeasibleBudget(_) => Failure::input(error),
                }
            })
        };
        let plans = experiments.into_iter().map(plan).collect::<Result<Vec<Plan>, Failure>>()?;
        let absent = absent.into_iter().flatten().collect();
        Ok(Inputs { plans, data, memory: machine.memory(), notes: machine.notes(), absent })
    }
}

/// What is planned for.
enum Machine {
    /// By a file, or as a known card.
    Described(Described),
    /// Here.
    Found(Detected),
}

impl Machine {
    /// With the memory that the command line or else the experiment allows, or with its own.
    fn target(&self, limits: Limits) -> Result<Target, DetectError> {
        match self {
            Machine::Found(detected) => detected.target(limits),
            Machine::Described(described) => Ok(described.target.clone().limited_to(limits)),
        }
    }

    /// Its own, which no limit changes.
    fn memory(&self) -> Option<Bytes> {
        self.target(Limits::default()).ok().filter(|target| !target.limited).map(|target| target.memory)
    }

    fn notes(self) -> Vec<String> {
        match self {
            Machine::Found(detected) => detected.notes,
            Machine::Described(described) => target::notes(&described),
        }
    }
}
