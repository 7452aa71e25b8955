//! Root-mean-square normalisation over the innermost dimension (Zhang and Sennrich 2019).

use super::{
    Arithmetic, DType, LayerNormBackward, Op, OpKind, Operand, Operation, OutputRole, Tape, TensorType,
    TypeError, expect_f32_or, expect_float, expect_inputs, expect_type,
};

/// `y = x * rrms * (weight + offset)`, with `rrms = 1 / sqrt(mean of x^2 + epsilon)`.
///
/// Inputs: x num[..,C], weight f32[C]. Outputs: y num[..,C], rrms f32[N].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    pub epsilon: f32,
    /// 0; or 1 for zero-centered weights, which start at 0 and decay towards the identity.
    pub offset: f32,
    /// Whether y continues the residual stream instead of feeding only matmuls.
    pub stream: bool,
    /// The dtype of y.
    pub output: DType,
}

/// Gradients of [`RmsNorm`].
///
/// Inputs: dy num[..,C], x num[..,C], weight f32[C], rrms f32[N]; with `accumulate` the partial gradient of x num[..,C]
/// (from the residual stream); with `accumulate_weight` the previous dweight num[C]. Outputs: dx num[..,C] with the
/// dtype of x, dweight num[C]; with `cast` also dx in the dtype of dy, num[..,C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNormBackward {
    /// The `offset` of the forward operation.
    pub offset: f32,
    /// The dtype of dweight; it is summed in f32.
    pub gradients: DType,
    pub accumulate: bool,
    pub accumulate_weight: bool,
    /// Whether dx is also stored in the dtype of dy, for the next matmul.
    pub cast: bool,
}

impl RmsNormBackward {
    /// Rows per partial sum of dweight on a CPU.
    pub const ROWS_PER_PARTIAL: usize = LayerNormBackward::ROWS_PER_PARTIAL;
}

impl Operation for RmsNorm {
    fn kind(&self) -> Option<OpKind> {
        Some(OpKind::Norm)
    }

    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2)?;
        expect_f32_or(self.output, self.name(), "x", &inputs[0])?;
        expect_type(self.name(), "weight", &inputs[1], TensorType::f32(&[inputs[0].shape.last()]))?;
        let y = TensorType { dtype: self.output, ..inputs[0] };
        Ok(vec![y, TensorType::f32(&[inputs[0].shape.rows()])])
    }

    fn operand(&self, input: usize) -> Operand {
        if input == 0 { Operand::Accumulator } else { Operand::Full }
    }

    fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        self.output = if self.stream { arithmetic.accumulators } else { arithmetic.matrices };
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let mut inputs = vec![tape.output_gradient(0), tape.input(0), tape.input(1), tape.output(1)];
        let (residual, weight) = (tape.partial(0), tape.partial(1));
        // The kernel computes all gradients; those not required are discarded.
        let stream = if tape.wants(0) { OutputRole::Gradient(0) } else { OutputRole::Like(1) };
        let weight_output = if tape.wants(1) { OutputRole::Gradient(1) } else { OutputRole::Like(2) };
        inputs.extend(residual);
        inputs.extend(weight);
        let (accumulate, accumulate_weight) = (residual.is_some(), weight.is_some());
        let gradients = tape.parameter_gradients();
        let RmsNorm { offset, .. } = *self;
        let op = RmsNormBackward { offset, gradients, accumulate, accumulate_weight, cast: false };
        tape.emit(Op::RmsNormBackward(op), inputs, &[stream, weight_output]);
    }
}

impl Operation for RmsNormBackward {
    fn name(&self) -> &'static str {
        "rms-norm-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let previous = usize::from(self.accumulate) + usize::from(self.accumulate_weight);
        expect_inputs(self.name(), inputs, 4 + previous)?;
        let x = inputs[1];
        let weight = TensorType::f32(&[x.shape.last()]);
        let dtype = expect_float(self.name(), "dy", &inputs[0])?;
        expect_f32_or(dtype, self.name(), "x", &x)?;
        expect_type(self.name(), "dy", &inputs[0], TensorType { dtype, ..x })?;
        expect_type(self.name(), "weight", &inputs[2], weight)?;
        expect_type(self.name(), "rrms", &inputs[3], TensorType::f32(&[x.shape.rows()]))?;
        if self.accumulate {
            expect_type(self.name(), "the partial gradient", &inputs[4], x)?;
        }
        let gradient = TensorType { dtype: self.gradients, ..weight };
        for found in &inputs[4 + usize::from(self.accumulate)..] {
            expect_type(self.name(), "the previous gradient", found, gradient)?;
        }
        let mut outputs = vec![x, gradient];
        outputs.extend(self.cast.then_some(inputs[0]));
        Ok(outputs)
    }

    /// Partial sums of dweight: one row of C each.
    fn workspace(
        &self,
        inputs: &[TensorType],
        _outputs: &[TensorType],
        limits: &super::WorkspaceLimits,
    ) -> u64 {
        let x = inputs[1].shape;
        let partials = LayerNormBackward::most_partials(x.rows(), limits.processor);
        (partials * x.last() * size_of::<f32>()) as u64
    }

    fn casts(&self, _outputs: usize) -> usize {
        usize::from(self.cast)
    }

    fn storing_cast(&self, output: usize, to: DType, inputs: &[TensorType]) -> Option<Op> {
        let can = output == 0 && to == inputs[0].dtype && to != inputs[1].dtype && !self.cast;
        can.then_some(Op::RmsNormBackward(RmsNormBackward { cast: true, ..*self }))
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        match (self.accumulate, self.accumulate_weight) {
            (_, false) => &[],
            (false, true) => &[(1, 4)],
            (true, true) => &[(1, 5)],
        }
    }

    /// dx may overwrite the partial gradient; the cast dx may overwrite dy, element by element.
    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        match (self.accumulate, self.cast) {
            (false, false) => &[],
            (true, false) => &[(0, 4)],
            (false, true) => &[(2, 0)],
            (true, true) => &[(0, 4), (2, 0)],
        }
    }

    fn accumulating(&self) -> Option<Op> {
        Some(Op::RmsNormBackward(RmsNormBackward { accumulate_weight: true, ..*self }))
    }

    fn accumulated(&self) -> &'static [usize] {
        &[1]
    }
}
