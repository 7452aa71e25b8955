//! In-place reuse: an output that may overwrite an input takes its memory, where nothing reads the input again.

use super::Draft;
use super::instruction::{Action, Instruction};
use super::program::Program;
use ops::ValueId;

pub(super) fn reuse(draft: &mut Draft) {
    let program = &mut draft.program;
    // By value: the storage that took its place.
    let mut moved: Vec<Option<ValueId>> = vec![None; program.values.len()];
    for section in 0..program.sections.len() {
        let mut code = std::mem::take(&mut program.sections[section].code);
        let carried = program.marked(&program.sections[section].exit);
        reuse_in(program, &mut code, &carried, &mut moved);
        program.sections[section].code = code;
    }
    for index in 0..program.values.len() {
        let mut storage = program.values[index].storage;
        while let Some(next) = moved[storage.index()] {
            storage = next;
        }
        program.values[index].storage = storage;
    }
}

fn reuse_in(
    program: &mut Program,
    code: &mut Vec<Instruction>,
    carried: &[bool],
    moved: &mut [Option<ValueId>],
) {
    let mut dead: Vec<bool> = vec![false; code.len()];
    // The allocation of each storage in this section.
    let mut allocated: Vec<usize> = vec![usize::MAX; program.values.len()];
    for index in 0..code.len() {
        if let Action::Allocate(storage) = code[index].action {
            allocated[storage.index()] = index;
        }
        let Action::Launch { op, inputs, outputs, .. } = &code[index].action else { continue };
        let pairs: Vec<(ValueId, ValueId)> =
            op.may_overwrite().iter().map(|&(output, input)| (outputs[output], inputs[input])).collect();
        for (output, input) in pairs {
            let current = resolve(moved, program.storage(input));
            let freed = (index + 1..code.len())
                .take_while(|&next| matches!(code[next].action, Action::Free(_)))
                .find(|&next| matches!(code[next].action, Action::Free(storage) if resolve(moved, storage) == current));
            let Some(freed) = freed else { continue };
            let own = allocated[output.index()] != usize::MAX && !carried[output.index()];
            if dead[freed] || !own || !alike(program, output, input, current) {
                continue;
            }
            // From here on the input's memory is the output's, and is freed when the output is.
            dead[allocated[output.index()]] = true;
            dead[freed] = true;
            moved[output.index()] = Some(current);
            program.values[output.index()].previous = Some(input);
        }
    }
    let mut index = 0;
    code.retain(|_| {
        index += 1;
        !dead[index - 1]
    });
    for instruction in code {
        if let Action::Free(storage) | Action::Leak(storage) = &mut instruction.action {
            *storage = resolve(moved, *storage);
        }
    }
}

fn resolve(moved: &[Option<ValueId>], mut storage: ValueId) -> ValueId {
    while let Some(next) = moved[storage.index()] {
        storage = next;
    }
    storage
}

/// Whether an output may stand exactly where the input does.
fn alike(program: &Program, output: ValueId, input: ValueId, storage: ValueId) -> bool {
    let (new, old, whole) = (program.value(output), program.value(input), program.value(storage));
    new.storage == output
        && old.offset == 0
        && new.ty.bytes() == old.ty.bytes()
        && whole.ty.bytes() == old.ty.bytes()
        && (new.role, new.pool) == (whole.role, whole.pool)
}
