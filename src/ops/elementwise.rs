//! Operations on each element by itself.

use super::{
    Activation, Emitted, Op, Operand, Operation, Tape, TensorType, TypeError, ValueId, expect_float,
    expect_inputs, expect_type,
};

/// `y = activation(a + b)`. Inputs: a, b num of one shape. Outputs: y, of the same, and, with an activation, what went into
/// it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Add {
    pub activation: Option<Activation>,
}

/// `y = factor * x`. Input: x num. Output: y, of the same shape and type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    pub factor: f32,
}

/// `dx = dy * gelu'(x)` for the tanh form of GELU. Inputs: dy, x num of one shape. Output: dx, of the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeluBackward;

impl Add {
    /// Nothing but the sum.
    pub const PLAIN: Add = Add { activation: None };
}

impl Operation for Add {
    fn name(&self) -> &'static str {
        match self.activation {
            None => "add",
            Some(Activation::GeluTanh) => "add-gelu",
        }
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2)?;
        expect_float(self.name(), "a", &inputs[0])?;
        expect_type(self.name(), "b", &inputs[1], inputs[0])?;
        Ok(vec![inputs[0]; 1 + usize::from(self.activation.is_some())])
    }

    fn operand(&self, _input: usize) -> Operand {
        Operand::Matrix
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

impl Activation {
    /// The gradient of what went into it, output 1 of a node, from that of output 0, which with `fuse` nobody else has been
    /// given: the product that made it may then take it through the activation itself.
    pub(super) fn backward(self, tape: &mut dyn Tape, dy: ValueId, fuse: bool) -> ValueId {
        let fused = if fuse { tape.fuse_slope(self) } else { None };
        fused.unwrap_or_else(|| {
            let before = tape.output(1);
            let slope = match self {
                Activation::GeluTanh => Op::GeluBackward(GeluBackward),
            };
            tape.emit(slope, vec![dy, before], &[Emitted::Like(0)])[0]
        })
    }
}
