//! Numbers in another precision.

use super::{DType, Operation, Tape, TensorType, TypeError, expect_number};

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
            expect_number(self.name(), "an input", input)?;
        }
        Ok(inputs.iter().map(|input| TensorType { dtype: self.to, ..*input }).collect())
    }

    fn casts(&self, outputs: usize) -> usize {
        outputs
    }

    /// The gradient of a cast parameter is the parameter's own, in full precision: the tape sees to that.
    fn backward(&self, _tape: &mut dyn Tape) {}
}
