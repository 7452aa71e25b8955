//! Messages that several commands print.

use super::inputs::Inputs;
use super::output::{mention, note, say};
use base::brief;
use base::units::Bytes;
use data::Note;
use device::{ASSUMED_COMMUNICATOR, DeviceKind, Target};
use plan::{Experiment, Point};

/// The devices of the runs with their notes: the first lines of every sweep.
pub(super) fn devices(inputs: &Inputs, for_programs: bool) {
    let mut told: Vec<&Target> = Vec::new();
    for plan in &inputs.plans {
        if !told.contains(&&plan.target) {
            let notes: String = inputs.notes.iter().map(|note| format!("; {note}")).collect();
            let say = if for_programs { mention } else { say };
            say(&format!("{}{notes}", device(&plan.target, inputs.memory)));
            told.push(&plan.target);
        }
    }
}

/// Missing data.
pub(super) fn absent(inputs: &Inputs, for_programs: bool) {
    let say = if for_programs { mention } else { say };
    inputs.absent.iter().for_each(|line| say(line));
}

/// Warnings about inputs that were not read completely, and settings without effect.
pub(super) fn unread(experiment: &Experiment, is_wanted: impl Fn(&Point) -> bool) {
    experiment.warnings(is_wanted).iter().for_each(|warning| note(&format!("warning: {warning}")));
}

/// Warnings about data files.
pub(super) fn data_warnings(notes: &[&Note]) {
    let warnings = notes.iter().filter(|warning| warning.is_warning);
    warnings.for_each(|warning| note(&format!("warning: {}", brief::line(&warning.text))));
}

/// The caution of runs with ranks on cards, whose exchanges take memory that was not measured.
pub(super) fn communicator(target: &Target) -> Option<String> {
    let is_assumed = target.kind == DeviceKind::Cuda && target.communicator.is_none();
    is_assumed.then(|| {
        format!("NCCL's memory on each card of a run with ranks is assumed to be {ASSUMED_COMMUNICATOR}")
    })
}

/// `device: a processor (cpu, 2 threads), 8.00 GiB`
pub(super) fn device(target: &Target, own: Option<Bytes>) -> String {
    let kind = match target.kind {
        DeviceKind::Cpu => format!("cpu, {} threads", target.threads),
        DeviceKind::Cuda => match &target.capability {
            Some(capability) => format!("cuda, compute capability {capability}"),
            None => "cuda".to_string(),
        },
    };
    let limited = if target.limited { "limited to " } else { "" };
    let caution = match own {
        _ if !target.limited => String::new(),
        Some(own) if target.memory >= own => format!(" (not below its own memory, {own})"),
        _ => " (its speed is not limited)".to_owned(),
    };
    let host = target.host_memory.map(|memory| format!(", the host limited to {memory}")).unwrap_or_default();
    let figures = target.figures.caution().map(|caution| format!("; {caution}")).unwrap_or_default();
    let (name, memory) = (brief::line(&target.name), target.memory);
    format!("device: {name} ({kind}), {limited}{memory}{caution}{host}{figures}")
}
