//! Places layers: the outputs and the parameters of a layer are in the memory of the layer's device. Transfers are
//! inserted where other layers read them.

use super::Draft;
use crate::ir::{Action, Instruction};
use device::Pool;
use graph::{Scope, named};
use spec::RunConfig;

/// By scope: the device that computes it and holds its parameters. Empty if no layer is placed.
pub(crate) fn devices(scopes: &[Scope], config: &RunConfig) -> Vec<Pool> {
    let place = &config.strategy.place;
    if place.is_empty() {
        return Vec::new();
    }
    let named = named(scopes, place.iter().map(|(layer, _)| layer.as_str()));
    let device = |name: Option<usize>| name.map_or(Pool::Device, |name| place[name].1.pool());
    named.by_scope.into_iter().map(device).collect()
}

pub(super) fn place(draft: &mut Draft) {
    let devices = devices(&draft.program.scopes, draft.config);
    if devices.is_empty() {
        return;
    }
    draft.annotations.devices = devices;
    let program = &mut draft.program;
    for section in 0..program.sections.len() {
        let code = std::mem::take(&mut program.sections[section].code);
        for instruction in &code {
            let Instruction { scope, action: Action::Launch { op, outputs, .. }, .. } = instruction else {
                continue;
            };
            // Losses stay on the device: its own queue copies them to the host.
            let stay = usize::from(op.as_loss().is_some());
            for output in &outputs[stay..] {
                program.values[output.index()].pool = draft.annotations.device_of(*scope).workplace();
            }
        }
        program.sections[section].code = code;
    }
    // Views and versions have the pool of their parent or previous version, which precedes them.
    for index in 0..program.values.len() {
        let value = &program.values[index];
        if let Some(of) = value.previous.or(value.view.map(|view| view.of)) {
            program.values[index].pool = program.value(of).pool;
        }
    }
}
