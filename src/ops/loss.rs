//! The interface of losses.

use super::{Op, RowSlice, SCALE, TensorType, TypeError, expect_inputs, expect_type};

/// The parameters that every loss has.
///
/// Its inputs: the prediction of some of N rows; with `targets` those of all N; if `weighted` the weights f32[B] of
/// B samples with N/B rows each; if `scaled` the loss scale f32[1]; with `accumulate` the previous loss. Its
/// outputs: the loss f32[1] and, with `gradient`, the gradient of the prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossTerms {
    /// The weight of this loss in the sum of the model's losses.
    pub weight: f32,
    /// The weight of these N rows in the batch mean: a micro-batch's share of the batch.
    pub share: f32,
    /// The slice of the N rows that the prediction covers.
    pub rows: RowSlice,
    pub targets: bool,
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
        targets: true,
        weighted: false,
        gradient: false,
        accumulate: false,
        scaled: false,
    };

    /// The factor of the mean over the rows.
    pub fn factor(&self) -> f32 {
        self.weight * self.share
    }

    /// The index of the weights of samples among the inputs.
    pub fn weights(&self) -> usize {
        1 + usize::from(self.targets)
    }

    /// The index of the loss scale among the inputs.
    pub fn loss_scale(&self) -> usize {
        self.weights() + usize::from(self.weighted)
    }

    /// The index of the previous loss among the inputs.
    pub fn loss_so_far(&self) -> usize {
        self.loss_scale() + usize::from(self.scaled)
    }

    /// Checks the number of inputs, so that an operation can read their types.
    pub(crate) fn expect_inputs(
        &self,
        operation: &'static str,
        inputs: &[TensorType],
    ) -> Result<(), TypeError> {
        expect_inputs(operation, inputs, self.loss_so_far() + usize::from(self.accumulate))
    }

    /// Output types for these input types, of the expected number; the types of prediction and targets are the
    /// operation's to check. `all_rows`: N, if the inputs decide it. `loss`: the type of the loss.
    pub(crate) fn outputs(
        &self,
        operation: &'static str,
        inputs: &[TensorType],
        all_rows: Option<usize>,
        loss: TensorType,
    ) -> Result<Vec<TensorType>, TypeError> {
        let rows = inputs[0].shape.rows();
        if let Some(all) = all_rows.filter(|&all| self.rows.range(all).len() != rows) {
            let of = if self.targets { "rows of targets" } else { "rows of weighted samples" };
            let problem = format!("{all} {of} do not match {rows} predicted rows ({})", self.rows);
            return Err(TypeError { operation, problem });
        }
        if self.weighted {
            let samples = inputs[self.weights()].elements();
            expect_type(operation, "the weights", &inputs[self.weights()], TensorType::f32(&[samples]))?;
            if let Some(all) = all_rows.filter(|all| !all.is_multiple_of(samples)) {
                let problem = format!("{all} rows of targets are not a multiple of {samples} sample weights");
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
            (true, 1) => &[(0, 1)],
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

    /// The number of rows in the micro-batch, of which the prediction may be a slice; `None` if the inputs do not
    /// decide it.
    fn all_rows(&self, inputs: &[TensorType]) -> Option<usize>;

    /// The same loss with other terms.
    fn with_terms(&self, terms: LossTerms) -> Op;

    /// The share of its rows in the batch, from 0 to 1.
    fn share(&self, inputs: &[TensorType]) -> f64 {
        let slice = match self.all_rows(inputs) {
            Some(all) => inputs[0].shape.rows() as f64 / all as f64,
            // The slices of a sum weigh nothing: each counts once.
            None => 1.0 / self.terms().rows.of as f64,
        };
        f64::from(self.terms().share) * slice
    }

    /// Whether it is a sum over the samples, to which each micro-batch adds its own, not a mean.
    fn is_sum(&self) -> bool {
        false
    }

    /// The form without a gradient whose output is the loss and the accuracy, f32[2]; `None` if it has no classes.
    fn with_accuracy(&self) -> Option<Op> {
        None
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
