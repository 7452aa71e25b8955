//! Layer normalisation over the innermost dimension (Ba et al. 2016).

use super::{
    Arithmetic, DType, Op, OpKind, Operand, Operation, OutputRole, Processor, Tape, TensorType, TypeError,
    expect_f32_or, expect_float, expect_inputs, expect_type,
};

/// `y = (x - mean) * rstd * weight + bias`, with `rstd = 1 / sqrt(variance + epsilon)`.
///
/// Inputs: x num[..,C], weight f32[C], bias f32[C]. Outputs: y num[..,C], mean f32[N], rstd f32[N].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    pub epsilon: f32,
    /// Whether y continues the residual stream instead of feeding only matmuls.
    pub stream: bool,
    /// The dtype of y.
    pub output: DType,
}

/// Gradients of [`LayerNorm`].
///
/// Inputs: dy num[..,C], x num[..,C], weight f32[C], mean f32[N], rstd f32[N]; with `accumulate` the partial gradient
/// of x num[..,C] (from the residual stream); with `accumulate_weights` the previous dweight and dbias num[C]. Outputs:
/// dx num[..,C] with the dtype of x, dweight num[C], dbias num[C]; with `cast` also dx in the dtype of dy, num[..,C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNormBackward {
    /// The dtype of dweight and dbias; they are summed in f32.
    pub gradients: DType,
    pub accumulate: bool,
    pub accumulate_weights: bool,
    /// Whether dx is also stored in the dtype of dy, for the next matmul.
    pub cast: bool,
}

impl LayerNormBackward {
    /// The largest number of rows per partial sum of dweight and dbias, and the number on a CPU: fixed, so that the
    /// result does not depend on the number of threads.
    pub const ROWS_PER_PARTIAL: usize = 64;

    /// Rows per partial sum: on a GPU, where a block computes one, a multiple of four that gives at most 256 blocks, or
    /// `ROWS_PER_PARTIAL`. Up to 256 rows, the number on a CPU, so that the results of small runs stay close to it.
    pub fn rows_per_partial(rows: usize, processor: Processor) -> usize {
        match processor {
            Processor::Cuda if rows > 256 => {
                rows.div_ceil(256).next_multiple_of(4).clamp(4, Self::ROWS_PER_PARTIAL)
            }
            _ => Self::ROWS_PER_PARTIAL,
        }
    }

    /// An upper bound of the number of partial sums. Unlike the number itself, it never falls when the rows rise: a shorter
    /// micro-batch must not need more memory.
    pub(super) fn most_partials(rows: usize, processor: Processor) -> usize {
        let fewest = rows.div_ceil(Self::ROWS_PER_PARTIAL);
        match processor {
            Processor::Cpu => fewest,
            Processor::Cuda => rows.div_ceil(4).min(256).max(fewest),
        }
    }
}

impl Operation for LayerNorm {
    fn kind(&self) -> Option<OpKind> {
        Some(OpKind::Norm)
    }

    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 3)?;
        let channels = inputs[0].shape.last();
        expect_f32_or(self.output, self.name(), "x", &inputs[0])?;
        expect_type(self.name(), "weight", &inputs[1], TensorType::f32(&[channels]))?;
        expect_type(self.name(), "bias", &inputs[2], TensorType::f32(&[channels]))?;
        let statistics = TensorType::f32(&[inputs[0].shape.rows()]);
        Ok(vec![TensorType { dtype: self.output, ..inputs[0] }, statistics, statistics])
    }

    fn operand(&self, input: usize) -> Operand {
        if input == 0 { Operand::Accumulator } else { Operand::Full }
    }

    fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        self.output = if self.stream { arithmetic.accumulators } else { arithmetic.matrices };
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let mut inputs =
            vec![tape.output_gradient(0), tape.input(0), tape.input(1), tape.output(1), tape.output(2)];
        let (residual, weight) = (tape.partial(0), tape.partial(1));
        // The kernel computes all gradients; those not required are discarded.
        let stream = if tape.wants(0) { OutputRole::Gradient(0) } else { OutputRole::Like(1) };
        let weights = if tape.wants(1) { [1, 2].map(OutputRole::Gradient) } else { [OutputRole::Like(2); 2] };
        inputs.extend(residual);
        if let (Some(weight), Some(bias)) = (weight, tape.partial(2)) {
            inputs.extend([weight, bias]);
        }
        let (accumulate, accumulate_weights) = (residual.is_some(), weight.is_some());
        let gradients = tape.parameter_gradients();
        let op = LayerNormBackward { gradients, accumulate, accumulate_weights, cast: false };
        tape.emit(Op::LayerNormBackward(op), inputs, &[stream, weights[0], weights[1]]);
    }
}

