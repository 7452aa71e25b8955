//! Numbers in another precision.

use super::{DType, Emitted, Op, Operation, Tape, TensorType, TypeError, expect_float};

/// Each input rounded to the nearest number of another type, ties to even; what is too large becomes infinite.
///
/// Inputs: any number of tensors of numbers. Outputs: as many, of the same shapes.
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

    /// Of one tensor; those of parameters are not differentiated, as their gradient is the parameter's own.
    fn backward(&self, tape: &mut dyn Tape) {
        let to = tape.input_type(0).dtype;
        let gradient = tape.output_gradient(0);
        let gradient = tape.emit(Op::Cast(Cast { to }), vec![gradient], &[Emitted::Like(0)])[0];
        tape.pass(0, gradient);
    }
}
