//! Batch normalization: each channel over the batch and all pixels (Ioffe and Szegedy 2015).

use super::{
    DType, Op, OpKind, Operand, Operation, OutputRole, Tape, TensorType, TypeError, WorkspaceLimits,
    expect_float, expect_inputs, expect_type,
};

/// `y = (x - mean) * rstd * weight + bias`, with `rstd = 1 / sqrt(variance + epsilon)`, over the N rows of x.
///
/// Inputs: x num[..,C], weight f32[C], bias f32[C]; in training and evaluation also the running mean and the running
/// variance f32[C]. Outputs: y num[..,C]; except in evaluation also mean f32[C] and rstd f32[C] of this batch; in
/// training also the next versions of the running statistics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    pub epsilon: f32,
    /// The weight of this batch in the running statistics: `running = (1 - momentum) * running + momentum * batch`.
    pub momentum: f32,
    pub mode: BatchNormMode,
}

/// The statistics that normalize, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchNormMode {
    /// Those of the batch, which also enter the running statistics. The variance that enters is the unbiased estimate,
    /// `N / (N - 1)` of the batch's; that of a single row, which has none, is 0.
    Training,
    /// Those of the batch, without effect on the running statistics. All outputs equal the first ones of training,
    /// bit by bit.
    Recomputation,
    /// The running statistics. There is no backward: evaluation has no gradients.
    Evaluation,
}

/// Gradients of [`BatchNorm`] in training.
///
/// Inputs: dy num[..,C], x num[..,C], weight f32[C], mean f32[C], rstd f32[C]; with `accumulate` the partial gradient of
/// x num[..,C]; with `accumulate_weights` the previous dweight and dbias num[C]. Outputs: dx num[..,C], dweight num[C],
/// dbias num[C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormBackward {
    /// The dtype of dweight and dbias; they are summed in f32 or better.
    pub gradients: DType,
    pub accumulate: bool,
    pub accumulate_weights: bool,
}

impl BatchNorm {
    /// Rows that are summed at a time, and the fewest rows per partial result of a channel.
    pub const BLOCK_ROWS: usize = 64;

    /// Rows per partial result of a channel, a multiple of `BLOCK_ROWS`: independent of the number of threads.
    pub fn rows_per_partial(rows: usize, channels: usize) -> usize {
        rows.div_ceil(Self::partial_limit(channels)).next_multiple_of(Self::BLOCK_ROWS)
    }

    /// An upper bound of the number of partial results. It never falls when the rows rise: a shorter micro-batch must
    /// not need more memory.
    pub(super) fn most_partials(rows: usize, channels: usize) -> usize {
        rows.div_ceil(Self::BLOCK_ROWS).min(Self::partial_limit(channels))
    }

    /// Enough partial results to occupy many threads; fewer of many channels, which GPUs divide too.
    fn partial_limit(channels: usize) -> usize {
        (1024 / channels.div_ceil(32).max(1)).clamp(64, 256)
    }
}

/// Checks x num[..,C], weight and bias; returns the type f32[C].
pub(super) fn expect_affine(operation: &'static str, inputs: &[TensorType]) -> Result<TensorType, TypeError> {
    expect_float(operation, "x", &inputs[0])?;
    let channels = TensorType::f32(&[inputs[0].shape.last()]);
    expect_type(operation, "weight", &inputs[1], channels)?;
    expect_type(operation, "bias", &inputs[2], channels)?;
    Ok(channels)
}

impl Operation for BatchNorm {
    fn kind(&self) -> Option<OpKind> {
        Some(OpKind::Norm)
    }

