//! Stretches of a long row of tokens.

use super::{DType, Operation, Sizes, TensorType, TypeError, expect_inputs};

/// `y[b, t] = row[place[b] + later + t]`, and -1 where the row has no such token.
///
/// The highest bit of a place says that the sample is missing: where that is masked, it is all -1, and otherwise as if the bit
/// were not there.
///
/// Inputs: row u8, u16 or i32[N], place i32[B,2], each the lower and the upper half of a number. Output: y i32[B,T].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub later: usize,
    /// Whether samples that are missing are masked.
    pub masks: bool,
    /// T.
    pub length: usize,
}

impl Operation for Stretch {
    fn name(&self) -> &'static str {
        "stretch"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2)?;
        let wrong = |problem| Err(TypeError { operation: self.name(), problem });
        if !matches!(inputs[0].dtype, DType::U8 | DType::U16 | DType::I32) {
            return wrong(format!("takes whole numbers, got {}", inputs[0]));
        }
        match (inputs[1].dtype, inputs[1].shape.dims()) {
            (DType::I32, &[samples, 2]) => Ok(vec![TensorType::i32(&[samples, self.length])]),
            _ => wrong(format!("takes places of two words each, got {}", inputs[1])),
        }
    }

    /// Of the row, what is taken.
    fn bytes(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        inputs[0].dtype.bytes_of(outputs[0].elements()) + inputs[1].bytes() + outputs[0].bytes()
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.length = sizes.outputs[0].shape.last();
    }
}
