//! Sentences about PyTorch's memory.

use std::collections::BTreeMap;

use super::failure::Failure;
use super::run_selector::title;
use base::units::Bytes;
use device::{Role, Target};
use plan::{Plan, PlannedRun, TorchForecast, torch_machine};
use pytorch::{Forecast, LivePeak, Machine, Purpose};
use spec::{PlanKeys, Recompute, RunConfig};

/// The smallest ratio whose cause is stated.
const NOTABLE: f64 = 1.05;

/// For targets that are not known cards.
const OTHER_FIGURES: &str = "These figures are this program's memory. PyTorch needs a different amount for the same \
                             training: `--target` with a card that `devices --targets` lists predicts it.";

/// What the figures of several ranks leave out.
const OF_RANKS: &str = "PyTorch's memory on several ranks is that of the first one. It leaves out what NCCL takes outside PyTorch's \
                        allocator; memory limits have room for it.";

/// What the figures of a run leave out, if it has several ranks that train.
pub(super) fn of_ranks(config: &RunConfig) -> Option<&'static str> {
    (config.ranks() > 1 && config.trains()).then_some(OF_RANKS)
}

/// The card of a target as PyTorch uses it.
///
/// # Errors
/// PyTorch's memory is not predicted for the target.
pub(super) fn machine(target: &Target, keys: PlanKeys) -> Result<Machine, Failure> {
    torch_machine(target, keys).ok_or_else(|| {
        Failure::input(format!(
            "PyTorch's memory is not predicted for {}\n = help: give `--target` with a card that `devices --targets` \
             lists, of a compute capability below 12.0, or add `--as runner`",
            target.name
        ))
    })
}

/// A run that is predicted for PyTorch.
struct Predicted<'a> {
    run: &'a PlannedRun,
    config: &'a RunConfig,
    torch: &'a TorchForecast,
    machine: Machine,
    keys: PlanKeys,
    /// PyTorch's memory over this program's.
    ratio: f64,
}

fn predicted(plans: &[Plan], is_shown: impl Fn(&PlannedRun) -> bool) -> Vec<Predicted<'_>> {
    let of_run =
        |plan: &'_ Plan, config: &RunConfig| torch_machine(&plan.target.of_rank(config.ranks()), plan.keys);
    let all = plans.iter().flat_map(|plan| plan.runs.iter().map(move |run| (plan, run)));
    all.filter(|(_, run)| is_shown(run))
        .filter_map(|(plan, run)| {
            let (config, torch) = (run.config.as_ref().ok()?, run.torch.as_ref()?.as_ref().ok()?);
            let ours = run.prediction.as_ref()?.device.steady_peak().live.total();
            let ratio = torch.memory.peak().allocated as f64 / ours.max(1) as f64;
            Some(Predicted { run, config, torch, machine: of_run(plan, config)?, keys: plan.keys, ratio })
        })
        .collect()
}

/// The ratio of PyTorch's memory to this program's, its cause in the run where it is largest, and the runs without a
/// prediction; of the runs in the table.
pub(super) fn summary(plans: &[Plan], is_shown: impl Fn(&PlannedRun) -> bool) -> String {
    let all = predicted(plans, &is_shown);
    let mut sentences = Vec::new();
    if let Some(most) = all.iter().rev().max_by(|one, other| one.ratio.total_cmp(&other.ratio)) {
        let least = all.iter().map(|one| one.ratio).fold(f64::MAX, f64::min);
        let [least, largest] = [least, most.ratio].map(|ratio| format!("{ratio:.1}"));
        let range = if least == largest { largest } else { format!("{least} to {largest}") };
        let cause = cause(most)
            .filter(|_| most.ratio >= NOTABLE)
            .map(|cause| format!(", most for {}: {cause}", most.run.strategy));
        let cause = cause.unwrap_or_default();
        let program = most.keys.torch_program(Some(most.config));
        sentences.push(format!("{program} needs {range} times this program's memory{cause}."));
        sentences.push(format!("PyTorch's peak of {}: {}.", most.run.strategy, peak(&most.torch.memory)));
    }
    let reasons = not_predicted(plans.iter().flat_map(|plan| &plan.runs).filter(|run| is_shown(run)));
    if !reasons.is_empty() {
        sentences.push(format!("Not predicted: {}.", reasons.join("; ")));
    }
    if sentences.is_empty() {
        sentences.push(OTHER_FIGURES.to_owned());
    }
    sentences.join("\n")
}