    fn name(&self) -> &'static str {
        match self.mode {
            BatchNormMode::Training => "batch-norm",
            BatchNormMode::Recomputation => "batch-norm-recomputation",
            BatchNormMode::Evaluation => "batch-norm-evaluation",
        }
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let has_running = self.mode != BatchNormMode::Recomputation;
        expect_inputs(self.name(), inputs, if has_running { 5 } else { 3 })?;
        let channels = expect_affine(self.name(), inputs)?;
        if has_running {
            expect_type(self.name(), "the running mean", &inputs[3], channels)?;
            expect_type(self.name(), "the running variance", &inputs[4], channels)?;
        }
        let of_channels = match self.mode {
            BatchNormMode::Training => 4,
            BatchNormMode::Recomputation => 2,
            BatchNormMode::Evaluation => 0,
        };
        Ok([vec![inputs[0]], vec![channels; of_channels]].concat())
    }

    /// Factor and shift of each channel, in f32; of a batch, also partial results in f64: mean and sum of squared
    /// differences.
    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], _limits: &WorkspaceLimits) -> u64 {
        let (rows, channels) = (inputs[0].shape.rows(), inputs[0].shape.last());
        let partials = match self.mode {
            BatchNormMode::Training | BatchNormMode::Recomputation => Self::most_partials(rows, channels),
            BatchNormMode::Evaluation => 0,
        };
        (2 * channels * (partials * size_of::<f64>() + size_of::<f32>())) as u64
    }

    fn operand(&self, input: usize) -> Operand {
        if input == 0 { Operand::Matrix } else { Operand::Full }
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        match self.mode {
            BatchNormMode::Training => &[(3, 3), (4, 4)],
            BatchNormMode::Recomputation | BatchNormMode::Evaluation => &[],
        }
    }

    fn recomputed(&self) -> Option<Op> {
        let mode = BatchNormMode::Recomputation;
        let form = Op::BatchNorm(BatchNorm { mode, ..*self });
        (self.mode == BatchNormMode::Training).then_some(form)
    }

    fn backward(&self, tape: &mut dyn Tape) {
        assert_ne!(self.mode, BatchNormMode::Evaluation, "evaluation has no gradients");
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
        let op = BatchNormBackward { gradients, accumulate, accumulate_weights };
        tape.emit(Op::BatchNormBackward(op), inputs, &[dx, weights[0], weights[1]]);
    }
}

impl Operation for BatchNormBackward {
    fn name(&self) -> &'static str {
        "batch-norm-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let previous = usize::from(self.accumulate) + 2 * usize::from(self.accumulate_weights);
        expect_inputs(self.name(), inputs, 5 + previous)?;
        let x = inputs[1];
        let channels = TensorType::f32(&[x.shape.last()]);
        expect_float(self.name(), "x", &x)?;
        expect_type(self.name(), "dy", &inputs[0], x)?;
        for (name, found) in ["weight", "mean", "rstd"].into_iter().zip(&inputs[2..]) {
            expect_type(self.name(), name, found, channels)?;
        }
        if self.accumulate {
            expect_type(self.name(), "the partial gradient", &inputs[5], x)?;
        }
        let gradient = TensorType { dtype: self.gradients, ..channels };
        for found in &inputs[5 + usize::from(self.accumulate)..] {
            expect_type(self.name(), "a previous gradient", found, gradient)?;
        }
        Ok(vec![x, gradient, gradient])
    }

    /// The sums of each channel, and their partial sums: dweight and dbias.
    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], _limits: &WorkspaceLimits) -> u64 {
        let (rows, channels) = (inputs[1].shape.rows(), inputs[1].shape.last());
        let partials = BatchNorm::most_partials(rows, channels);
        ((partials + 1) * 2 * channels * size_of::<f32>()) as u64
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
        Some(Op::BatchNormBackward(BatchNormBackward { accumulate_weights: true, ..*self }))
    }

    fn accumulated(&self) -> &'static [usize] {
        &[1, 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_of_partial_results_never_falls() {
        for channels in [1, 64, 100, 512, 5000] {
            let mut last = 0;
            for rows in 1..40_000 {
                let most = BatchNorm::most_partials(rows, channels);
                let count = rows.div_ceil(BatchNorm::rows_per_partial(rows, channels));
                assert!(count <= most && last <= most, "{rows} rows of {channels} channels");
                last = most;
            }
        }
    }

    #[test]
    fn recomputation_takes_the_first_operands_and_updates_nothing() {
        let training = BatchNorm { epsilon: 1e-5, momentum: 0.1, mode: BatchNormMode::Training };
        let recomputed = training.recomputed().expect("training has side effects");
        let channels = TensorType::f32(&[3]);
        let inputs = [TensorType::new(DType::BF16, &[2, 4, 4, 3]), channels, channels, channels, channels];
        let outputs = training.outputs(&inputs).expect("valid inputs");
        assert_eq!(recomputed.outputs(&inputs[..3]).expect("the first inputs"), outputs[..3]);
        assert!(recomputed.updates().is_empty() && recomputed.recomputed().is_none());
    }
}
