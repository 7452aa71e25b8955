//! `plan` with several targets: side by side.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::Args;
use crate::failure::{ExitStatus, Failure};
use crate::inputs::Inputs;
use crate::{framework, messages, output, table, target, torch};
use compare::Options;
use plan::{Plan, PlannedRun};
use results::Row;

pub(super) fn run(mut args: Args) -> Result<ExitStatus, Failure> {
    let targets: Vec<&Path> = args.target.iter().map(AsRef::as_ref).collect();
    let framework = args.framework.framework();
    let inputs = args.inputs.read_each(&args.out, &targets, framework, |point| args.filter.names(point))?;
    let names: Vec<String> = targets.iter().map(|written| target::name(written)).collect();
    if let Some((at, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        return Err(Failure::input(format!(
            "`--target {}` repeats the target {name}\n = help: give each target once",
            targets[at].display()
        )));
    }
    for (name, inputs) in names.iter().zip(&inputs) {
        args.filter.resolve(&inputs.plans)?;
        let notes = inputs.notes.iter().map(|note| format!("{name}: {note}"));
        notes.for_each(|note| output::mention(&note));
    }
    if args.table.is_for_programs() {
        check_devices_differ(&names, &inputs)?;
    }
    inputs.first().into_iter().for_each(|inputs| messages::absent(inputs, args.table.is_for_programs()));
    let all = || inputs.iter().flat_map(|inputs| &inputs.plans);
    let pytorch = framework::pytorch(&all().cloned().collect::<Vec<Plan>>())?;
    // A link must have an effect on one of the targets at least.
    let checks = inputs.iter().map(|inputs| super::check_link(&args, inputs, pytorch.is_some()));
    checks.reduce(Result::or).unwrap_or(Ok(()))?;
    let machines: Vec<(String, Vec<Row>)> = names
        .into_iter()
        .zip(&inputs)
        .map(|(name, inputs)| (name, args.rows(inputs, pytorch.is_some()).0))
        .collect();
    let memory = |(name, inputs): (&(String, _), &Inputs)| {
        let target = inputs.plans.first().map(|plan| &plan.target)?;
        let limited = if target.limited { "limited to " } else { "" };
        Some(format!("{} {limited}{}", name.0, target.memory))
    };
    let sizes: Vec<String> = machines.iter().zip(&inputs).filter_map(memory).collect();
    let say = if args.table.is_for_programs() { output::mention } else { output::say };
    say(&format!("targets: {}", sizes.join(", ")));
    let cautions = cautions(&machines, &inputs);
    if !args.table.is_for_programs() {
        cautions.iter().for_each(|caution| say(caution));
    }
    // Rows for programs have all of them, since the caution is of the table.
    let caution = Some(cautions.join("; ")).filter(|text| args.table.is_for_programs() && !text.is_empty());
    let options = Options { caution, pytorch, ..args.table.options(None) };
    let tables =
        compare::render_side_by_side(&machines, &options, args.table.format).map_err(Failure::input)?;
    if !args.table.is_for_programs() {
        output::print("\n")?;
    }
    table::print(&tables)?;
    if let Some(plan) = all().find(|plan| plan.target.is_too_old()) {
        let (name, why) = (&plan.target.name, framework::too_old(&plan.target));
        say(&format!("All figures are PyTorch's, because of {name}: {why}."));
    }
    for ((name, rows), inputs) in machines.iter().zip(&inputs) {
        let shown: HashSet<(&str, &[(String, String)])> =
            rows.iter().map(|row| (row.strategy.as_str(), row.axes.as_slice())).collect();
        let is_shown = |run: &PlannedRun| shown.contains(&(run.strategy.as_str(), run.axes.as_slice()));
        let runs = inputs.plans.iter().flat_map(|plan| &plan.runs).filter(|run| is_shown(run));
        let reasons = torch::not_predicted(runs);
        if !reasons.is_empty() {
            say(&format!("Not predicted on {name}: {}.", reasons.join("; ")));
        }
    }
    Ok(ExitStatus::Complete)
}

/// The cautions about the targets' figures, each with the names of its targets.
fn cautions(machines: &[(String, Vec<Row>)], inputs: &[Inputs]) -> Vec<String> {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    for ((name, rows), inputs) in machines.iter().zip(inputs) {
        let Some(target) = inputs.plans.first().map(|plan| &plan.target) else { continue };
        let has_ranks = rows.iter().any(|row| row.ranks.is_some());
        let of_ranks = messages::communicator(target).filter(|_| has_ranks);
        for caution in target.figures.caution().map(str::to_owned).into_iter().chain(of_ranks) {
            match found.iter_mut().find(|(known, _)| *known == caution) {
                Some((_, names)) => names.push(name),
                None => found.push((caution, vec![name])),
            }
        }
    }
    let each = |names: &[&str]| if names.len() > 1 { "each " } else { "" };
    found
        .into_iter()
        .map(|(caution, names)| format!("{}: {}{caution}", names.join(", "), each(&names)))
        .collect()
}

/// Rows are told apart by their device alone.
fn check_devices_differ(names: &[String], inputs: &[Inputs]) -> Result<(), Failure> {
    let mut known: HashMap<&String, &String> = HashMap::new();
    let targets = names.iter().zip(inputs);
    for (name, plan) in targets.filter_map(|(name, inputs)| Some((name, inputs.plans.first()?))) {
        let device = &plan.target.name;
        if let Some(first) = known.insert(device, name) {
            return Err(Failure::input(format!(
                "the rows of the targets {first} and {name} could not be told apart: both are of {device}\n = help: \
                 plan for them one at a time, or print a table"
            )));
        }
    }
    Ok(())
}
