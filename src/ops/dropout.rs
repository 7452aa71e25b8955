//! Elements that are left out by chance while a model learns (Srivastava et al. 2014).
//!
//! Which ones is a pure function of a sample's seed, the site, and where in the sample an element is: of a row r, and a column c of it.
//! The numbers of columns come from Philox4x32-10 (Salmon et al. 2011) with the key (first word of the seed, second word) and
//! counters (block, r, site, 0), 32 columns from four blocks: those of column c are in block 4 (c / 32) + (c % 8) / 2, word (c % 32) / 8,
//! of which the even column has the low half and the odd one the high half. That is how a card's lanes have columns of a
//! matrix product. An element is kept if its number is below `kept`.
//!
//! A sample's seed is a pure function of the run's seed, the step and the sample, and part of the batch. So whatever is
//! computed again, in slices, or elsewhere, drops what it did before.

use super::{
    DType, Op, Operand, Operation, Tape, TensorType, TypeError, expect_float, expect_inputs, expect_type,
};

/// How many elements of a site are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Where in the model. Fixed before any pass.
    pub site: u32,
    /// So many of 65536 are kept: from 1 to 65535.
    pub kept: u32,
}

/// What numbers of elements are below.
const NUMBERS: u32 = 1 << 16;

impl Dropped {
    /// With this chance of each element to be dropped, to 1 in 65536; none at all for 0.
    pub fn at_rate(rate: f64, site: u32) -> Option<Dropped> {
        let kept = ((1.0 - rate) * f64::from(NUMBERS)).round() as u32;
        (rate > 0.0).then_some(Dropped { site, kept: kept.clamp(1, NUMBERS - 1) })
    }

    /// What is kept is multiplied by this, so that sums stay on average what they are.
    pub fn factor(self) -> f32 {
        NUMBERS as f32 / self.kept as f32
    }

    /// What samples start from, of so many.
    pub fn seeds(samples: usize) -> TensorType {
        TensorType::i32(&[samples, 2])
    }
}

/// `y = dropped(x)`, or `y = residual + dropped(x)`. A sample has the rows of its first dimension.
///
/// Inputs: x num[B,..,C], seeds i32[B,2] and, with `residual`, that num[B,..,C]. Output: y num[B,..,C], of the residual's type if
/// there is one; else of x's, if none is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    pub dropped: Dropped,
    pub residual: bool,
    /// Rounded to another type; without a residual.
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
        expect_type(self.name(), "the seeds", &inputs[1], Dropped::seeds(x.shape.dims()[0]))?;
        let Some(residual) = inputs.get(2) else {
            return Ok(vec![TensorType { dtype: self.to.unwrap_or(x.dtype), ..x }]);
        };
        let dtype = expect_float(self.name(), "the residual", residual)?;
        expect_type(self.name(), "the residual", residual, TensorType { dtype, ..x })?;
        Ok(vec![*residual])
    }

    /// What is added to a residual stream is as it was made.
    fn operand(&self, input: usize) -> Operand {
        match (input, self.residual) {
            (0, false) | (2, _) => Operand::Accumulator,
            _ => Operand::Any,
        }
    }

    fn drops(&self) -> Option<Dropped> {
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
    fn what_is_kept_makes_up_for_what_is_dropped() {
        assert_eq!(Dropped::at_rate(0.0, 3), None);
        let half = Dropped::at_rate(0.5, 3).unwrap();
        assert_eq!((half, half.factor()), (Dropped { site: 3, kept: 32768 }, 2.0));
        assert_eq!(Dropped::at_rate(1e-9, 0).unwrap().kept, 65535);
        assert_eq!(Dropped::at_rate(1.0, 0).unwrap().kept, 1);
    }
}
