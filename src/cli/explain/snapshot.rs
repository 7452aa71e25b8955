//! `--snapshot FILE`: PyTorch's memory snapshot beside the predicted requests of a run.

use std::fmt::Write as _;
use std::path::Path;

use crate::failure::Failure;
use crate::torch;
use base::regular;
use base::units::Bytes;
use plan::{Plan, PlannedRun};
use pytorch::{Call, Snapshot, SnapshotComparison, SnapshotDifference};
use spec::RunConfig;

/// The largest file. Histories of 100,000 calls with stacks take about 100 MB.
const LARGEST_FILE: Bytes = Bytes(512 << 20);

/// The whole text.
///
/// # Errors
/// The file cannot be read, or PyTorch's memory of the run is not predicted.
pub(super) fn text(
    plan: &Plan,
    run: &PlannedRun,
    config: &RunConfig,
    file: &Path,
) -> Result<String, Failure> {
    let shown = file.display();
    let bytes = regular::read(file, LARGEST_FILE)
        .map_err(|error| Failure::input(format!("cannot read {shown}: {}", regular::reason(&error))))?;
    let snapshot = Snapshot::read(&bytes).map_err(|error| {
        let help = "use the file that torch.cuda.memory._dump_snapshot() wrote";
        Failure::input(format!("cannot read {shown}: {error}\n = help: {help}"))
    })?;
    let machine = torch::machine(&plan.target, plan.keys)?;
    let predicted = machine.sequence(config).map_err(|reason| {
        Failure::input(format!("PyTorch's memory of {} is not predicted: {reason}", run.strategy))
    })?;
    let comparison = snapshot.compare(&predicted);
    let requests = comparison.requests;
    let mut out = format!("{shown}: {requests} requests on device {}\n", snapshot.device());
    let program = plan.keys.torch_program(Some(config));
    // Writing to a string cannot fail.
    let _ = writeln!(out, "prediction: {} in {program}, on {}\n", run.strategy, plan.target.name);
    let (phase, step) = comparison.begins_in;
    if comparison.begins > 0 {
        let before = comparison.begins;
        let _ = writeln!(
            out,
            "The history begins after {before} predicted requests, in {} of step {step}.",
            phase.name()
        );
    }
    out.push_str(&difference_text(&comparison));
    if let Some(bytes) = comparison.refused {
        let _ = writeln!(out, "PyTorch found no memory for a request of {}.", Bytes(bytes));
    }
    out.push_str(&peaks_text(&comparison));
    Ok(out)
}

/// `The first 344 requests are as predicted. The next call differs, in backward of step 1:`
fn difference_text(comparison: &SnapshotComparison) -> String {
    let SnapshotComparison { equal, requests, difference, .. } = comparison;
    let Some(SnapshotDifference { recorded, places, predicted, released, purpose, phase, step }) = difference
    else {
        return match equal == requests {
            true => format!("All {equal} requests and their releases are as predicted.\n"),
            false => format!("The first {equal} requests are as predicted; the prediction ends there.\n"),
        };
    };
    let by = if places.is_empty() { String::new() } else { format!(", by {}", places.join(", from ")) };
    let call = |call: &Option<Call>| match call {
        Some(Call::Request(bytes)) if *bytes < 1024 => format!("requests {bytes} bytes"),
        Some(Call::Request(bytes)) => format!("requests {bytes} bytes ({})", Bytes(*bytes)),
        Some(Call::Release(request)) => format!("releases request {request}, of {released} bytes"),
        None => "keeps it".to_owned(),
    };
    format!(
        "The first {equal} requests are as predicted. The next call differs, in {} of step {step}:\n  \
         snapshot    {}{by}\n  prediction  {}: {}\n",
        phase.name(),
        call(recorded),
        call(predicted),
        purpose.name()
    )
}

/// Requested bytes at both peaks.
fn peaks_text(comparison: &SnapshotComparison) -> String {
    let mut out = format!("\n{:<34}{:>12}{:>12}\n", "requested bytes at the peak", "snapshot", "prediction");
    let mut all = [comparison.unknown_at_peak.saturating_add(comparison.before), 0];
    let mut line = |name: &str, [recorded, predicted]: [u64; 2]| {
        let cells = [recorded, predicted].map(|bytes| Bytes(bytes).to_string());
        // Writing to a string cannot fail.
        let _ = writeln!(out, "  {name:<32}{:>12}{:>12}", cells[0], cells[1]);
    };
    for (purpose, bytes) in &comparison.at_peak {
        if *bytes != [0, 0] {
            line(purpose.name(), *bytes);
        }
        all = [0, 1].map(|at| all[at].saturating_add(bytes[at]));
    }
    if comparison.before > 0 {
        line("before the history", [comparison.before, 0]);
    }
    if comparison.unknown_at_peak > 0 {
        line("from the first difference on", [comparison.unknown_at_peak, 0]);
    }
    line("all", all);
    out
}
