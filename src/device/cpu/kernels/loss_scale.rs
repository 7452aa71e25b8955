//! Update of the dynamic loss scale after a step.

use ops::{LossScale, STEP_COUNTS_LEN, StepCounts};

use super::operands::Operands;

pub(super) fn run(op: &LossScale, operands: &mut Operands) {
    let norm = operands.input::<f32>(2)[0];
    let (scale, counts) = (operands.output(0), operands.output(1));
    let previous: [f32; STEP_COUNTS_LEN] = (&*counts).try_into().expect("the counts' type was checked");
    let next = op.next(scale[0], StepCounts::from_array(previous), norm);
    scale[0] = next.0;
    counts.copy_from_slice(&next.1.to_array());
}
