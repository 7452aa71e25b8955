//! Dropout (Srivastava et al. 2014).
//!
//! The mask is a pure function of the sample's seed, the site, and the element's row r and column c in the sample.
//! Column numbers come from Philox4x32-10 (Salmon et al. 2011) with the key (first word of the seed, second word) and
//! counters (block, r, site, 0): four blocks give 32 columns. The number of column c is in block 4 (c / 32) + (c % 8) /
//! 2, word (c % 32) / 8; even columns use the low half of the word, odd columns the high half. This is the layout of a
//! matmul tile in a GPU warp. An element is kept if its number is below `kept`.
//!
//! A sample's seed is a pure function of the run's seed, the step and the sample, and is an input of the batch.
//! Recomputation, slicing and execution on another device therefore repeat the same mask.

use super::{
    DType, Op, Operand, Operation, Tape, TensorType, TypeError, expect_float, expect_inputs, expect_type,
};

/// The dropout of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropoutMask {
    /// The site in the model, fixed before any pass.
    pub site: u32,
    /// The number of elements kept per 65536: from 1 to 65535.
    pub kept: u32,
}

/// The exclusive upper bound of an element's random number.
const RANDOM_RANGE: u32 = 1 << 16;

impl DropoutMask {
    /// Dropout with this rate, rounded to 1/65536; `None` for rate 0.
    pub fn at_rate(rate: f64, site: u32) -> Option<DropoutMask> {
        let kept = ((1.0 - rate) * f64::from(RANDOM_RANGE)).round() as u32;
        (rate > 0.0).then_some(DropoutMask { site, kept: kept.clamp(1, RANDOM_RANGE - 1) })
    }

    /// The factor of kept elements, which preserves the mean.
    pub fn factor(self) -> f32 {
        RANDOM_RANGE as f32 / self.kept as f32
    }

    /// The type of the seeds of `samples` samples.
    pub fn seeds(samples: usize) -> TensorType {
        TensorType::i32(&[samples, 2])
    }
}

/// `y = dropout(x)`, or `y = residual + dropout(x)`. The first dimension of x is the sample.
///
/// Inputs: x num[B,..,C], seeds i32[B,2] and, with `residual`, the residual num[B,..,C]. Output: y num[B,..,C] with the
/// dtype of the residual, or without one with the dtype `to`, by default that of x.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    pub dropped: DropoutMask,
    pub residual: bool,
    /// Whether x is the residual stream, or its gradient.
    pub stream: bool,
    /// The dtype of y, without a residual.
    pub to: Option<DType>,
}

impl Operation for Dropout {
    fn name(&self) -> &'static str {
        if self.residual { "dropout-residual" } else { "dropout" }
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2 + usize::from(self.residual))?;
        let x = inputs[0];
        expect_float(self.name(), "x", &x)?;
        expect_type(self.name(), "the seeds", &inputs[1], DropoutMask::seeds(x.shape.dims()[0]))?;
        let Some(residual) = inputs.get(2) else {
            return Ok(vec![TensorType { dtype: self.to.unwrap_or(x.dtype), ..x }]);
        };
        let dtype = expect_float(self.name(), "the residual", residual)?;
        expect_type(self.name(), "the residual", residual, TensorType { dtype, ..x })?;
        Ok(vec![*residual])
    }

    /// The addend of a residual keeps its dtype.
    fn operand(&self, input: usize) -> Operand {
        match (input, self.residual) {
            (0, false) if self.stream => Operand::Accumulator,
            (0, false) => Operand::Matrix,
            (2, _) => Operand::Accumulator,
            _ => Operand::Any,
        }
    }

    fn drops(&self) -> Option<DropoutMask> {
        Some(self.dropped)
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        match (self.residual, self.to) {
            (true, _) => &[(0, 2)],
            (false, None) => &[(0, 0)],
            (false, Some(_)) => &[],
        }
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let dy = tape.output_gradient(0);
        let mut to = None;
        if self.residual {
            tape.pass(2, dy);
            let [x, stream] = [0, 2].map(|input| tape.input_type(input).dtype);
            to = (x != stream).then_some(x);
        }
        if tape.wants(0) {
            let inputs = vec![dy, tape.input(1)];
            tape.contribute(Op::Dropout(Dropout { residual: false, to, ..*self }), inputs, 0, 0, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factor_compensates_for_dropped_elements() {
        assert_eq!(DropoutMask::at_rate(0.0, 3), None);
        let half = DropoutMask::at_rate(0.5, 3).unwrap();
        assert_eq!((half, half.factor()), (DropoutMask { site: 3, kept: 32768 }, 2.0));
        assert_eq!(DropoutMask::at_rate(1e-9, 0).unwrap().kept, 65535);
        assert_eq!(DropoutMask::at_rate(1.0, 0).unwrap().kept, 1);
    }
}