/// What lives at the peak of the run in the table that needs the most memory in PyTorch, and what lowers it.
pub(super) fn explained(plans: &[Plan], is_shown: impl Fn(&PlannedRun) -> bool) -> String {
    let all = predicted(plans, is_shown);
    let of_ranks = all.iter().find_map(|one| of_ranks(one.config));
    let Some(most) = all.iter().rev().max_by_key(|one| one.torch.memory.peak().allocated) else {
        return String::new();
    };
    let mut sentences = vec![format!("The peak of {}: {}.", title(most.run), peak(&most.torch.memory))];
    if let Ok(live) = most.machine.run(most.config).map(|run| run.live_at_peak()) {
        let largest = most.torch.memory.at_peak.iter().max_by_key(|(_, bytes)| *bytes);
        let copies = copies(&live, most.config).map(|(text, _)| text);
        let saving = largest.and_then(|(purpose, _)| saving(most, *purpose));
        let parts: Vec<String> = copies.into_iter().chain(saving).collect();
        if !parts.is_empty() {
            sentences.push(format!("In it: {}.", parts.join("; ")));
        }
    }
    let runs = || plans.iter().flat_map(|plan| plan.runs.iter().enumerate());
    let is_unique = runs().filter(|(_, run)| run.strategy == most.run.strategy).count() == 1;
    let number = runs().find(|(_, run)| std::ptr::eq(*run, most.run)).map_or(0, |(index, _)| index + 1);
    let name = if is_unique { most.run.strategy.clone() } else { number.to_string() };
    sentences.push(format!("`runner explain --run {name} --as pytorch` lists what lowers it."));
    sentences.extend(of_ranks.map(str::to_owned));
    sentences.join("\n")
}

/// The peak of one run, or why it is not predicted.
pub(super) fn sentence(torch: &Result<TorchForecast, String>, program: &str) -> String {
    match torch {
        Ok(torch) => format!("the peak in {program}: {}", peak(&torch.memory)),
        Err(reason) => format!("the peak in {program} is not predicted: {reason}"),
    }
}

/// What lives at PyTorch's peak, largest first: `26.3 GiB in backward: logits and loss 18.4, activations 6.1`.
fn peak(memory: &Forecast) -> String {
    let mut live: Vec<_> = memory.at_peak.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
    live.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let live: Vec<String> =
        live.into_iter().map(|(purpose, bytes)| format!("{} {}", purpose.name(), Bytes(bytes))).collect();
    format!("{} in {}: {}", Bytes(memory.peak().allocated), memory.phase.name(), live.join(", "))
}

