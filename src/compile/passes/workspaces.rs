//! Adds workspaces (scratch memory of kernels, bounded by the target) as values.

use super::Draft;
use crate::ir::{Action, OperandTypes, ShapeSource};
use device::Role;
use ops::TensorType;

pub(super) fn add(draft: &mut Draft) {
    let (target, annotations) = (draft.target, &draft.annotations);
    let program = &mut draft.program;
    let mut types = OperandTypes::default();
    for section in 0..program.sections.len() {
        let mut code = std::mem::take(&mut program.sections[section].code);
        for instruction in &mut code {
            let (scope, device) = (instruction.scope, instruction.device);
            let Action::Launch { op, inputs, outputs, workspace } = &mut instruction.action else { continue };
            let OperandTypes { inputs, outputs } = types.of(&program.values, inputs, outputs);
            let bytes = op.workspace(inputs, outputs, &target.workspace_limits(device));
            if bytes > 0 {
                let ty = (ShapeSource::Workspace, ty(bytes));
                let pool = annotations.operand_pool(device, instruction.phase);
                *workspace = Some(program.add_value("workspace", scope, ty, Role::Workspace, pool));
            }
        }
        program.sections[section].code = code;
    }
}

/// A tensor type of `bytes` bytes.
pub(crate) fn ty(bytes: u64) -> TensorType {
    TensorType::f32(&[bytes.div_ceil(4) as usize])
}
