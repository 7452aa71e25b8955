//! Gather of samples from all samples of a data set.

use super::{DType, Operation, TensorType, TypeError, expect_inputs};

/// `y[b, ...] = samples[place[b], ...]`.
///
/// The highest bit of a place marks a missing sample: zeros, or, with `masks`, all bits set, which mask a class in any type.
///
/// Inputs: samples f32, 16-bit floats, u8, u16 or i32[N, ...], place i32[B,2], the lower and the upper 32 bits of an index.
/// Output: y[B, ...] of the type of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherSamples {
    /// Whether missing samples are masked.
    pub masks: bool,
}

impl Operation for GatherSamples {
    fn name(&self) -> &'static str {
        "gather_samples"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2)?;
        let (samples, place) = (&inputs[0], &inputs[1]);
        let wrong = |problem| Err(TypeError { operation: self.name(), problem });
        if samples.dtype == DType::U4 || samples.shape.dims().is_empty() {
            return wrong(format!("expected samples of whole bytes, got {samples}"));
        }
        match (place.dtype, place.shape.dims()) {
            (DType::I32, &[count, 2]) => {
                Ok(vec![TensorType { shape: samples.shape.with_first(count), ..*samples }])
            }
            _ => wrong(format!("expected places of two words each, got {place}")),
        }
    }

    /// Counts only the gathered samples.
    fn bytes(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        2 * outputs[0].bytes() + inputs[1].bytes()
    }
}
