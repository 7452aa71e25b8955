//! Lists single changes of the strategy that lower a run's peak.

use std::fmt::Write as _;

use base::units::Bytes;
use memory::Prediction;
use plan::{Change, Remedy, TorchRemedies};
use pytorch::{Fit, Forecast};

/// The most lines.
const MOST: usize = 8;

/// The smallest share of the peak that is listed.
const LITTLE: f64 = 0.01;

/// A change, the peak with it, and what it costs: `, +23% FLOPs`.
struct Line<'a> {
    change: &'a Change,
    peak: u64,
    costs: String,
}

/// A line per change, largest saving first.
pub(super) fn text(remedies: &[Remedy], now: &Prediction) -> String {
    let lines = remedies.iter().map(|remedy| {
        let Remedy { change, prediction } = remedy;
        Line { change, peak: remedy.peak(), costs: costs(prediction, now) }
    });
    list("the live peak", now.device.steady_peak().live.total(), lines)
}

/// The same for PyTorch, with the changes that are not predicted.
pub(super) fn pytorch_text(remedies: &TorchRemedies, now: &Forecast) -> String {
    let lines = remedies.lower.iter().map(|(change, forecast)| {
        let costs = match (now.fit, forecast.fit) {
            (Fit::Refused(_), Fit::Fits) => "; fits",
            (Fit::Refused(_), Fit::OnlyByRetrying) => "; fits by retrying",
            _ => "",
        };
        Line { change, peak: forecast.peak().allocated, costs: costs.to_owned() }
    });
    let mut out = list("PyTorch's peak", now.peak().allocated, lines);
    if !remedies.not_predicted.is_empty() {
        let settings: Vec<&str> =
            remedies.not_predicted.iter().map(|change| change.setting.as_str()).collect();
        let sentence = format!("not predicted for PyTorch: {}", settings.join(", "));
        let _ = writeln!(out, "{sentence}");
    }
    out
}

fn list<'a>(what: &str, peak: u64, lines: impl Iterator<Item = Line<'a>>) -> String {
    let is_worth_it = |line: &Line<'_>| peak.saturating_sub(line.peak) as f64 >= LITTLE * peak as f64;
    let worth: Vec<Line<'_>> = lines.filter(is_worth_it).take(MOST).collect();
    if worth.is_empty() {
        return format!("no single change of the strategy lowers {what} by 1%\n");
    }
    let mut out = format!("changes that lower {what}, each by itself\n");
    let width = worth.iter().map(|line| line.change.setting.len()).max().unwrap_or(0);
    for Line { change, peak: lower, costs } in worth {
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "  {:width$}  {:>10}  {:>4.0}%  {}{costs}",
            change.setting,
            Bytes(lower).to_string(),
            100.0 * (lower as f64 / peak as f64 - 1.0),
            change.result,
        );
    }
    out
}

/// `, +23% FLOPs, 9.9 MiB on the host`
fn costs(with: &Prediction, now: &Prediction) -> String {
    let mut costs = String::new();
    let Prediction { hardware_flops, host, out_of_memory, .. } = with;
    let more = *hardware_flops as f64 / now.hardware_flops.max(1) as f64 - 1.0;
    if more >= 0.005 {
        let _ = write!(costs, ", {:+.0}% FLOPs", 100.0 * more);
    }
    let on_the_host = host.reserved_peak.saturating_sub(now.host.reserved_peak);
    if on_the_host > 1 << 16 {
        let _ = write!(costs, ", +{} on the host", Bytes(on_the_host));
    }
    if out_of_memory.is_none() && now.out_of_memory.is_some() {
        costs.push_str("; fits");
    }
    costs
}
