//! The interface of losses.

use super::{Op, RowSlice, SCALE, TensorType, TypeError, expect_inputs, expect_type};

/// The parameters that every loss has.
///
/// Its inputs: the prediction of some of N rows, the targets of all N; if `weighted` the weights f32[B] of
/// B samples with N/B rows each; if `scaled` the loss scale f32[1]; with `accumulate` the previous loss f32[1]. Its
/// outputs: the loss f32[1] and, with `gradient`, the gradient of the prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossTerms {
    /// The weight of this loss in the sum of the model's losses.
    pub weight: f32,
    /// The weight of these N rows in the batch mean: a micro-batch's share of the batch.
    pub share: f32,
    /// The slice of the N rows that the prediction covers.
    pub rows: RowSlice,
    /// Whether samples are weighted and rows without a target masked.
    pub weighted: bool,
    pub gradient: bool,
    pub accumulate: bool,
    /// Whether the gradient, but not the loss, is multiplied by the loss scale.
    pub scaled: bool,
}

impl LossTerms {
    /// The loss of all rows, without a gradient.
    pub const PLAIN: LossTerms = LossTerms {
        weight: 1.0,
        share: 1.0,
        rows: RowSlice::WHOLE,
        weighted: false,
        gradient: false,
        accumulate: false,
        scaled: false,
    };

    /// The factor of the mean over the rows.
    pub fn factor(&self) -> f32 {
        self.weight * self.share
    }

    /// The index of the loss scale among the inputs.
    pub fn loss_scale(&self) -> usize {
        2 + usize::from(self.weighted)
    }

    /// The index of the previous loss among the inputs.
    pub fn loss_so_far(&self) -> usize {
        self.loss_scale() + usize::from(self.scaled)
    }

    /// Output types for these input types; the types of prediction and targets are the operation's to check.
    /// `target_rows`: the number of rows that the targets are of.
    pub(crate) fn outputs(
        &self,
        operation: &'static str,
        inputs: &[TensorType],
        target_rows: fn(&TensorType) -> usize,
    ) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(operation, inputs, self.loss_so_far() + usize::from(self.accumulate))?;
        let (rows, targets) = (inputs[0].shape.rows(), target_rows(&inputs[1]));
        if self.rows.range(targets).len() != rows {
            let problem =
                format!("{targets} rows of targets do not match {rows} predicted rows ({})", self.rows);
            return Err(TypeError { operation, problem });
        }
        let loss = TensorType::f32(&[1]);
        if self.weighted {
            let samples = inputs[2].elements();
            expect_type(operation, "the weights", &inputs[2], TensorType::f32(&[samples]))?;
            if !targets.is_multiple_of(samples) {
                let problem =
                    format!("{targets} rows of targets are not a multiple of {samples} sample weights");
                return Err(TypeError { operation, problem });
            }
        }
        if self.scaled {
            expect_type(operation, "the loss scale", &inputs[self.loss_scale()], SCALE)?;
        }
        if self.accumulate {
            expect_type(operation, "the previous loss", &inputs[self.loss_so_far()], loss)?;
        }
        Ok(if self.gradient { vec![loss, inputs[0]] } else { vec![loss] })
    }

    /// The loss is added to the previous one, in place.
    pub(crate) fn updates(&self) -> &'static [(usize, usize)] {
        match (self.accumulate, self.loss_so_far()) {
            (false, _) => &[],
            (true, 2) => &[(0, 2)],
            (true, 3) => &[(0, 3)],
            (true, _) => &[(0, 4)],
        }
    }
}

/// An operation that computes a loss, or the contribution of some rows to it.
///
/// The gradient is that of input 0; output 0 is the loss f32[1]. A model's losses are summed: each has its own scope,
/// and all but the first use the accumulating form, whose previous loss is the output of the one before.
pub trait Loss {
    fn terms(&self) -> &LossTerms;

    /// The number of rows that these targets are of: one element each, as of classes.
    fn target_rows(&self, targets: &TensorType) -> usize {
        targets.elements()
    }

    /// The same loss with other terms.
    fn with_terms(&self, terms: LossTerms) -> Op;

    /// The share of its rows in the batch, from 0 to 1.
    fn share(&self, inputs: &[TensorType]) -> f64 {
        f64::from(self.terms().share) * inputs[0].shape.rows() as f64 / self.target_rows(&inputs[1]) as f64
    }

    /// The same loss for a micro-batch with this share of the batch.
    fn of_share(&self, share: f32) -> Op {
        self.with_terms(LossTerms { share, ..*self.terms() })
    }

    /// The form that also returns the gradient of input 0, as an additional output.
    fn with_gradient(&self) -> Op {
        self.with_terms(LossTerms { gradient: true, ..*self.terms() })
    }

    /// The form whose gradient, but not the loss, is multiplied by the loss scale; returned with the input index of the
    /// loss scale.
    fn scaled(&self) -> (usize, Op) {
        (self.terms().loss_scale(), self.with_terms(LossTerms { scaled: true, ..*self.terms() }))
    }

    /// The same loss on a slice of the rows of input 0, which then contains only these rows. The other inputs are
    /// unchanged.
    fn sliced(&self, rows: RowSlice) -> Op {
        self.with_terms(LossTerms { rows, ..*self.terms() })
    }
}
