//! Softmax over the innermost dimension.

use super::{Op, Operand, Operation, Tape, TensorType, TypeError, expect_float, expect_inputs, expect_type};

/// `y = exp(x - largest) / sum of exp(x - largest)` of each row. Input: x num[..,C]. Output: y, of the same shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Softmax;

/// `dx = y * (dy - sum of dy * y)` of each row. Inputs: dy num[..,C], y num[..,C]. Output: dx num[..,C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftmaxBackward;

impl Operation for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1)?;
        expect_float(self.name(), "x", &inputs[0])?;
        Ok(vec![inputs[0]])
    }

    fn operand(&self, _input: usize) -> Operand {
        Operand::Matrix
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn backward(&self, tape: &mut dyn Tape) {
        if tape.wants(0) {
            let inputs = vec![tape.output_gradient(0), tape.output(0)];
            tape.contribute(Op::SoftmaxBackward(SoftmaxBackward), inputs, 0, 0, &[]);
        }
    }
}

impl Operation for SoftmaxBackward {
    fn name(&self) -> &'static str {
        "softmax-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2)?;
        expect_float(self.name(), "dy", &inputs[0])?;
        expect_type(self.name(), "y", &inputs[1], inputs[0])?;
        Ok(vec![inputs[0]])
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }
}
