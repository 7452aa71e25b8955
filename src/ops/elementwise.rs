//! Element-wise operations.

use super::{
    Activation, Op, Operand, Operation, Tape, TensorType, TypeError, expect_float, expect_inputs, expect_type,
};

/// `y = activation(a + b)`. Inputs: a, b num of the same shape. Outputs: y of that shape and, with an activation, its
/// input `a + b`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Add {
    pub activation: Option<Activation>,
    /// Whether it continues the residual stream.
    pub stream: bool,
}

/// `y = factor * x`. Input: x num. Output: y, of the same shape and type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    pub factor: f32,
}

impl Add {
    /// A sum without an activation, outside the residual stream.
    pub const PLAIN: Add = Add { activation: None, stream: false };
}

impl Operation for Add {
    fn name(&self) -> &'static str {
        self.activation.map_or("add", |activation| activation.definition().operations.add)
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2)?;
        expect_float(self.name(), "a", &inputs[0])?;
        expect_type(self.name(), "b", &inputs[1], inputs[0])?;
        Ok(vec![inputs[0]; 1 + usize::from(self.activation.is_some())])
    }

    fn operand(&self, _input: usize) -> Operand {
        if self.stream { Operand::Accumulator } else { Operand::Matrix }
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        match self.activation {
            None => &[(0, 0)],
            Some(_) => &[(0, 1), (1, 0)],
        }
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let dy = tape.output_gradient(0);
        let dy = self.activation.map_or(dy, |activation| activation.backward(tape, dy, true));
        tape.pass(0, dy);
        tape.pass(1, dy);
    }
}

impl Operation for Scale {
    fn name(&self) -> &'static str {
        "scale"
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
            let dy = tape.output_gradient(0);
            tape.contribute(Op::Scale(*self), vec![dy], 0, 0, &[]);
        }
    }
}