impl Operation for LayerNormBackward {
    fn name(&self) -> &'static str {
        "layer-norm-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let previous = usize::from(self.accumulate) + 2 * usize::from(self.accumulate_weights);
        expect_inputs(self.name(), inputs, 5 + previous)?;
        let x = inputs[1];
        let weight = TensorType::f32(&[x.shape.last()]);
        let statistics = TensorType::f32(&[x.shape.rows()]);
        let dtype = expect_float(self.name(), "dy", &inputs[0])?;
        expect_f32_or(dtype, self.name(), "x", &x)?;
        expect_type(self.name(), "dy", &inputs[0], TensorType { dtype, ..x })?;
        expect_type(self.name(), "weight", &inputs[2], weight)?;
        expect_type(self.name(), "mean", &inputs[3], statistics)?;
        expect_type(self.name(), "rstd", &inputs[4], statistics)?;
        if self.accumulate {
            expect_type(self.name(), "the partial gradient", &inputs[5], x)?;
        }
        let gradient = TensorType { dtype: self.gradients, ..weight };
        for found in &inputs[5 + usize::from(self.accumulate)..] {
            expect_type(self.name(), "a previous gradient", found, gradient)?;
        }
        let mut outputs = vec![x, gradient, gradient];
        outputs.extend(self.cast.then_some(inputs[0]));
        Ok(outputs)
    }

    /// Partial sums of dweight and dbias: two rows of C each.
    fn workspace(
        &self,
        inputs: &[TensorType],
        _outputs: &[TensorType],
        limits: &super::WorkspaceLimits,
    ) -> u64 {
        let x = inputs[1].shape;
        let partials = Self::most_partials(x.rows(), limits.processor);
        (partials * 2 * x.last() * size_of::<f32>()) as u64
    }

    fn casts(&self, _outputs: usize) -> usize {
        usize::from(self.cast)
    }

    fn storing_cast(&self, output: usize, to: DType, inputs: &[TensorType]) -> Option<Op> {
        let can = output == 0 && to == inputs[0].dtype && to != inputs[1].dtype && !self.cast;
        can.then_some(Op::LayerNormBackward(LayerNormBackward { cast: true, ..*self }))
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        match (self.accumulate, self.accumulate_weights) {
            (_, false) => &[],
            (false, true) => &[(1, 5), (2, 6)],
            (true, true) => &[(1, 6), (2, 7)],
        }
    }

    /// dx may overwrite the partial gradient; the cast dx may overwrite dy, element by element.
    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        match (self.accumulate, self.cast) {
            (false, false) => &[],
            (true, false) => &[(0, 5)],
            (false, true) => &[(3, 0)],
            (true, true) => &[(0, 5), (3, 0)],
        }
    }

    fn accumulating(&self) -> Option<Op> {
        Some(Op::LayerNormBackward(LayerNormBackward { accumulate_weights: true, ..*self }))
    }

    fn accumulated(&self) -> &'static [usize] {
        &[1, 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_up_to_256_partial_sums() {
        let rows = |rows| LayerNormBackward::rows_per_partial(rows, Processor::Cuda);
        assert_eq!([1, 256, 257, 1024, 1025, 4096, 16_384, 1 << 20].map(rows), [64, 64, 4, 4, 8, 16, 64, 64]);
        assert_eq!(LayerNormBackward::rows_per_partial(1, Processor::Cpu), 64);
    }

    #[test]
    fn bound_of_partial_sums_never_falls() {
        for processor in [Processor::Cpu, Processor::Cuda] {
            let mut last = 0;
            for rows in 1..40_000 {
                let most = LayerNormBackward::most_partials(rows, processor);
                assert!(
                    rows.div_ceil(LayerNormBackward::rows_per_partial(rows, processor)) <= most,
                    "{rows}"
                );
                assert!(last <= most, "{rows}");
                last = most;
            }
        }
    }
}
