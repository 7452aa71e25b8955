//! In-place reuse: an output that may overwrite an input takes its memory, if nothing reads the input afterwards.

use super::Draft;
use crate::ir::{Action, Instruction, Program};
use ops::ValueId;

pub(super) fn reuse(draft: &mut Draft) {
    let program = &mut draft.program;
    // By value: the storage that replaces its own.
    let mut merged: Vec<Option<ValueId>> = vec![None; program.values.len()];
    for section in 0..program.sections.len() {
        let mut code = std::mem::take(&mut program.sections[section].code);
        let live_out = program.mask(&program.sections[section].live_out);
        reuse_in(program, &mut code, &live_out, &mut merged);
        program.sections[section].code = code;
    }
    for index in 0..program.values.len() {
        let mut storage = program.values[index].storage;
        while let Some(next) = merged[storage.index()] {
            storage = next;
        }
        program.values[index].storage = storage;
    }
}

fn reuse_in(
    program: &mut Program,
    code: &mut Vec<Instruction>,
    live_out: &[bool],
    merged: &mut [Option<ValueId>],
) {
    let mut removed: Vec<bool> = vec![false; code.len()];
    // By storage: the index of its allocation in this section.
    let mut allocated: Vec<usize> = vec![usize::MAX; program.values.len()];
    for index in 0..code.len() {
        if let Action::Allocate(storage) = code[index].action {
            allocated[storage.index()] = index;
        }
        let Action::Launch { op, inputs, outputs, .. } = &code[index].action else { continue };
        let pairs: Vec<(ValueId, ValueId)> =
            op.may_overwrite().iter().map(|&(output, input)| (outputs[output], inputs[input])).collect();
        for (output, input) in pairs {
            let current = resolve(merged, program.storage(input));
            let free_index = (index + 1..code.len())
                .take_while(|&next| matches!(code[next].action, Action::Free(_)))
                .find(|&next| matches!(code[next].action, Action::Free(storage) if resolve(merged, storage) == current));
            let Some(free_index) = free_index else { continue };
            let has_allocation = allocated[output.index()] != usize::MAX && !live_out[output.index()];
            if removed[free_index] || !has_allocation || !same_layout(program, output, input, current) {
                continue;
            }
            // From here on the output owns the input's memory, which is freed with the output.
            removed[allocated[output.index()]] = true;
            removed[free_index] = true;
            merged[output.index()] = Some(current);
            program.values[output.index()].previous = Some(input);
        }
    }
    let mut index = 0;
    code.retain(|_| {
        index += 1;
        !removed[index - 1]
    });
    for instruction in code {
        if let Action::Free(storage) | Action::Leak(storage) = &mut instruction.action {
            *storage = resolve(merged, *storage);
        }
    }
}

fn resolve(merged: &[Option<ValueId>], mut storage: ValueId) -> ValueId {
    while let Some(next) = merged[storage.index()] {
        storage = next;
    }
    storage
}

/// Whether an output can take exactly the memory of the input.
fn same_layout(program: &Program, output: ValueId, input: ValueId, storage: ValueId) -> bool {
    let (new, old, whole) = (program.value(output), program.value(input), program.value(storage));
    new.storage == output
        && old.offset == 0
        && new.ty.bytes() == old.ty.bytes()
        && whole.ty.bytes() == old.ty.bytes()
        && (new.role, new.pool) == (whole.role, whole.pool)
}
