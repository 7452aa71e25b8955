//! The cost of recomputation, without measurements: a plan for a GPU may be made on a machine without it.

use compile::{Action, Instruction, Program};
use device::{DeviceKind, Target};
use ops::DType;
use spec::{Precision, RunConfig};

/// Matmul FLOPs that a device computes in the time of moving one byte, by its kind and dtype. An order of magnitude,
/// which hardly differs between devices of a kind. It only weighs norms, casts and activations against matmuls.
fn flops_a_byte(target: &Target, precision: Precision) -> u64 {
    match (target.kind, precision.dtype(), precision) {
        (DeviceKind::Cpu, ..) => 8,
        (DeviceKind::Cuda, DType::F32, Precision::Tf32) => 100,
        (DeviceKind::Cuda, DType::F32, _) => 15,
        (DeviceKind::Cuda, ..) => 200,
    }
}

/// The time of a recomputed instruction, in matmul FLOPs that take equally long: the larger of computation and memory
/// traffic. 0 for other instructions.
pub(super) fn cost(program: &Program, instruction: &Instruction, config: &RunConfig, target: &Target) -> f64 {
    match &instruction.action {
        Action::Launch { op, inputs, outputs, .. } if instruction.recompute => {
            let (inputs, outputs) = (program.types(inputs), program.types(outputs));
            let moving = flops_a_byte(target, config.strategy.precision) * op.bytes(&inputs, &outputs);
            op.flops(&inputs, &outputs).max(moving) as f64
        }
        _ => 0.0,
    }
}
