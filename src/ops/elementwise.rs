//! Operations on each element by itself.

use super::{Operation, TensorType, TypeError, expect_float, expect_inputs, expect_type};

/// `sum = a + b`. Inputs: a, b num of one shape. Output: sum, of the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Add;

/// `dx = dy * gelu'(x)` for the tanh form of GELU. Inputs: dy, x num of one shape. Output: dx, of the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeluBackward;

impl Operation for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2)?;
        expect_float(self.name(), "a", &inputs[0])?;
        expect_type(self.name(), "b", &inputs[1], inputs[0])?;
        Ok(vec![inputs[0]])
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }
}

impl Operation for GeluBackward {
    fn name(&self) -> &'static str {
        "gelu-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2)?;
        expect_type(self.name(), "x", &inputs[1], inputs[0])?;
        Ok(vec![inputs[0]])
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }
}
