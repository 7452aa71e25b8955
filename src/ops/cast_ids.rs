//! Whole numbers in 32 bits.

use super::{DType, Operation, TensorType, TypeError, expect_inputs};

/// Whole numbers of fewer bits as i32, for operations that look something up by them.
///
/// Input: u8 or u16, of any shape. Output: i32, of the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CastIds {
    /// Whether the largest number stands for -1.
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
                problem: format!("takes u8 or u16, got {}", inputs[0]),
            }),
        }
    }
}
