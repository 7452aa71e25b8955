//! Where layers live: what a layer makes lives with the processor that it is placed on, as its parameters do from the
//! start, so that what crosses is what other layers make of it.

use super::Draft;
use super::instruction::{Action, Instruction};
use device::Pool;
use graph::{Scope, named};
use spec::RunConfig;

/// By scope: whose processor computes it, and whose memory its parameters live in. Empty where nothing is placed.
pub(super) fn homes(scopes: &[Scope], config: &RunConfig) -> Vec<Pool> {
    let place = &config.strategy.place;
    if place.is_empty() {
        return Vec::new();
    }
    let named = named(scopes, place.iter().map(|(layer, _)| layer.as_str()));
    let home = |name: Option<usize>| name.map_or(Pool::Device, |name| place[name].1.pool());
    named.by_scope.into_iter().map(home).collect()
}

pub(super) fn place(draft: &mut Draft) {
    let homes = homes(&draft.program.scopes, draft.config);
    if homes.is_empty() {
        return;
    }
    draft.annotations.homes = homes;
    let program = &mut draft.program;
    for section in 0..program.sections.len() {
        let code = std::mem::take(&mut program.sections[section].code);
        for instruction in &code {
            let Instruction { scope, action: Action::Launch { op, outputs, .. }, .. } = instruction else {
                continue;
            };
            // Losses leave by the device's own queue.
            let stay = usize::from(op.as_loss().is_some());
            for output in &outputs[stay..] {
                program.values[output.index()].pool = draft.annotations.home_of(*scope).workplace();
            }
        }
        program.sections[section].code = code;
    }
    // Views and versions are where that is which they are of. They come after it.
    for index in 0..program.values.len() {
        let value = &program.values[index];
        if let Some(of) = value.previous.or(value.view.map(|view| view.of)) {
            program.values[index].pool = program.value(of).pool;
        }
    }
}
