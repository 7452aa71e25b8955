//! What several commands say.

use super::inputs::Inputs;
use super::output::say;
use crate::device::{DeviceKind, Target};

/// Which devices the runs are for, and what there is to know of them: the first line of every sweep.
pub(super) fn devices(inputs: &Inputs) {
    let mut told: Vec<&Target> = Vec::new();
    for plan in &inputs.plans {
        if !told.contains(&&plan.target) {
            let notes: String = inputs.notes.iter().map(|note| format!("; {note}")).collect();
            say(&format!("{}{notes}", device(&plan.target)));
            told.push(&plan.target);
        }
    }
}

fn device(target: &Target) -> String {
    let kind = match target.kind {
        DeviceKind::Cpu => format!("cpu, {} threads", target.threads),
        DeviceKind::Cuda => match &target.capability {
            Some(capability) => format!("cuda, compute capability {capability}"),
            None => "cuda".to_string(),
        },
    };
    let limited = if target.limited { "limited to " } else { "" };
    let caution = if target.limited { " (a smaller one's memory, but this one's speed)" } else { "" };
    format!("device: {} ({kind}), {limited}{}{caution}", target.name, target.memory)
}
