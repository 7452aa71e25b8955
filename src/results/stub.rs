//! (stands in for rows that are filled in by planning and measuring)

use super::{Row, Status};
use crate::execute::{Ended, Measurement};
use crate::plan::{Plan, PlannedRun};

/// Everything that is known of a run before it starts. One whose configuration makes no sense is `skipped`, with
/// the reason.
pub fn planned_row(plan: &Plan, run: &PlannedRun, repeat: usize) -> Row {
    let (status, message) = match &run.config {
        Ok(_) => (Status::Interrupted, String::new()),
        Err(reason) => (Status::Skipped, reason.clone()),
    };
    let row = serde_json::json!({
        "experiment": plan.experiment, "run_id": run.id, "strategy": run.strategy, "repeat": repeat,
        "status": status, "device": plan.target.name, "model": "transformer", "precision": "fp32",
        "receipt": "", "no_effect": run.no_effect.join(" "), "message": message,
        "version": env!("CARGO_PKG_VERSION"), "limited": plan.target.limited, "digest": "",
        "configuration": run.configuration, "axes": run.axes,
    });
    serde_json::from_value(row).unwrap_or_else(|error| unreachable!("{error}"))
}

/// A run's row with what it measured.
pub fn measured_row(planned: Row, measurement: &Measurement) -> Row {
    let status = match measurement.ended {
        Ended::Complete => Status::Ok,
        Ended::OutOfMemory => Status::Oom,
        Ended::Diverged => Status::Diverged,
    };
    Row {
        status,
        peak_bytes: measurement.peak_bytes,
        tokens_per_s: measurement.tokens_per_s,
        loss_last: measurement.loss_last,
        ..planned
    }
}
