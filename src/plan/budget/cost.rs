//! What computing again costs, in a figure that needs no measurement: plans for a card are made where it is not.

use compile::{Action, Instruction, Program};
use device::{DeviceKind, Target};
use ops::DType;
use spec::{Precision, RunConfig};

/// How many FLOPs of matrix work a device does while it moves a byte, by its kind and what it multiplies: the order of
/// magnitude, which hardly differs between its likes. It decides no more than what norms, casts and activations count for
/// beside products.
fn flops_a_byte(target: &Target, precision: Precision) -> u64 {
    match (target.kind, precision.dtype(), precision) {
        (DeviceKind::Cpu, ..) => 8,
        (DeviceKind::Cuda, DType::F32, Precision::Tf32) => 100,
        (DeviceKind::Cuda, DType::F32, _) => 15,
        (DeviceKind::Cuda, ..) => 200,
    }
}

/// The time that it takes to compute an instruction again, as FLOPs that would take as long: it computes or moves bytes,
/// whichever takes longer. Nothing where it is no such instruction.
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
