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
/// With `weighted`, each row counts with its sample's weight, and rows with a negative target are masked.
///
/// Inputs and outputs are those of [`LossTerms`], with logits num[..,V] as prediction and targets i32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    pub terms: LossTerms,
    /// Soft cap of the logits.
    pub cap: Option<f32>,
}

impl CrossEntropy {
    /// Rows per partial sum of the loss: fixed, so that the result does not depend on the number of threads.
    pub const ROWS_PER_PARTIAL: usize = 32;
}

impl Operation for CrossEntropy {
    fn name(&self) -> &'static str {
        if self.terms.gradient { "cross-entropy-with-gradient" } else { "cross-entropy" }
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let outputs = self.terms.outputs(self.name(), inputs, TensorType::elements)?;
        expect_float(self.name(), "logits", &inputs[0])?;
        Ok(outputs)
    }

    /// CPU: one f64 partial loss per `ROWS_PER_PARTIAL` rows and, for logits other than f32, one f32 row of them per
    /// thread. GPU: one f32 per row.
    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let TensorType { dtype, shape } = inputs[0];
        let rows = shape.rows();
        let bytes = match limits.processor {
            Processor::Cpu => {
                let wide = if dtype == DType::F32 { 0 } else { limits.threads * shape.last() };
                rows.div_ceil(Self::ROWS_PER_PARTIAL) * size_of::<f64>() + wide * size_of::<f32>()
            }
            Processor::Cuda => rows * size_of::<f32>(),
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

    fn with_terms(&self, terms: LossTerms) -> Op {
        Op::CrossEntropy(CrossEntropy { terms, ..*self })
    }
}
