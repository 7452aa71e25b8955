//! Conversion between floating-point types.

use super::{DType, Op, Operation, OutputRole, Tape, TensorType, TypeError, expect_float};

/// Rounds each input to another dtype, ties to even; overflow gives infinity.
///
/// Inputs: any number of floating-point tensors. Outputs: the same number of tensors, of the same shapes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cast {
    pub to: DType,
}

impl Operation for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        for input in inputs {
            expect_float(self.name(), "an input", input)?;
        }
        Ok(inputs.iter().map(|input| TensorType { dtype: self.to, ..*input }).collect())
    }

    fn casts(&self, outputs: usize) -> usize {
        outputs
    }

    fn is_cast(&self) -> bool {
        true
    }

    /// Only for casts of one tensor. Casts of parameters are not differentiated: their gradient is the gradient of the
    /// parameter.
    fn backward(&self, tape: &mut dyn Tape) {
        let to = tape.input_type(0).dtype;
        let gradient = tape.output_gradient(0);
        let gradient = tape.emit(Op::Cast(Cast { to }), vec![gradient], &[OutputRole::Like(0)])[0];
        tape.pass(0, gradient);
    }
}