/// What makes PyTorch's peak larger than this program's: the role with the largest excess, and a change that lowers it.
fn cause(one: &Predicted<'_>) -> Option<String> {
    const ROLES: [(Role, &str, &[Purpose]); 8] = [
        (Role::Activation, "activations, logits and loss", &[Purpose::Activation, Purpose::Loss]),
        (Role::Parameter, "parameters", &[Purpose::Parameter]),
        (Role::MasterWeight, "master weights", &[Purpose::MasterWeight]),
        (Role::Gradient, "gradients", &[Purpose::Gradient]),
        (Role::Optimizer, "optimizer states", &[Purpose::OptimizerState]),
        (Role::Cast, "casts of parameters", &[Purpose::Cast]),
        (Role::Workspace, "workspaces", &[Purpose::Workspace]),
        (Role::Communication, "communication buffers", &[Purpose::Communication]),
    ];
    let ours = one.run.prediction.as_ref()?.device.steady_peak().live;
    let bytes = |wanted: &[Purpose]| -> u64 {
        let live = one.torch.memory.at_peak.iter().filter(|(purpose, _)| wanted.contains(purpose));
        live.map(|(_, bytes)| bytes).sum()
    };
    let excess = |(role, _, purposes): &(Role, &str, &[Purpose])| bytes(purposes).saturating_sub(ours[*role]);
    let (role, name, purposes) = ROLES.into_iter().max_by_key(excess).filter(|role| excess(role) > 0)?;
    let largest = *purposes.iter().max_by_key(|purpose| bytes(&[**purpose]))?;
    let copies = || {
        let live = one.machine.run(one.config).ok()?.live_at_peak();
        copies(&live, one.config)
            .filter(|(_, total)| *total > bytes(&[Purpose::Loss]) / 2)
            .map(|(text, _)| text)
    };
    let text = (largest == Purpose::Loss).then(copies).flatten();
    let text =
        text.unwrap_or_else(|| format!("{name} {}, here {}", Bytes(bytes(purposes)), Bytes(ours[role])));
    Some([Some(text), saving(one, largest)].into_iter().flatten().collect::<Vec<_>>().join("; "))
}

/// `three fp32 copies of the logits, 18.4 GiB`, with the bytes.
pub(super) fn copies(live: &LivePeak, config: &RunConfig) -> Option<(String, u64)> {
    let copies = live.logit_copies();
    let total: u64 = copies.iter().map(|copies| copies.total).sum();
    let text = copies.iter().map(|copies| {
        let dtype = match copies.element {
            4 => "fp32",
            _ => config.strategy.precision.name(),
        };
        let many = if copies.count == 1 { "copy" } else { "copies" };
        format!("{} {dtype} {many}", number(copies.count))
    });
    let text = text.collect::<Vec<_>>().join(" and ");
    (total > 0).then(|| (format!("{text} of the logits, {}", Bytes(total)), total))
}

fn number(count: usize) -> String {
    const WORDS: [&str; 9] = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    WORDS.get(count.wrapping_sub(1)).map_or_else(|| count.to_string(), |word| (*word).to_owned())
}

/// A change against this part of the peak, and its predicted saving: `` `loss_chunks = 8` saves 12.3 GiB there ``.
fn saving(one: &Predicted<'_>, purpose: Purpose) -> Option<String> {
    let mut changed = one.config.clone();
    let strategy = &mut changed.strategy;
    let setting = match purpose {
        Purpose::Loss => {
            strategy.loss_chunks = 8.max(2 * strategy.loss_chunks);
            format!("loss_chunks = {}", strategy.loss_chunks)
        }
        Purpose::Activation if strategy.recompute == Recompute::None => {
            strategy.recompute = Recompute::Block;
            "recompute = \"block\"".to_owned()
        }
        _ => return None,
    };
    let lower = one.machine.run(&changed).ok()?.forecast().peak().allocated;
    let saved = one.torch.memory.peak().allocated.checked_sub(lower).filter(|bytes| *bytes > 0)?;
    Some(format!("`{setting}` saves {} there", Bytes(saved)))
}

/// Runs without a prediction by reason: `graph (CUDA graphs)`.
pub(super) fn not_predicted<'a>(runs: impl Iterator<Item = &'a PlannedRun>) -> Vec<String> {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for run in runs {
        if let Some(Err(reason)) = &run.torch {
            let strategies = by_reason.entry(reason).or_default();
            if !strategies.contains(&run.strategy.as_str()) {
                strategies.push(&run.strategy);
            }
        }
    }
    by_reason
        .into_iter()
        .map(|(reason, strategies)| format!("{} ({reason})", strategies.join(", ")))
        .collect()
}
