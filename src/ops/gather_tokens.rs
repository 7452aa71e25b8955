//! Gather of token sequences from one long row of tokens.

use super::{DType, Operation, Sizes, TensorType, TypeError, expect_inputs};

/// `y[b, t] = row[place[b] + later + t]`, and -1 beyond the end of the row.
///
/// The highest bit of a place marks a missing sample. With `masks`, a missing sample is all -1; otherwise the bit is
/// ignored.
///
/// Inputs: row u8, u16 or i32[N], place i32[B,2], the lower and the upper 32 bits of an offset into the row. Output: y
/// i32[B,T].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherTokens {
    /// Offset of the first token from the place.
    pub later: usize,
    /// Whether missing samples are masked.
    pub masks: bool,
    /// T.
    pub length: usize,
}

impl Operation for GatherTokens {
    fn name(&self) -> &'static str {
        "stretch"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2)?;
        let wrong = |problem| Err(TypeError { operation: self.name(), problem });
        if !matches!(inputs[0].dtype, DType::U8 | DType::U16 | DType::I32) {
            return wrong(format!("expected an integer type, got {}", inputs[0]));
        }
        match (inputs[1].dtype, inputs[1].shape.dims()) {
            (DType::I32, &[samples, 2]) => Ok(vec![TensorType::i32(&[samples, self.length])]),
            _ => wrong(format!("expected offsets of two words each, got {}", inputs[1])),
        }
    }

    /// Counts only the gathered tokens of the row.
    fn bytes(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        inputs[0].dtype.bytes_of(outputs[0].elements()) + inputs[1].bytes() + outputs[0].bytes()
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.length = sizes.outputs[0].shape.last();
    }
}
