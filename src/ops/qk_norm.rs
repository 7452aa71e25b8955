//! QK-norm: RMS normalisation of queries and keys before attention (Henry et al. 2020).

use super::{
    DType, LayerNormBackward, Op, OpKind, Operand, Operation, OutputRole, RmsNormBackward, Sizes, Tape,
    TensorType, TypeError, WorkspaceLimits, expect_float, expect_inputs, expect_type,
};

/// For each query and key head `y = x * rrms * (weight + offset)`, with `rrms = 1 / sqrt(mean of x^2 + epsilon)` per
/// head. All query heads share one weight, and all key heads another. Values are copied.
///
/// Query heads have P channels; key and value heads have Q, usually the same number. All queries, and all keys, are
/// normalised as one if they are one head each.
///
/// Inputs: qkv num[B,T,HP+2GQ], the query, key and value heads side by side; the weights of queries f32[P] and of keys
/// f32[Q]. Outputs: qkv with normalised query and key heads, and rrms f32[B,T,H+G].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    pub heads: QkNormHeads,
    pub epsilon: f32,
    /// 0 or 1, as in `RmsNorm`.
    pub offset: f32,
}

/// Gradients of [`QkNorm`].
///
/// Inputs: the gradient of the normalised qkv num[B,T,HP+2GQ], qkv of the same type, the weights of queries f32[P] and of
/// keys f32[Q], rrms f32[B,T,H+G]; with `accumulate` the previous gradients of both weights num[P] and num[Q]. Outputs:
/// dqkv with the type of qkv, and the gradients of both weights num[P] and num[Q].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNormBackward {
    pub heads: QkNormHeads,
    /// The `offset` of the forward operation.
    pub offset: f32,
    /// The dtype of the weights' gradients; they are summed in f32.
    pub gradients: DType,
    pub accumulate: bool,
}

/// The numbers of normalised heads: H query heads and G key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QkNormHeads {
    pub queries: usize,
    pub keys: usize,
}

impl QkNormHeads {
    pub fn count(self) -> usize {
        self.queries + self.keys
    }

    /// The type of rrms.
    fn reciprocals(
        self,
        operation: &'static str,
        qkv: &TensorType,
        weights: [&TensorType; 2],
    ) -> Result<TensorType, TypeError> {
        let QkNormHeads { queries, keys } = self;
        if let ([batch, sequence, row], [&[p], &[q]]) =
            (qkv.shape.dims(), weights.map(|weight| weight.shape.dims()))
            && *row == queries * p + 2 * keys * q
        {
            return Ok(TensorType::f32(&[*batch, *sequence, self.count()]));
        }
        let problem = format!(
            "qkv is {qkv}, expected [B, T, C] with {queries} query heads and 2 x {keys} key and value heads of weights {} \
             and {}",
            weights[0], weights[1]
        );
        Err(TypeError { operation, problem })
    }

    fn resize(&mut self, qkv: &TensorType, [queries, keys]: [&TensorType; 2], rrms: &TensorType) {
        let [row, p, q, count] = [qkv, queries, keys, rrms].map(|ty| ty.shape.last());
        // With a head each, `2q` may be `p`.
        self.keys = if count == 2 { 1 } else { (row - count * p) / (2 * q - p) };
        self.queries = count - self.keys;
    }
}

impl QkNormBackward {
    /// Rows of qkv per partial sum of the weights' gradients on a CPU.
    pub const ROWS_PER_PARTIAL: usize = RmsNormBackward::ROWS_PER_PARTIAL;
}

fn expect_weights(operation: &'static str, weights: &[TensorType]) -> Result<(), TypeError> {
    for (name, weight) in ["the weight of queries", "the weight of keys"].into_iter().zip(weights) {
        expect_type(operation, name, weight, TensorType::f32(&[weight.shape.last()]))?;
    }
    Ok(())
}

impl Operation for QkNorm {
    fn kind(&self) -> Option<OpKind> {
        Some(OpKind::Norm)
    }

    fn name(&self) -> &'static str {
        "head-norm"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 3)?;
        expect_float(self.name(), "qkv", &inputs[0])?;
        expect_weights(self.name(), &inputs[1..])?;
        let rrms = self.heads.reciprocals(self.name(), &inputs[0], [&inputs[1], &inputs[2]])?;
        Ok(vec![inputs[0], rrms])
    }

    fn operand(&self, input: usize) -> Operand {
        if input == 0 { Operand::Matrix } else { Operand::Full }
    }

    fn resize(&mut self, sizes: &Sizes) {
        let weights = [&sizes.inputs[1], &sizes.inputs[2]];
        self.heads.resize(&sizes.inputs[0], weights, &sizes.outputs[1]);
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let mut inputs = vec![tape.output_gradient(0)];
        inputs.extend([0, 1, 2].map(|index| tape.input(index)));
        inputs.push(tape.output(1));
        let previous = [1, 2].map(|index| tape.partial(index));
        inputs.extend(previous.into_iter().flatten());
        // The kernel computes all gradients; those not required are discarded.
        let weights =
            if tape.wants(1) { [1, 2].map(OutputRole::Gradient) } else { [2, 3].map(OutputRole::Like) };
        let gradients = tape.parameter_gradients();
        let accumulate = previous[0].is_some();
        let QkNorm { heads, offset, .. } = *self;
        let op = Op::QkNormBackward(QkNormBackward { heads, offset, gradients, accumulate });
        if tape.wants(0) {
            tape.contribute(op, inputs, 0, 1, &weights);
        } else {
            tape.emit(op, inputs, &[&[OutputRole::Like(1)], &weights[..]].concat());
        }
    }
}

impl Operation for QkNormBackward {
    fn name(&self) -> &'static str {
        "head-norm-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, if self.accumulate { 7 } else { 5 })?;
        let dtype = expect_float(self.name(), "the gradient", &inputs[0])?;
        let qkv = TensorType { dtype, ..inputs[1] };
        expect_weights(self.name(), &inputs[2..4])?;
        let rrms = self.heads.reciprocals(self.name(), &qkv, [&inputs[2], &inputs[3]])?;
        expect_type(self.name(), "the gradient", &inputs[0], qkv)?;
        expect_type(self.name(), "qkv", &inputs[1], qkv)?;
        expect_type(self.name(), "rrms", &inputs[4], rrms)?;
        let gradients = [2, 3].map(|index| TensorType { dtype: self.gradients, ..inputs[index] });
        for (found, gradient) in inputs[5..].iter().zip(gradients) {
            expect_type(self.name(), "the previous gradient", found, gradient)?;
        }
        Ok(vec![qkv, gradients[0], gradients[1]])
    }

    /// Partial sums of both weights' gradients: P + Q each.
    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let partials = LayerNormBackward::most_partials(inputs[1].shape.rows(), limits.processor);
        (partials * (inputs[2].shape.last() + inputs[3].shape.last()) * size_of::<f32>()) as u64
    }

    fn resize(&mut self, sizes: &Sizes) {
        let weights = [&sizes.inputs[2], &sizes.inputs[3]];
        self.heads.resize(&sizes.inputs[1], weights, &sizes.inputs[4]);
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        if self.accumulate { &[(1, 5), (2, 6)] } else { &[] }
    }

    fn accumulating(&self) -> Option<Op> {
        Some(Op::QkNormBackward(QkNormBackward { accumulate: true, ..*self }))
    }

    fn accumulated(&self) -> &'static [usize] {
        &[1, 2]
    }
}
