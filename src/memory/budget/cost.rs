//! What computing again costs, in a figure that needs no measurement: plans for a card are made where it is not.

use crate::compile::{Action, Instruction, Program};
use crate::device::{DeviceKind, Target};
use crate::ops::DType;
use crate::spec::{Precision, RunConfig};

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

/// The time of instructions, as FLOPs that would take as long: each computes or moves bytes, whichever takes longer.
pub(super) fn cost<'a>(
    program: &'a Program,
    code: impl Iterator<Item = &'a Instruction>,
    config: &RunConfig,
    target: &Target,
) -> f64 {
    let flops_a_byte = flops_a_byte(target, config.strategy.precision);
    let cost = |instruction: &Instruction| match &instruction.action {
        Action::Launch { op, inputs, outputs, .. } => {
            let (inputs, outputs) = (program.types(inputs), program.types(outputs));
            op.flops(&inputs, &outputs).max(flops_a_byte * op.bytes(&inputs, &outputs)) as f64
        }
        _ => 0.0,
    };
    code.map(cost).fold(0.0, |sum, cost| sum + cost)
}
