//! Softmax and cross-entropy in one pass over the logits, optionally soft-capped.

use super::{
    DType, Loss, LossTerms, Op, Operation, Processor, Tape, TensorType, TypeError, WorkspaceLimits,
    expect_float,
};

/// `loss = weight * share / N * sum over rows of (logsumexp(logits[n]) - logits[n, target[n]])`. With `gradient`, the
/// same pass computes `dlogits = weight * share / N * (softmax(logits) - onehot(target))`, multiplied by the loss scale
/// if `scaled`; the loss is not scaled. With a cap, `cap tanh(logits / cap)` replaces the logits, and dlogits is the
/// gradient of the uncapped logits.
///
/// With label smoothing s, the target is a distribution over classes, `(1 - s) onehot(target) + s / V`: it replaces
/// `onehot(target)` in the gradient, and its mean logit replaces that of the target in the loss.
///
/// With `weighted`, each row counts with its sample's weight, and rows with a negative target are masked.
///
/// With `accuracy`, the loss is f32[2]: after it comes the share of rows whose largest logit is the target's, weighted as
/// the loss. Of equal logits the first is the largest.
///
/// Inputs and outputs are those of [`LossTerms`], with logits num[..,V] as prediction and targets i32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    pub terms: LossTerms,
    /// Soft cap of the logits.
    pub cap: Option<f32>,
    /// From 0 (none) to 1.
    pub smoothing: f32,
    /// Only without a gradient.
    pub accuracy: bool,
}

impl CrossEntropy {
    /// Of logits without a cap.
    pub fn of(terms: LossTerms) -> CrossEntropy {
        CrossEntropy { terms, cap: None, smoothing: 0.0, accuracy: false }
    }

    /// The elements of the loss.
    fn loss_len(&self) -> usize {
        1 + usize::from(self.accuracy)
    }

    /// Rows per partial sum of the loss: fixed, so that the result does not depend on the number of threads.
    pub const ROWS_PER_PARTIAL: usize = 32;
}

impl Operation for CrossEntropy {
    fn name(&self) -> &'static str {
        if self.terms.gradient { "cross-entropy-with-gradient" } else { "cross-entropy" }
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        self.terms.expect_inputs(self.name(), inputs)?;
        let loss = TensorType::f32(&[self.loss_len()]);
        let outputs = self.terms.outputs(self.name(), inputs, self.all_rows(inputs), loss)?;
        expect_float(self.name(), "logits", &inputs[0])?;
        for (refused, problem) in [
            (self.cap.is_some() && self.smoothing > 0.0, "soft-capped logits have no smoothed labels"),
            (self.accuracy && self.terms.gradient, "accuracy is computed without a gradient"),
        ] {
            if refused {
                return Err(TypeError { operation: self.name(), problem: problem.to_owned() });
            }
        }
        Ok(outputs)
    }

    /// CPU: one f64 partial loss per `ROWS_PER_PARTIAL` rows and, for logits other than f32, one f32 row of them per
    /// thread. GPU: one f32 per row. As many for the accuracy.
    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let TensorType { dtype, shape } = inputs[0];
        let rows = shape.rows();
        let bytes = match limits.processor {
            Processor::Cpu => {
                let wide = if dtype == DType::F32 { 0 } else { limits.threads * shape.last() };
                self.loss_len() * rows.div_ceil(Self::ROWS_PER_PARTIAL) * size_of::<f64>()
                    + wide * size_of::<f32>()
            }
            Processor::Cuda => self.loss_len() * rows * size_of::<f32>(),
        };
        bytes as u64
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        self.terms.updates()
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        if self.terms.gradient { &[(1, 0)] } else { &[] }
    }

    fn as_loss(&self) -> Option<&dyn Loss> {
        Some(self)
    }

    /// The forward pass has already computed the gradient.
    fn backward(&self, tape: &mut dyn Tape) {
        let gradient = tape.output(1);
        tape.pass(0, gradient);
    }

    fn accumulating(&self) -> Option<Op> {
        Some(self.with_terms(LossTerms { accumulate: true, ..self.terms }))
    }

    fn accumulated(&self) -> &'static [usize] {
        &[0]
    }
}

impl Loss for CrossEntropy {
    fn terms(&self) -> &LossTerms {
        &self.terms
    }

    /// A target for each row.
    fn all_rows(&self, inputs: &[TensorType]) -> Option<usize> {
        Some(inputs[1].elements())
    }

    fn with_accuracy(&self) -> Option<Op> {
        Some(Op::CrossEntropy(CrossEntropy { accuracy: true, ..*self }))
    }

    fn with_terms(&self, terms: LossTerms) -> Op {
        Op::CrossEntropy(CrossEntropy { terms, ..*self })
    }
}
