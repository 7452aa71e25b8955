//! Everything that the user wrote, read and checked before anything is written or run.

use std::collections::HashSet;

use super::Args;
use crate::cli::data_sets::DataSets;
use crate::cli::failure::Failure;
use crate::cli::files;
use crate::device;
use crate::plan::{self, Experiment, Plan};

/// What the arguments and files amount to.
pub(super) struct Inputs {
    pub(super) plans: Vec<Plan>,
    /// What was learnt of the data, to be kept once the results' folder is there.
    pub(super) data: DataSets,
}

/// Reads all files. Every file's problems are found, not only those of the first.
pub(super) fn read(args: &Args) -> Result<Inputs, Failure> {
    let experiments = files::expand_all(&args.files, &args.set)?;
    let mut data = DataSets::new(&args.out);
    Failure::collect(experiments.iter().map(|experiment| data.check(experiment)))?;
    let plans = experiments.into_iter().map(|experiment| plan(args, experiment, &data));
    let plans = plans.collect::<Result<Vec<Plan>, Failure>>()?;
    check_filter(args, &plans)?;
    Ok(Inputs { plans, data })
}

fn plan(args: &Args, experiment: Experiment, data: &DataSets) -> Result<Plan, Failure> {
    // The command line wins.
    let memory = args.memory.or(experiment.memory);
    let target = device::detect(args.device, memory).map_err(Failure::input)?;
    let mut plan = plan::plan(experiment, &target, |config| data.digest(config));
    if let Some(repeats) = args.repeats {
        plan.repeats = repeats as usize;
    }
    Ok(plan)
}

/// A filter that lets nothing through is a mistake.
fn check_filter(args: &Args, plans: &[Plan]) -> Result<(), Failure> {
    let Some(filter) = &args.filter else {
        return Ok(());
    };
    let mut seen = HashSet::new();
    let labels = plans.iter().flat_map(|plan| &plan.runs).map(|run| run.strategy.as_str());
    let labels: Vec<&str> = labels.filter(|label| seen.insert(*label)).collect();
    if labels.iter().any(|label| filter.matches(label)) {
        return Ok(());
    }
    Err(Failure::input(format!("no strategy matches --filter {filter}; there are: {}", labels.join(", "))))
}
