//! Linear layers: matmuls with fused bias, activation and residual. Weights are stored `[out, in]`, as in PyTorch.

use super::{
    Activation, Arithmetic, Cast, DType, Op, OpKind, Operand, Operation, OutputRole, Processor, Tape,
    TensorType, TypeError, WorkspaceLimits, expect_f32_or, expect_float, expect_inputs, expect_type,
};

/// `y = activation(x W^T + bias) + residual`
///
/// Inputs: x num[..,K], weight num[M,K], then the optional bias num[M] and residual num[..,M]. The bias has the
/// residual's dtype if there is one, otherwise that of x. Outputs: y num[..,M] with the dtype of the bias; with an
/// activation also its input num[..,M] with the dtype of x.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    pub bias: bool,
    pub activation: Option<Activation>,
    pub residual: bool,
    /// Whether the matmul may round f32 operands to 11 bits of significand (TF32).
    pub tf32: bool,
}

/// `dx = dy W`, with `accumulate` added to the partial gradient, with `activation` multiplied by the derivative of the
/// activation that produced x.
///
/// Inputs: dy num[..,M], weight num[M,K]; with `accumulate` the partial dx num[..,K]; with `activation` its saved value
/// num[..,K]. Output: dx num[..,K], with `activation` the gradient of the activation's input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearInputGradient {
    pub accumulate: bool,
    pub activation: Option<Activation>,
    pub tf32: bool,
}

/// `dweight = dy^T x`, `dbias = sum of the rows of dy`, with `accumulate` added to the previous gradients.
///
/// Inputs: x num[..,K], dy num[..,M]; with `accumulate` the previous dweight num[M,K] and, with `bias`, dbias num[M].
/// Outputs: dweight num[M,K] and, with `bias`, dbias num[M].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearWeightGradient {
    /// The dtype of the gradients; they are summed in f32.
    pub gradients: DType,
    pub bias: bool,
    pub accumulate: bool,
    pub tf32: bool,
}

impl LinearWeightGradient {
    /// Scratch bytes for the row sums of dy where they cannot go to dbias directly: before rounding to a 16-bit dbias;
    /// and, on a GPU, before they are added to the previous dbias, because the matmul epilogue that sums a 16-bit dy
    /// can only store. They precede the matmul's own workspace, which then has the same size with and without
    /// accumulation, so that both select the same algorithm and give the same sums.
    pub fn sums_bytes(&self, dy: &TensorType, processor: Processor) -> u64 {
        let accumulates_16_bit_dy = processor == Processor::Cuda && self.accumulate && dy.dtype != DType::F32;
        let separate = self.bias && (accumulates_16_bit_dy || self.gradients != DType::F32);
        let sums = TensorType::f32(&[dy.shape.last()]).bytes();
        if separate { sums.next_multiple_of(WORKSPACE_ALIGNMENT) } else { 0 }
    }
}

/// Alignment of the parts of the workspace, in bytes.
const WORKSPACE_ALIGNMENT: u64 = 256;

/// Packing space for one matmul.
pub(super) fn product_workspace(limits: &WorkspaceLimits) -> u64 {
    limits.threads as u64 * limits.product_bytes_per_thread
}

pub(super) fn product_flops(rows: usize, inner: usize, columns: usize) -> u64 {
    2 * rows as u64 * inner as u64 * columns as u64
}

/// Output and input features of a weight.
fn features(operation: &'static str, weight: &TensorType) -> Result<[usize; 2], TypeError> {
    <[usize; 2]>::try_from(weight.shape.dims())
        .map_err(|_| TypeError { operation, problem: format!("weight is {weight}, expected a matrix") })
}

impl Operation for Linear {
    fn kind(&self) -> Option<OpKind> {
        Some(OpKind::Linear)
    }

