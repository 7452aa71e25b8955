//! Lists single changes of the strategy that lower a run's peak.

use std::fmt::Write as _;

use base::units::Bytes;
use memory::Prediction;
use plan::Remedy;

/// The most lines.
const MOST: usize = 8;

/// The smallest share of the peak that is listed.
const LITTLE: f64 = 0.01;

/// A line per change, largest saving first.
pub(super) fn text(remedies: &[Remedy], now: &Prediction) -> String {
    let peak = now.device.steady_peak().live.total();
    let is_worth_it = |remedy: &&Remedy| (peak - remedy.peak()) as f64 >= LITTLE * peak as f64;
    let worth: Vec<&Remedy> = remedies.iter().filter(is_worth_it).take(MOST).collect();
    if worth.is_empty() {
        return "no single change of the strategy lowers the live peak by 1%\n".to_owned();
    }
    let mut out = "changes that lower the live peak, each by itself\n".to_owned();
    let width = worth.iter().map(|remedy| remedy.setting.len()).max().unwrap_or(0);
    for remedy in worth {
        let costs = costs(remedy, now);
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "  {:width$}  {:>10}  {:>4.0}%  {}{costs}",
            remedy.setting,
            Bytes(remedy.peak()).to_string(),
            100.0 * (remedy.peak() as f64 / peak as f64 - 1.0),
            remedy.result,
        );
    }
    out
}

/// `, +23% FLOPs, 9.9 MiB on the host`
fn costs(remedy: &Remedy, now: &Prediction) -> String {
    let mut costs = String::new();
    let Prediction { hardware_flops, host, out_of_memory, .. } = &remedy.prediction;
    let more = *hardware_flops as f64 / now.hardware_flops.max(1) as f64 - 1.0;
    if more >= 0.005 {
        let _ = write!(costs, ", {:+.0}% FLOPs", 100.0 * more);
    }
    let on_the_host = host.reserved_peak.saturating_sub(now.host.reserved_peak);
    if on_the_host > 1 << 16 {
        let _ = write!(costs, ", {} more on the host", Bytes(on_the_host));
    }
    if out_of_memory.is_none() && now.out_of_memory.is_some() {
        costs.push_str("; fits");
    }
    costs
}
