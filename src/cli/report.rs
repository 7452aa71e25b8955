//! What several commands say.

use super::output::say;
use crate::device::{DeviceKind, Target};
use crate::plan::Plan;

/// Which devices the runs are for: the first line of every sweep.
pub(super) fn devices(plans: &[Plan]) {
    let mut told: Vec<&Target> = Vec::new();
    for plan in plans {
        if !told.contains(&&plan.target) {
            say(&device(&plan.target));
            told.push(&plan.target);
        }
    }
}

fn device(target: &Target) -> String {
    let kind = match target.kind {
        DeviceKind::Cpu => format!("cpu, {} threads", target.threads),
        DeviceKind::Cuda => "cuda".to_string(),
    };
    let limited = if target.limited { "limited to " } else { "" };
    let caution = if target.limited { " (a smaller one's memory, but this one's speed)" } else { "" };
    format!("device: {} ({kind}), {limited}{}{caution}", target.name, target.memory)
}