    fn name(&self) -> &'static str {
        match (self.activation, self.residual) {
            (None, false) => "linear",
            (None, true) => "linear-residual",
            (Some(activation), false) => activation.definition().operations.linear,
            (Some(activation), true) => activation.definition().operations.linear_residual,
        }
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2 + usize::from(self.bias) + usize::from(self.residual))?;
        let [out, _] = features(self.name(), &inputs[1])?;
        let dtype = expect_float(self.name(), "x", &inputs[0])?;
        expect_type(
            self.name(),
            "weight",
            &inputs[1],
            TensorType::new(dtype, &[out, inputs[0].shape.last()]),
        )?;
        let activation_input = TensorType { dtype, shape: inputs[0].shape.with_last(out) };
        let mut y = activation_input;
        if self.residual {
            let residual = &inputs[2 + usize::from(self.bias)];
            y.dtype = expect_f32_or(dtype, self.name(), "residual", residual)?;
            expect_type(self.name(), "residual", residual, y)?;
        }
        if self.bias {
            expect_type(self.name(), "bias", &inputs[2], TensorType::new(y.dtype, &[out]))?;
        }
        Ok(if self.activation.is_some() { vec![y, activation_input] } else { vec![y] })
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        product_flops(inputs[0].shape.rows(), inputs[0].shape.last(), outputs[0].shape.last())
    }

    fn workspace(&self, _inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        product_workspace(limits)
    }

    fn takes_any_rows(&self) -> bool {
        true
    }

    /// A bias added to the residual stream has the dtype of the stream.
    fn operand(&self, input: usize) -> Operand {
        match input {
            0 | 1 => Operand::Matrix,
            2 if self.bias && !self.residual => Operand::Matrix,
            _ => Operand::Accumulator,
        }
    }

    fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        self.tf32 = arithmetic.tf32;
    }

    fn rowwise(&self) -> Option<&'static [usize]> {
        // A residual passes its gradient on unsliced.
        (!self.residual).then_some(&[0])
    }

    /// y may overwrite the residual.
    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        match (self.residual, self.bias) {
            (false, _) => &[],
            (true, false) => &[(0, 2)],
            (true, true) => &[(0, 3)],
        }
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let dy = tape.output_gradient(0);
        if self.residual {
            tape.pass(2 + usize::from(self.bias), dy);
        }
        let dtype = tape.input_type(0).dtype;
        let is_stream = self.residual && tape.input_type(2 + usize::from(self.bias)).dtype != dtype;
        let dy = if is_stream {
            tape.emit(Op::Cast(Cast { to: dtype }), vec![dy], &[OutputRole::Like(0)])[0]
        } else {
            dy
        };
        let dy = self.activation.map_or(dy, |activation| activation.backward(tape, dy, !self.residual));
        if tape.wants(1) {
            let mut inputs = vec![tape.input(0), dy];
            let previous = tape.partial(1);
            inputs.extend(previous);
            if self.bias && previous.is_some() {
                inputs.extend(tape.partial(2));
            }
            let op = LinearWeightGradient {
                gradients: tape.parameter_gradients(),
                bias: self.bias,
                accumulate: previous.is_some(),
                tf32: self.tf32,
            };
            let gradients = [OutputRole::Gradient(1), OutputRole::Gradient(2)];
            tape.emit(Op::LinearWeightGradient(op), inputs, &gradients[..1 + usize::from(self.bias)]);
        }
        if tape.wants(0) {
            let mut inputs = vec![dy, tape.input(1)];
            let partial = tape.partial(0);
            inputs.extend(partial);
            let accumulate = partial.is_some();
            let op = LinearInputGradient { accumulate, activation: None, tf32: self.tf32 };
            tape.emit(Op::LinearInputGradient(op), inputs, &[OutputRole::Gradient(0)]);
        }
    }
}

