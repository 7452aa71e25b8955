//! Softmax and cross-entropy in one pass over the logits.

use super::{Op, Operation, Tape, TensorType, TypeError, expect_inputs, expect_type};

/// `loss = weight / N * sum over rows of (logsumexp(logits[n]) - logits[n, target[n]])`, and with `gradient`
/// `dlogits = weight / N * (softmax(logits) - onehot(target))` in the same pass.
///
/// Inputs: logits f32[..,V], targets i32[N elements in any shape], then the loss so far f32[1] with
/// `accumulate`. Outputs: loss f32[1] and, with `gradient`, dlogits f32[..,V].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// What these rows count for in the mean: a micro-batch's share of the batch.
    pub weight: f32,
    pub gradient: bool,
    pub accumulate: bool,
}

impl CrossEntropy {
    /// Rows that one partial sum of the loss covers: fixed, so that the result does not depend on the number of
    /// threads.
    pub const ROWS_PER_PARTIAL: usize = 32;
}

impl Operation for CrossEntropy {
    fn name(&self) -> &'static str {
        if self.gradient { "cross-entropy-with-gradient" } else { "cross-entropy" }
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2 + usize::from(self.accumulate))?;
        let rows = inputs[0].shape.rows();
        if inputs[1].elements() != rows {
            let problem = format!("{} targets for {rows} rows of logits", inputs[1].elements());
            return Err(TypeError { operation: self.name(), problem });
        }
        let loss = TensorType::f32(&[1]);
        if self.accumulate {
            expect_type(self.name(), "the loss so far", &inputs[2], loss)?;
        }
        Ok(if self.gradient { vec![loss, inputs[0]] } else { vec![loss] })
    }

    /// One f64 of loss for each `ROWS_PER_PARTIAL` rows.
    fn workspace(
        &self,
        inputs: &[TensorType],
        _outputs: &[TensorType],
        _limits: &super::WorkspaceLimits,
    ) -> u64 {
        (inputs[0].shape.rows().div_ceil(Self::ROWS_PER_PARTIAL) * size_of::<f64>()) as u64
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        if self.accumulate { &[(0, 2)] } else { &[] }
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        if self.gradient { &[(1, 0)] } else { &[] }
    }

    /// The gradient came with the loss.
    fn backward(&self, tape: &mut dyn Tape) {
        let gradient = tape.output(1);
        tape.pass(0, gradient);
    }

    fn accumulating(&self) -> Option<Op> {
        Some(Op::CrossEntropy(CrossEntropy { accumulate: true, ..*self }))
    }

    fn accumulated(&self) -> &'static [usize] {
        &[0]
    }
}
