//! `--as pytorch`: what lives at a run's peak in PyTorch, and changes that lower it.

use std::cmp::Reverse;
use std::fmt::Write as _;

use super::micro_batches;
use super::remedy;
use crate::failure::Failure;
use crate::run_selector::title;
use crate::torch;
use base::units::{Bytes, Count};
use plan::{Change, Plan, PlannedRun, torch_remedies};
use pytorch::{Fit, LiveGroup, LivePeak, Phase};
use spec::RunConfig;

/// The most lines per list.
const LARGEST: usize = 10;

/// The whole text.
///
/// # Errors
/// PyTorch's memory of the run is not predicted.
pub(super) fn text(
    plan: &Plan,
    run: &PlannedRun,
    config: &RunConfig,
    changes: Vec<Change>,
) -> Result<String, Failure> {
    let machine = torch::machine(&plan.target.of_rank(config.ranks()), plan.keys)?;
    let not_predicted = |reason| {
        Failure::input(format!(
            "PyTorch's memory of {} is not predicted: {reason}\n = help: `--as runner` explains this program's memory",
            run.strategy
        ))
    };
    let predicted = machine.run(config).map_err(not_predicted)?;
    let (forecast, live, smallest) =
        (predicted.forecast(), predicted.live_at_peak(), predicted.smallest_memory());
    let (peak, start) = (forecast.peak(), forecast.phase_peak(Phase::Start).unwrap_or_default());
    // Without its data a run has no id.
    let id = if run.id.is_empty() { String::new() } else { format!(" {}", run.id) };
    let mut out = format!("run{id}: {}\n", title(run));
    if let Some(prediction) = &run.prediction {
        let count = micro_batches(config.of_rank(0).micro_batches());
        let _ = writeln!(out, "{} parameters, {count}", Count(prediction.parameters));
    }
    let context = plan.target.of_rank(config.ranks()).context;
    let fit = match forecast.fit {
        Fit::Fits => format!("fits in {}", plan.target.memory),
        Fit::OnlyByRetrying => {
            format!(
                "fits in {} only because PyTorch returns cached memory and tries again",
                plan.target.memory
            )
        }
        Fit::Refused(refusal) => format!(
            "does not fit in {}: no room for {} in {} of step {}",
            plan.target.memory,
            refusal.purpose.name(),
            refusal.phase.name(),
            refusal.step
        ),
    };
    let managed = match predicted.managed() {
        0 => String::new(),
        bytes => format!("{} of optimizer states in managed memory, beside these peaks\n", Bytes(bytes)),
    };
    let of_ranks = torch::of_ranks(config).map(|sentence| format!("{sentence}\n")).unwrap_or_default();
    let _ = write!(
        out,
        "{}, predicted\n\
         peak {} allocated, {} reserved; start-up {}; first step {}\n\
         {of_ranks}{managed}{fit}\n\
         smallest sufficient limit {}, {context} of context included\n\n{}\n{}",
        plan.keys.torch_program(Some(config)),
        Bytes(peak.allocated),
        Bytes(peak.reserved),
        Bytes(start.allocated),
        Bytes(forecast.first_step.allocated),
        Bytes(smallest + context.0),
        live_text(&live, peak.allocated, config),
        remedy::pytorch_text(&torch_remedies(&forecast, changes, &machine), &forecast),
    );
    Ok(out)
}

/// The live requests by role, by the phase that made them, and by size.
fn live_text(live: &LivePeak, peak: u64, config: &RunConfig) -> String {
    let mut out = format!("live at the peak, {}: {}\n", Bytes(peak), live.phase.name());
    let requested: u64 = live.groups.iter().map(LiveGroup::total).sum();
    let rounding = peak.saturating_sub(requested);
    let mut by_role = sums(&live.groups, |group| group.purpose.name());
    by_role.extend((rounding > 0).then_some(("rounding and remainders of blocks", rounding)));
    let by_phase = sums(&live.groups, |group| group.phase.name());
    for (title, parts) in [("by role", by_role), ("by the phase that requested it", by_phase)] {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "  {title}");
        for (name, bytes) in parts {
            out.push_str(&line(bytes, peak, name));
        }
    }
    let _ = writeln!(out, "  by request");
    for group in live.groups.iter().take(LARGEST) {
        let LiveGroup { purpose, bytes, phase, count } = group;
        let each = if *count > 1 { format!(", {count} of {}", Bytes(*bytes)) } else { String::new() };
        out.push_str(&line(group.total(), peak, &format!("{}{each}, from {}", purpose.name(), phase.name())));
    }
    if let Some(rest) = live.groups.get(LARGEST..).filter(|rest| !rest.is_empty()) {
        let bytes = rest.iter().map(LiveGroup::total).sum();
        out.push_str(&line(bytes, peak, &format!("{} more", rest.len())));
    }
    if let Some((copies, _)) = torch::copies(live, config) {
        let _ = writeln!(out, "  in it {copies}");
    }
    out
}

/// Sums by name, largest first.
fn sums<'a>(groups: &[LiveGroup], name: impl Fn(&LiveGroup) -> &'a str) -> Vec<(&'a str, u64)> {
    let mut sums: Vec<(&str, u64)> = Vec::new();
    for group in groups {
        let name = name(group);
        match sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, bytes)) => *bytes += group.total(),
            None => sums.push((name, group.total())),
        }
    }
    sums.sort_by_key(|(_, bytes)| Reverse(*bytes));
    sums
}

/// `    12.0 MiB   41%  activations`
fn line(bytes: u64, all: u64, name: &str) -> String {
    let share = 100.0 * bytes as f64 / all.max(1) as f64;
    format!("    {:>10}  {share:>3.0}%  {name}\n", Bytes(bytes).to_string())
}
