//! Conversion of ids to i32.

use super::{DType, Operation, TensorType, TypeError, expect_inputs};

/// Converts u8 or u16 ids to i32, as operations that look up by id require.
///
/// Input: u8 or u16, of any shape. Output: i32, of the same shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CastIds {
    /// Whether the largest value of the input dtype means -1 (masked).
    pub masked: bool,
}

impl Operation for CastIds {
    fn name(&self) -> &'static str {
        "widen"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1)?;
        match inputs[0].dtype {
            DType::U8 | DType::U16 => Ok(vec![TensorType { dtype: DType::I32, ..inputs[0] }]),
            _ => Err(TypeError {
                operation: self.name(),
                problem: format!("expected u8 or u16, got {}", inputs[0]),
            }),
        }
    }
}
