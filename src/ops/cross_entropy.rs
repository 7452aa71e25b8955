//! Softmax and cross-entropy in one pass over the logits, optionally soft-capped.

use super::{
    DType, Loss, Op, Operation, Processor, RowSlice, SCALE, Tape, TensorType, TypeError, WorkspaceLimits,
    expect_float, expect_inputs, expect_type,
};

/// `loss = weight * share / N * sum over rows of (logsumexp(logits[n]) - logits[n, target[n]])`. With `gradient`, the
/// same pass computes `dlogits = weight * share / N * (softmax(logits) - onehot(target))`, multiplied by the loss scale
/// if `scaled`; the loss is not scaled. With a cap, `cap tanh(logits / cap)` replaces the logits, and dlogits is the
/// gradient of the uncapped logits.
///
/// With `weighted`, each row counts with its sample's weight, and rows with a negative target are masked.
///
/// Inputs: logits num[..,V] of some of the N rows, targets i32[N elements in any shape]; if `weighted` the weights
/// f32[B] of B samples with N/B rows each; if `scaled` the loss scale f32[1]; with `accumulate` the previous loss
/// f32[1]. Outputs: loss f32[1] and, with `gradient`, dlogits num[..,V].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// The weight of this loss in the sum of the model's losses.
    pub weight: f32,
    /// The weight of these N rows in the batch mean: a micro-batch's share of the batch.
    pub share: f32,
    /// The slice of the N rows that the logits cover.
    pub rows: RowSlice,
    /// Soft cap of the logits.
    pub cap: Option<f32>,
    /// Whether samples are weighted and rows with a negative target masked.
    pub weighted: bool,
    pub gradient: bool,
    pub accumulate: bool,
    pub scaled: bool,
}

impl CrossEntropy {
    /// The loss of all rows, without a gradient.
    pub const PLAIN: CrossEntropy = CrossEntropy {
        weight: 1.0,
        share: 1.0,
        rows: RowSlice::WHOLE,
        cap: None,
        weighted: false,
        gradient: false,
        accumulate: false,
        scaled: false,
    };

    /// Rows per partial sum of the loss: fixed, so that the result does not depend on the number of threads.
    pub const ROWS_PER_PARTIAL: usize = 32;

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
}

impl Operation for CrossEntropy {
    fn name(&self) -> &'static str {
        if self.gradient { "cross-entropy-with-gradient" } else { "cross-entropy" }
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, self.loss_so_far() + usize::from(self.accumulate))?;
        expect_float(self.name(), "logits", &inputs[0])?;
        let (rows, targets) = (inputs[0].shape.rows(), inputs[1].elements());
        if self.rows.range(targets).len() != rows {
            let problem = format!("{targets} targets do not match {rows} rows of logits ({})", self.rows);
            return Err(TypeError { operation: self.name(), problem });
        }
        let loss = TensorType::f32(&[1]);
        if self.weighted {
            let samples = inputs[2].elements();
            expect_type(self.name(), "the weights", &inputs[2], TensorType::f32(&[samples]))?;
            if !targets.is_multiple_of(samples) {
                let problem = format!("{targets} targets are not a multiple of {samples} sample weights");
                return Err(TypeError { operation: self.name(), problem });
            }
        }
        if self.scaled {
            expect_type(self.name(), "the loss scale", &inputs[self.loss_scale()], SCALE)?;
        }
        if self.accumulate {
            expect_type(self.name(), "the previous loss", &inputs[self.loss_so_far()], loss)?;
        }
        Ok(if self.gradient { vec![loss, inputs[0]] } else { vec![loss] })
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
        match (self.accumulate, self.loss_so_far()) {
            (false, _) => &[],
            (true, 2) => &[(0, 2)],
            (true, 3) => &[(0, 3)],
            (true, _) => &[(0, 4)],
        }
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        if self.gradient { &[(1, 0)] } else { &[] }
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
        Some(Op::CrossEntropy(CrossEntropy { accumulate: true, ..*self }))
    }

    fn accumulated(&self) -> &'static [usize] {
        &[0]
    }
}

impl Loss for CrossEntropy {
    fn share(&self, inputs: &[TensorType]) -> f64 {
        f64::from(self.share) * inputs[0].shape.rows() as f64 / inputs[1].elements() as f64
    }

    fn of_share(&self, share: f32) -> Op {
        Op::CrossEntropy(CrossEntropy { share, ..*self })
    }

    fn with_gradient(&self) -> Op {
        Op::CrossEntropy(CrossEntropy { gradient: true, ..*self })
    }

    fn scaled(&self) -> (usize, Op) {
        (self.loss_scale(), Op::CrossEntropy(CrossEntropy { scaled: true, ..*self }))
    }

    fn sliced(&self, rows: RowSlice) -> Op {
        Op::CrossEntropy(CrossEntropy { rows, ..*self })
    }
}
