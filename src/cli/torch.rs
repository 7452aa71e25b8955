//! Sentences about PyTorch's memory.

use std::collections::BTreeMap;

use super::terminal;
use base::units::Bytes;
use plan::{Plan, PlannedRun, TorchForecast};

/// For targets that are not known cards.
const OTHER_FIGURES: &str = "These figures are this program's memory. PyTorch needs a different amount for the same \
                             training: `--target` with a card that `devices --targets` lists predicts it.";

/// The ratio of PyTorch's memory to this program's, its cause in the run where it is largest, and the runs without a
/// prediction.
pub(super) fn summary(plans: &[Plan]) -> String {
    let runs = || plans.iter().flat_map(|plan| &plan.runs);
    let compared: Vec<(f64, &PlannedRun, &TorchForecast)> = runs().filter_map(compared).collect();
    let ratios = || compared.iter().map(|(ratio, ..)| *ratio);
    let mut sentences = Vec::new();
    if let Some((ratio, run, torch)) = compared.iter().rev().max_by(|one, other| one.0.total_cmp(&other.0)) {
        let least = ratios().fold(f64::MAX, f64::min);
        sentences.push(format!(
            "PyTorch needs {} this program's memory.",
            if format!("{least:.1}") == format!("{ratio:.1}") {
                format!("{ratio:.1} times")
            } else {
                format!("{least:.1} to {ratio:.1} times")
            }
        ));
        sentences.push(format!("PyTorch's peak of {}: {}.", run.strategy, peak(torch)));
    }
    let reasons = not_predicted(runs());
    if !reasons.is_empty() {
        sentences.push(format!("Not predicted: {}.", reasons.join("; ")));
    }
    if sentences.is_empty() {
        sentences.push(OTHER_FIGURES.to_owned());
    }
    wrapped(&sentences)
}

/// The peak of one run, or why it is not predicted.
pub(super) fn sentence(torch: &Result<TorchForecast, String>) -> String {
    wrapped(&[match torch {
        Ok(torch) => format!("PyTorch's peak: {}", peak(torch)),
        Err(reason) => format!("PyTorch's peak is not predicted: {reason}"),
    }])
}

fn wrapped(sentences: &[String]) -> String {
    let width = terminal::width().unwrap_or(compare::WIDTH);
    sentences.iter().map(|sentence| compare::wrap(sentence, width)).collect::<Vec<_>>().join("\n")
}

/// What lives at PyTorch's peak, largest first: `26.3 GiB in backward: logits and loss 18.4, activations 6.1`.
fn peak(torch: &TorchForecast) -> String {
    let memory = &torch.memory;
    let mut live: Vec<_> = memory.at_peak.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
    live.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let live: Vec<String> =
        live.into_iter().map(|(purpose, bytes)| format!("{} {}", purpose.name(), Bytes(bytes))).collect();
    format!("{} in {}: {}", Bytes(memory.peak().allocated), memory.phase.name(), live.join(", "))
}

fn compared(run: &PlannedRun) -> Option<(f64, &PlannedRun, &TorchForecast)> {
    let torch = run.torch.as_ref()?.as_ref().ok()?;
    let ours = run.prediction.as_ref()?.device.steady_peak().live.total();
    (ours > 0).then(|| (torch.memory.peak().allocated as f64 / ours as f64, run, torch))
}

/// Runs without a prediction by reason: `graph (CUDA graphs)`.
fn not_predicted<'a>(runs: impl Iterator<Item = &'a PlannedRun>) -> Vec<String> {
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