impl Operation for LinearInputGradient {
    fn name(&self) -> &'static str {
        let plain = "linear-input-gradient";
        self.activation.map_or(plain, |activation| activation.definition().operations.linear_input_gradient)
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let extra = usize::from(self.accumulate) + usize::from(self.activation.is_some());
        expect_inputs(self.name(), inputs, 2 + extra)?;
        let [_, inner] = features(self.name(), &inputs[1])?;
        let dtype = expect_float(self.name(), "dy", &inputs[0])?;
        let weight = TensorType::new(dtype, &[inputs[0].shape.last(), inner]);
        expect_type(self.name(), "weight", &inputs[1], weight)?;
        let dx = TensorType { dtype, shape: inputs[0].shape.with_last(inner) };
        if self.accumulate {
            expect_type(self.name(), "the partial gradient", &inputs[2], dx)?;
        }
        if self.activation.is_some() {
            expect_type(self.name(), "the saved value of the activation", &inputs[1 + extra], dx)?;
        }
        Ok(vec![dx])
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        product_flops(inputs[0].shape.rows(), inputs[0].shape.last(), outputs[0].shape.last())
    }

    fn workspace(&self, _inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        product_workspace(limits)
    }

    fn through_slope(&self, activation: Activation) -> Option<Op> {
        let can = !self.accumulate && self.activation.is_none();
        let through = LinearInputGradient { activation: Some(activation), ..*self };
        can.then_some(Op::LinearInputGradient(through))
    }

    fn takes_any_rows(&self) -> bool {
        true
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        if self.accumulate { &[(0, 2)] } else { &[] }
    }
}

impl Operation for LinearWeightGradient {
    fn name(&self) -> &'static str {
        "linear-weight-gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let previous = if self.accumulate { 1 + usize::from(self.bias) } else { 0 };
        expect_inputs(self.name(), inputs, 2 + previous)?;
        expect_float(self.name(), "x", &inputs[0])?;
        let (inner, out) = (inputs[0].shape.last(), inputs[1].shape.last());
        expect_type(
            self.name(),
            "dy",
            &inputs[1],
            TensorType { shape: inputs[0].shape.with_last(out), ..inputs[0] },
        )?;
        let mut outputs = vec![TensorType::new(self.gradients, &[out, inner])];
        expect_f32_or(inputs[0].dtype, self.name(), "dweight", &outputs[0])?;
        if self.bias {
            outputs.push(TensorType::new(self.gradients, &[out]));
        }
        for (found, wanted) in inputs[2..].iter().zip(&outputs) {
            expect_type(self.name(), "a previous gradient", found, *wanted)?;
        }
        Ok(outputs)
    }

    fn flops(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> u64 {
        product_flops(inputs[0].shape.rows(), inputs[0].shape.last(), inputs[1].shape.last())
    }

    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        self.sums_bytes(&inputs[1], limits.processor) + product_workspace(limits)
    }

    fn takes_any_rows(&self) -> bool {
        true
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        match (self.accumulate, self.bias) {
            (false, _) => &[],
            (true, false) => &[(0, 2)],
            (true, true) => &[(0, 2), (1, 3)],
        }
    }

    fn accumulating(&self) -> Option<Op> {
        Some(Op::LinearWeightGradient(LinearWeightGradient { accumulate: true, ..*self }))
    }

    fn accumulated(&self) -> &'static [usize] {
        if self.bias { &[0, 1] } else { &[0] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accumulated_bias_sums_have_their_own_workspace() {
        let bytes = |accumulate, bias, dtype, processor| {
            let op = LinearWeightGradient { gradients: DType::F32, bias, accumulate, tf32: false };
            let (x, dy) = (TensorType::new(dtype, &[64, 8]), TensorType::new(dtype, &[64, 100]));
            let limits = WorkspaceLimits { processor, threads: 1, product_bytes_per_thread: 4096 };
            op.workspace(&[x, dy], &[], &limits) - 4096
        };
        assert_eq!(bytes(true, true, DType::BF16, Processor::Cuda), 512);
        assert_eq!(bytes(false, true, DType::BF16, Processor::Cuda), 0);
        assert_eq!(bytes(true, false, DType::BF16, Processor::Cuda), 0);
        assert_eq!(bytes(true, true, DType::F32, Processor::Cuda), 0);
        assert_eq!(bytes(true, true, DType::BF16, Processor::Cpu), 0);
    }
}
