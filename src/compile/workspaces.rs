//! Scratch memory of kernels, bounded by the target: values like any others.

use super::Draft;
use super::instruction::Action;
use super::program::Types;
use super::value::Like;
use device::Role;
use ops::TensorType;

pub(super) fn add(draft: &mut Draft) {
    let (target, annotations) = (draft.target, &draft.annotations);
    let program = &mut draft.program;
    let mut types = Types::default();
    for section in 0..program.sections.len() {
        let mut code = std::mem::take(&mut program.sections[section].code);
        for instruction in &mut code {
            let (scope, home) = (instruction.scope, instruction.home);
            let Action::Launch { op, inputs, outputs, workspace } = &mut instruction.action else { continue };
            let Types { inputs, outputs } = types.of(&program.values, inputs, outputs);
            let bytes = op.workspace(inputs, outputs, &target.workspace_limits(home));
            if bytes > 0 {
                let ty = (Like::Workspace, ty(bytes));
                let pool = annotations.at_work(home, instruction.phase);
                *workspace = Some(program.add_value("workspace", scope, ty, Role::Workspace, pool));
            }
        }
        program.sections[section].code = code;
    }
}

/// The type of this many bytes of scratch memory.
pub(super) fn ty(bytes: u64) -> TensorType {
    TensorType::f32(&[bytes.div_ceil(4) as usize])
}
