//! Group normalization: each group of channels of a sample over all pixels (Wu and He 2018).

use super::batch_norm::expect_affine;
use super::{
    BatchNorm, DType, Op, OpKind, Operand, Operation, OutputRole, Processor, Tape, TensorType, TypeError,
    WorkspaceLimits, expect_float, expect_inputs, expect_type,
};

/// `y = (x - mean) * rstd * weight + bias`, with `rstd = 1 / sqrt(variance + epsilon)`, over the pixels and channels of
/// each of G groups of consecutive channels. A sample is the outermost dimension.
///
/// Inputs: x num[B,..,C], weight f32[C], bias f32[C]. Outputs: y num[B,..,C], mean f32[B,G], rstd f32[B,G].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNorm {
    pub groups: usize,
    pub epsilon: f32,
}

/// Gradients of [`GroupNorm`].
///
/// Inputs: dy num[B,..,C], x num[B,..,C], weight f32[C], mean f32[B,G], rstd f32[B,G]; with `accumulate` the partial
/// gradient of x num[B,..,C]; with `accumulate_weights` the previous dweight and dbias num[C]. Outputs: dx num[B,..,C],
/// dweight num[C], dbias num[C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNormBackward {
    /// The dtype of dweight and dbias; they are summed in f32 or better.
    pub gradients: DType,
    pub accumulate: bool,
    pub accumulate_weights: bool,
}

impl GroupNormBackward {
    /// The largest number of partial sums of dweight and dbias on a CPU, where a task processes whole samples.
    const MOST_PARTIALS: usize = 64;

    /// Samples per partial sum on a CPU: independent of the number of threads.
    pub fn samples_per_partial(samples: usize) -> usize {
        samples.div_ceil(Self::MOST_PARTIALS)
    }
}

impl Operation for GroupNorm {
    fn kind(&self) -> Option<OpKind> {
        Some(OpKind::Norm)
    }

    fn name(&self) -> &'static str {
        "group-norm"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 3)?;
        expect_affine(self.name(), inputs)?;
        let x = inputs[0].shape;
        if x.dims().len() < 2 || self.groups == 0 || !x.last().is_multiple_of(self.groups) {
            let problem = format!("x is {}, expected samples of {} equal groups", inputs[0], self.groups);
            return Err(TypeError { operation: self.name(), problem });
        }
        let statistics = TensorType::f32(&[x.dims()[0], self.groups]);
        Ok(vec![inputs[0], statistics, statistics])
    }

    /// CPU: per thread, mean and sum of squared differences of each channel in f64; mean, factor and shift in f32.
    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        limits.scratch(8 * inputs[0].shape.last(), 0)
    }

    fn operand(&self, input: usize) -> Operand {
        if input == 0 { Operand::Matrix } else { Operand::Full }
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let mut inputs =
            vec![tape.output_gradient(0), tape.input(0), tape.input(1), tape.output(1), tape.output(2)];
        let (partial, weight) = (tape.partial(0), tape.partial(1));
        // The kernel computes all gradients; those not required are discarded.
        let dx = if tape.wants(0) { OutputRole::Gradient(0) } else { OutputRole::Like(1) };
        let weights = if tape.wants(1) { [1, 2].map(OutputRole::Gradient) } else { [OutputRole::Like(2); 2] };
        inputs.extend(partial);
        if let (Some(weight), Some(bias)) = (weight, tape.partial(2)) {
            inputs.extend([weight, bias]);
        }
        let (accumulate, accumulate_weights) = (partial.is_some(), weight.is_some());
        let gradients = tape.parameter_gradients();
        let op = GroupNormBackward { gradients, accumulate, accumulate_weights };
        tape.emit(Op::GroupNormBackward(op), inputs, &[dx, weights[0], weights[1]]);
    }
}

impl Operation for GroupNormBackward {
    fn name(&self) -> &'static str {
        "group-norm-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let previous = usize::from(self.accumulate) + 2 * usize::from(self.accumulate_weights);
        expect_inputs(self.name(), inputs, 5 + previous)?;
        let [dy, x, weight, mean, rstd] = [0, 1, 2, 3, 4].map(|index| inputs[index]);
        expect_float(self.name(), "x", &x)?;
        expect_type(self.name(), "dy", &dy, x)?;
        // The groups' number is that of their means.
        let forward = GroupNorm { groups: mean.shape.last(), epsilon: 0.0 };
        let statistics = forward.outputs(&[x, weight, weight])?[1];
        expect_type(self.name(), "mean", &mean, statistics)?;
        expect_type(self.name(), "rstd", &rstd, statistics)?;
        if self.accumulate {
            expect_type(self.name(), "the partial gradient", &inputs[5], x)?;
        }
        let gradient = TensorType { dtype: self.gradients, ..weight };
        for found in &inputs[5 + usize::from(self.accumulate)..] {
            expect_type(self.name(), "a previous gradient", found, gradient)?;
        }
        Ok(vec![x, gradient, gradient])
    }

    /// Partial sums of dweight and dbias, two rows of C each. CPU: also, per thread, two sums, the statistics and three
    /// terms of each channel.
    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let x = inputs[1].shape;
        let partials = match limits.processor {
            Processor::Cpu => x.dims()[0].min(Self::MOST_PARTIALS),
            Processor::Cuda => BatchNorm::most_partials(x.rows(), x.last()),
        };
        limits.scratch(7 * x.last(), 0) + (partials * 2 * x.last() * size_of::<f32>()) as u64
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        match (self.accumulate, self.accumulate_weights) {
            (_, false) => &[],
            (false, true) => &[(1, 5), (2, 6)],
            (true, true) => &[(1, 6), (2, 7)],
        }
    }

    /// dx may overwrite the partial gradient, or dy: the sums precede it.
    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        if self.accumulate { &[(0, 5)] } else { &[(0, 0)] }
    }

    fn accumulating(&self) -> Option<Op> {
        Some(Op::GroupNormBackward(GroupNormBackward { accumulate_weights: true, ..*self }))
    }

    fn accumulated(&self) -> &'static [usize] {
        &[1, 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_divide_the_channels() {
        let channels = TensorType::f32(&[6]);
        let outputs = |groups, dims: &[usize]| {
            GroupNorm { groups, epsilon: 1e-5 }.outputs(&[TensorType::f32(dims), channels, channels])
        };
        assert_eq!(outputs(3, &[2, 4, 5, 6]).expect("valid groups")[1], TensorType::f32(&[2, 3]));
        assert!(outputs(6, &[2, 6]).is_ok());
        for (groups, dims) in [(4, [2, 6].as_slice()), (0, &[2, 6]), (2, &[6])] {
            let error = outputs(groups, dims).expect_err("invalid groups").to_string();
            assert!(error.ends_with(&format!("expected samples of {groups} equal groups")), "{error}");
        }
    }
}
